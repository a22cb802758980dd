"""What probes leave behind at a simulated Ollama: nothing, whatever its users do meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from exporter.backends.ollama_api import open_client
from exporter.probe.hosts.ollama import OllamaHost
from exporter.probe.instruments import Instruments
from exporter.probe.schedule import Prober
from exporter.probe.stream import sender
from exporter.settings import ProbeSettings, Target
from exporter.simulator.clock import ManualClock
from exporter.simulator.ollama import OllamaServer
from exporter.simulator.ollama_models import OllamaSettings
from tests.simulated import OLLAMA, ollama

HOUR = 3600.0
FAR = 1e9  # for ever is counted from the last request, which makes no difference
GEMMA, CHAT = "gemma3:270m", "gemma3-chat:latest"


@dataclass(frozen=True, slots=True)
class Use:
    """A user's request: when, of which model, and what else its body says."""

    at: float
    model: str = GEMMA
    more: tuple[tuple[str, object], ...] = ()


def every(seconds: float, until: float = HOUR, model: str = GEMMA) -> list[Use]:
    return [Use(seconds * number, model) for number in range(int(until // seconds))]


class OverError(Exception):
    """The time to be lived is over."""


class World:
    """A simulated Ollama, its users and, if wanted, a prober, for an hour of a clock that jumps."""

    def __init__(self, uses: Sequence[Use], probe: ProbeSettings | None, settings: OllamaSettings = OLLAMA) -> None:
        self.server: OllamaServer = ollama(settings)
        self.registry = CollectorRegistry()
        self.stays: list[tuple[float, dict[str, float]]] = []
        self._uses = sorted(uses, key=lambda use: use.at)
        self._probe = probe
        assert isinstance(self.server.clock, ManualClock)
        self._clock = self.server.clock

    async def live(self, seconds: float = HOUR) -> World:
        """Let the time pass; note every minute which models are loaded and when each would be unloaded."""
        await self.server.start()
        try:
            async with aiohttp.ClientSession() as self._session:
                await self._clock.run(self._live(seconds))
        finally:
            await self.server.stop()
        return self

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The bodies of the requests of the prober that generate."""
        return [
            asked.body
            for asked in self.server.ledger.asked
            if isinstance(asked.body, dict) and asked.headers["user-agent"] == "llm-vitals" and "prompt" in asked.body
        ]

    async def _live(self, seconds: float) -> None:
        target = Target("a", self.server.url, "ollama", probe=self._probe or ProbeSettings())
        self._until = seconds
        async with open_client(target) as client:
            if self._probe is None:
                with contextlib.suppress(OverError):
                    await self._pass(seconds + 1)
                return
            prober = Prober(
                target,
                OllamaHost(target, client, self._wall),
                Instruments(self.registry),
                sender(client, self._clock.now),
                clock=self._clock.now,
                wall=self._wall,
                sleep=self._pass,
                random=Random(1),
            )
            with contextlib.suppress(OverError):
                await prober.run()

    def _wall(self) -> float:
        return self._clock.unix(self._clock.now())

    async def _pass(self, seconds: float) -> None:
        """Sleep, while users ask what they ask in this time and every whole minute is noted; OverError at the end.

        Everything happens one after the other: a second sleeper would let the clock jump over bytes on their way.
        """
        end = self._clock.now() + seconds
        while True:
            minute = (len(self.stays) + 1) * 60.0
            due = self._uses[0].at if self._uses else end
            await self._clock.sleep_until(min(due, minute, end))
            if self._clock.now() > self._until:
                raise OverError
            if self._uses and due <= min(minute, end):
                await self._use(self._uses.pop(0))
            elif minute <= end:
                self.stays.append(
                    (minute, {r.model.name: min(r.expires_at, FAR) for r in self.server.runners.loaded()})
                )
            else:
                return

    async def _use(self, use: Use) -> None:
        options = {"num_predict": 20}
        body = {"model": use.model, "prompt": "Why?", "stream": False, "options": options, **dict(use.more)}
        async with self._session.post(f"{self.server.url}/api/generate", json=body) as response:
            assert response.status == 200


HALF_HOUR_STAY = replace(OLLAMA, keep_alive=1800.0)
MINUTE_STAY = replace(OLLAMA, keep_alive=60.0)
OFTEN = ProbeSettings(interval=20.0, max_share=1.0, kinds=("small",), max_tokens=2)


@pytest.mark.parametrize(
    ("uses", "settings", "seconds"),
    [
        ([Use(0.0), Use(300.0, more=(("keep_alive", 0),)), Use(350.0)], OLLAMA, 480.0),
        (every(120.0), OLLAMA, 720.0),
        ([*every(100.0), Use(50.0, CHAT), Use(200.0, CHAT)], OLLAMA, 600.0),
        ([Use(0.0, more=(("keep_alive", "20m"),)), Use(200.0), Use(300.0, more=(("keep_alive", 50),))], OLLAMA, 480.0),
        ([Use(0.0, more=(("keep_alive", -1),)), Use(200.0)], OLLAMA, 420.0),
        (every(250.0), HALF_HOUR_STAY, 600.0),
        # Seen to be loaded, so that its stay is known; else Ollama's default would be assumed.
        ([Use(15 + use.at) for use in every(50.0)], MINUTE_STAY, 420.0),
    ],
    ids=["unloaded", "every 2 min", "two models", "own keep_alives", "for ever", "stays 30 min", "stays 1 min"],
)
async def test_loaded_models_and_their_expiries_are_the_same_with_and_without_probing(
    uses: list[Use], settings: OllamaSettings, seconds: float
) -> None:
    without = await World(uses, None, settings).live(seconds)
    probed = await World(uses, OFTEN, settings).live(seconds)
    assert probed.asked
    compare(uses, without, probed)


async def test_an_hour_of_probing_changes_no_expiry_loads_no_model_and_hits_no_cache() -> None:
    uses = [Use(0.0), Use(1000.0), *(Use(1800 + use.at) for use in every(290.0, until=900.0)), Use(2000.0, CHAT)]
    without = await World(uses, None).live(HOUR)
    probed = await World(uses, ProbeSettings(kinds=("small", "large"), max_tokens=4)).live(HOUR)
    compare(uses, without, probed)
    assert len(probed.asked) > 40
    assert not any("num_ctx" in body["options"] for body in probed.asked)
    prompts = [record for record in probed.server.ledger.records if record.prompt_tokens > 100]
    assert len(prompts) == len(probed.asked)
    # All that prompts share is what the template puts before them, here one token.
    assert max(record.cached_tokens for record in prompts) <= 1


async def test_a_repeated_prompt_does_hit_the_cache_and_is_the_only_one() -> None:
    world = await World([Use(0.0)], ProbeSettings(max_tokens=4)).live(120.0)
    prompts = [body["prompt"] for body in world.asked]
    again = {number for number, prompt in enumerate(prompts) if prompt in prompts[:number]}
    records = [record for record in world.server.ledger.records if record.prompt_tokens > 100]
    assert again
    for number, record in enumerate(records):
        assert record.cached_tokens == (record.prompt_tokens - 1 if number in again else pytest.approx(0, abs=1))


async def test_a_dialect_that_knows_no_keep_alive_leaves_the_expiry_as_it_was_too() -> None:
    uses = [Use(0.0), Use(200.0)]
    without = await World(uses, None).live(480.0)
    probed = await World(uses, replace(OFTEN, dialect="openai_chat")).live(480.0)
    compare(uses, without, probed)
    assert any(asked.path == "/v1/chat/completions" for asked in probed.server.ledger.asked)


def compare(uses: Sequence[Use], without: World, probed: World) -> None:
    """Check that at every minute the same models are loaded, and would be unloaded at the same time."""
    assert abs(len(without.stays) - len(probed.stays)) <= 1
    for (minute, expected), (_, seen) in zip(without.stays, probed.stays, strict=False):
        assert seen.keys() == expected.keys(), minute
        # What a user's request bought is put back at the next look, at most ten seconds later.
        if not any(0 <= minute - use.at < 12 for use in uses):
            assert seen == pytest.approx(expected, abs=2.0), minute
