from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from exporter.probe.instruments import Instruments
from exporter.probe.result import Reason
from exporter.probe.schedule import Prober
from exporter.settings import Target
from tests.ollama_fakes import TARGET, Clock, ScriptedOllama, answer, done, line, probed

SERVER_NOW = datetime(2026, 11, 29, 19, 24, 41, tzinfo=UTC)


def expiring(after: float) -> dict[str, Any]:
    """Return a row of /api/ps of a model that expires so many seconds from the server's now."""
    return {"size": 100, "expires_at": (SERVER_NOW + timedelta(seconds=after)).isoformat()}


class Rig:
    """A prober, its Ollama and what it exports."""

    def __init__(self, target: Target = TARGET, **models: dict[str, Any]) -> None:
        self.clock = Clock()
        self.ollama = ScriptedOllama(self.clock, **models)
        self.registry = CollectorRegistry()
        self.sleeps: list[float] = []
        self.prober = Prober(
            target,
            self.ollama.client(),
            Instruments(self.registry),
            clock=self.clock,
            wall=lambda: 5_000.0,
            sleep=self._sleep,
            random=Random(1),
        )

    async def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.clock.now += seconds
        await asyncio.sleep(0)

    def value(self, name: str, model: str = "m", **labels: str) -> float | None:
        labels = {"target": "box", "backend": "ollama", "model": model, **labels}
        return self.registry.get_sample_value(f"vitals_{name}", labels)

    def models_asked(self) -> list[str]:
        return [body["model"] for body in self.ollama.asked]


async def test_the_first_probe_of_a_model_is_a_warm_up_and_the_next_is_measured() -> None:
    rig = Rig(m=expiring(300))
    await rig.prober.round()
    assert rig.value("probe_cold_total") == 1
    assert rig.value("probe_time_to_first_token_seconds_count", prompt="small") is None
    await rig.prober.round()
    assert rig.value("probes_total") == 2
    assert rig.value("probe_cold_total") == 1
    assert rig.value("probe_time_to_first_token_seconds_sum", prompt="small") == pytest.approx(0.3)
    assert rig.value("probe_inter_token_latency_seconds_count") == 3
    assert rig.value("probe_last_success_timestamp_seconds") == 5_000.0
    assert rig.prober.last["m"].ok


async def test_a_failed_warm_up_is_tried_again_as_a_warm_up() -> None:
    rig = Rig(m=expiring(300))
    good = rig.ollama.generate
    rig.ollama.generate = answer(rig.clock, [(0.1, b'{"error":"boom"}\n')])
    await rig.prober.round()
    rig.ollama.generate = good
    await rig.prober.round()
    assert rig.value("probe_cold_total") == 2


async def test_a_model_that_came_back_or_changed_is_warmed_up_again() -> None:
    rig = Rig(m=expiring(300))
    await rig.prober.round()
    rig.ollama.models["m"]["digest"] = "new"
    await rig.prober.round()
    assert rig.value("probe_cold_total") == 2
    row = rig.ollama.models.pop("m")
    await rig.prober.round()
    rig.ollama.models["m"] = row
    await rig.prober.round()
    assert rig.value("probe_cold_total") == 3


async def test_nothing_loaded_is_nothing_asked() -> None:
    rig = Rig()
    await rig.prober.round()
    assert rig.ollama.asked == []


@pytest.mark.parametrize(("left", "keep_alive"), [(299.2, 300), (60.0, 60), (5.0, 5), (250 * 365 * 86400.0, -1)])
async def test_the_models_own_expiry_is_kept_by_the_servers_clock(left: float, keep_alive: int) -> None:
    rig = Rig(m=expiring(left))
    await rig.prober.round()
    assert rig.ollama.asked[0]["keep_alive"] == keep_alive


@pytest.mark.parametrize("row", [expiring(4.9), expiring(-60), {"size": 1}, {"expires_at": "soon"}])
async def test_a_model_about_to_leave_or_of_unknown_expiry_is_left_alone(row: dict[str, Any]) -> None:
    rig = Rig(m=row)
    await rig.prober.round()
    assert rig.ollama.asked == []
    assert rig.prober.last == {}


async def test_only_configured_models_are_probed_with_or_without_latest() -> None:
    rig = Rig(probed(models=("a", "b:7b")), **{"a:latest": expiring(300), "b:7b": expiring(300), "c": expiring(300)})
    await rig.prober.round()
    assert rig.models_asked() == ["a:latest", "b:7b"]


async def test_a_model_for_embeddings_is_not_asked_for_text() -> None:
    rig = Rig(m=expiring(300))
    rig.ollama.capabilities = ["embedding"]
    await rig.prober.round()
    assert rig.ollama.asked == []
    assert rig.value("probes_total") is None


async def test_a_model_unloaded_during_the_probe_before_is_not_loaded_again() -> None:
    rig = Rig(a=expiring(300), b=expiring(300))
    good = rig.ollama.generate

    async def unload(request: httpx.Request) -> httpx.Response:
        rig.ollama.models.pop("b", None)
        return await good(request)

    rig.ollama.generate = unload
    await rig.prober.round()
    assert rig.models_asked() == ["a"]


async def test_several_models_are_probed_one_at_a_time() -> None:
    rig = Rig(a=expiring(300), b=expiring(300))
    await rig.prober.round()
    assert rig.models_asked() == ["a", "b"]
    assert rig.ollama.most_in_flight == 1


async def test_every_prompt_differs_from_its_first_characters_on() -> None:
    rig = Rig(m=expiring(300))
    for _ in range(3):
        await rig.prober.round()
    prompts = [body["prompt"] for body in rig.ollama.asked]
    assert len({prompt[:8] for prompt in prompts}) == 3
    assert {len(prompt) for prompt in prompts} == {len(prompts[0])}
    assert 150 <= len(prompts[0].split()) <= 220


async def test_a_model_that_left_memory_takes_its_gauges_along_but_not_its_history() -> None:
    rig = Rig(m=expiring(300))
    await rig.prober.round()
    await rig.prober.round()
    assert rig.value("probe_decode_tokens_per_second") == pytest.approx(50)
    assert rig.value("probe_phase_seconds", phase="prefill") == pytest.approx(0.1)
    del rig.ollama.models["m"]
    await rig.prober.round()
    assert rig.value("probe_decode_tokens_per_second") is None
    assert rig.value("probe_phase_seconds", phase="prefill") is None
    assert rig.value("probe_time_to_first_token_seconds_count", prompt="small") == 1
    assert rig.prober.last == {}


async def test_a_server_that_is_down_takes_the_gauges_along_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig(m=expiring(300))
    await rig.prober.round()
    rig.ollama.down = True
    await rig.prober.round()
    await rig.prober.round()
    assert rig.value("probe_decode_tokens_per_second") is None
    rig.ollama.down = False
    await rig.prober.round()
    told = [record.getMessage() for record in caplog.records if record.name.startswith("exporter")]
    assert len(told) == 2
    assert "not probed: cannot connect" in told[0]
    assert told[1] == "target box: probed again"


async def test_a_failing_model_is_logged_when_it_begins_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig(m=expiring(300))
    good = rig.ollama.generate
    await rig.prober.round()
    rig.ollama.generate = answer(rig.clock, [(0.1, line("a"))])
    await rig.prober.round()
    await rig.prober.round()
    rig.ollama.generate = good
    await rig.prober.round()
    told = [record.getMessage() for record in caplog.records if record.name.startswith("exporter")]
    assert len(told) == 2
    assert "model m: probe failed" in told[0]
    assert told[1] == "target box, model m: probes are good again"
    assert rig.value("probe_failures_total", reason=Reason.TRUNCATED_STREAM) == 2


async def test_a_cut_prompt_is_told_as_such() -> None:
    rig = Rig(m=expiring(300))
    rig.ollama.generate = answer(rig.clock, [(0.3, line("a")), (0.1, done(prompt_eval_count=34))])
    await rig.prober.round()
    assert rig.prober.last["m"].reason is Reason.TRUNCATED_PROMPT


async def test_rounds_keep_their_beat_and_missed_ones_fall_out() -> None:
    rig = Rig(probed(interval=10.0), m=expiring(300))
    starts: list[float] = []
    enough = asyncio.Event()
    good = rig.ollama.generate

    async def generate(request: httpx.Request) -> httpx.Response:
        starts.append(rig.clock.now)
        if len(starts) == 2:
            rig.clock.now += 23.0  # longer than two intervals
        if len(starts) == 4:
            enough.set()
        return await good(request)

    rig.ollama.generate = generate
    task = asyncio.create_task(rig.prober.run())
    await enough.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 0 <= rig.sleeps[0] <= 10
    assert [round(after - before, 6) for before, after in pairwise(starts)] == [10, 30, 10]
