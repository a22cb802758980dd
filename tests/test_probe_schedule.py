"""When and what a prober asks, under a fake clock and against a scripted Ollama."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta
from itertools import pairwise
from random import Random
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from exporter.probe.hosts.ollama import OllamaHost
from exporter.probe.instruments import Instruments
from exporter.probe.result import Reason
from exporter.probe.schedule import Prober
from exporter.probe.stream import sender
from exporter.settings import Target
from tests.ollama_fakes import SERVER_START, TARGET, Clock, ScriptedOllama, answer, done, line, probed

SMALL = probed(kinds=("small",))


def expiring(after: float, **more: Any) -> dict[str, Any]:
    """Return a row of /api/ps of a model that expires so many seconds from the server's start."""
    return {"size": 100, "expires_at": (SERVER_START + timedelta(seconds=after)).isoformat(), **more}


class Rig:
    """A prober, its Ollama and what it exports."""

    def __init__(self, target: Target = SMALL, **models: dict[str, Any]) -> None:
        self.clock = Clock()
        self.ollama = ScriptedOllama(self.clock, **models)
        self.registry = CollectorRegistry()
        self.sleeps: list[float] = []
        self.starts: list[float] = []
        client = self.ollama.client()
        self.prober = Prober(
            target,
            OllamaHost(target, client, self._wall),
            Instruments(self.registry),
            sender(client, self.clock),
            clock=self.clock,
            wall=self._wall,
            sleep=self._sleep,
            random=Random(1),
        )

    def _wall(self) -> float:
        return SERVER_START.timestamp() + self.clock.now - 100

    async def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.clock.now += seconds
        await asyncio.sleep(0)

    def value(self, name: str, model: str = "m", **labels: str) -> float | None:
        labels = {"target": "box", "backend": "ollama", "model": model, **labels}
        return self.registry.get_sample_value(f"vitals_{name}", labels)

    def share(self) -> float | None:
        return self.registry.get_sample_value("vitals_probe_share_ratio", {"target": "box", "backend": "ollama"})

    def models_asked(self) -> list[str]:
        return [body["model"] for body in self.ollama.asked]

    async def run_until(self, probes: int, lasting: float = 0.0) -> None:
        """Let the prober run until it has begun so many probes, each of them lasting longer by some seconds."""
        enough = asyncio.Event()
        good = self.ollama.generate

        slow = answer(
            self.clock,
            [
                (0.3, line("a")),
                (lasting, line("b")),
                (0.02, line("c")),
                (0.02, line("d")),
                (0.0, done(prompt_eval_duration=299_000_000)),
            ],
        )

        async def generate(request: httpx.Request) -> httpx.Response:
            self.starts.append(self.clock.now)
            if len(self.starts) == probes:
                enough.set()
            return await (slow if lasting else good)(request)

        self.ollama.generate = generate
        task = asyncio.create_task(self.prober.run())
        await enough.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def counting(clock: Clock) -> Any:
    """Return an answer to any prompt whose server counts a token in every four characters, and takes 1 ms for each."""

    async def generate(request: httpx.Request) -> httpx.Response:
        tokens = len(json.loads(request.content)["prompt"]) // 4
        counts = done(prompt_eval_count=tokens, prompt_eval_duration=tokens * 10**6)
        pieces = [(0.1 + tokens / 1000, line("a")), *((0.02, line("b")) for _ in range(3)), (0.0, counts)]
        return await answer(clock, pieces)(request)

    return generate


async def test_the_first_probe_of_a_model_is_a_warm_up_and_a_measured_one_follows_at_once() -> None:
    rig = Rig(m=expiring(300))
    await rig.prober.turn()
    assert rig.value("probes_total") == 2
    assert rig.value("probe_cold_total") == 1
    assert rig.value("probe_time_to_first_token_seconds_count", prompt="small") == 1
    assert rig.value("probe_time_to_first_token_seconds_sum", prompt="small") == pytest.approx(0.3)
    assert rig.value("probe_inter_token_latency_seconds_count") == 3
    assert rig.value("probe_last_success_timestamp_seconds") == pytest.approx(rig.prober.last["m", "small"].at)
    await rig.prober.turn()
    assert (rig.value("probes_total"), rig.value("probe_cold_total")) == (3, 1)


async def test_a_failed_warm_up_is_tried_again_as_a_warm_up() -> None:
    rig = Rig(m=expiring(300))
    good = rig.ollama.generate
    rig.ollama.generate = answer(rig.clock, [(0.1, b'{"error":"boom"}\n')])
    await rig.prober.turn()
    assert (rig.value("probes_total"), rig.value("probe_cold_total")) == (1, 1)
    rig.ollama.generate = good
    await rig.prober.turn()
    assert (rig.value("probes_total"), rig.value("probe_cold_total")) == (3, 2)


async def test_a_model_that_came_back_or_changed_is_warmed_up_again() -> None:
    rig = Rig(m=expiring(300))
    await rig.prober.turn()
    rig.ollama.models["m"]["digest"] = "new"
    await rig.prober.turn()
    assert rig.value("probe_cold_total") == 2
    row = rig.ollama.models.pop("m")
    await rig.prober.turn()
    rig.ollama.models["m"] = row
    await rig.prober.turn()
    assert rig.value("probe_cold_total") == 3


async def test_nothing_loaded_is_nothing_asked() -> None:
    rig = Rig()
    await rig.prober.turn()
    assert rig.ollama.asked == []


async def test_a_model_that_is_not_loaded_is_loaded_only_where_the_configuration_says_so() -> None:
    for load, asked in ((False, []), (True, ["a:latest"] * 2)):
        rig = Rig(probed(models=("a",), load=load, kinds=("small",)))
        await rig.prober.turn()
        assert rig.models_asked() == asked
        assert not any("keep_alive" in body for body in rig.ollama.asked)
        assert rig.prober.skipped == ({} if load else {"a:latest": "not in memory"})


@pytest.mark.parametrize("left", [299.2, 60.0, 20.5])
async def test_the_models_own_expiry_is_kept_by_the_servers_clock(left: float) -> None:
    rig = Rig(m=expiring(left))
    rig.ollama.date = SERVER_START + timedelta(days=1)  # its clock is a day ahead of ours
    rig.ollama.models["m"] |= {"expires_at": (rig.ollama.date + timedelta(seconds=left)).isoformat()}
    await rig.prober.turn()
    # A first probe is taken to last a second; the server's time is known to half a second.
    assert float(rig.ollama.asked[0]["keep_alive"].removesuffix("s")) == pytest.approx(left - 1, abs=0.51)


async def test_a_model_that_stays_for_ever_stays_for_ever() -> None:
    rig = Rig(m=expiring(250 * 365 * 86400.0))
    await rig.prober.turn()
    assert rig.ollama.asked[0]["keep_alive"] == -1


@pytest.mark.parametrize("row", [expiring(19.9), expiring(-60), {"size": 1}, {"expires_at": "soon"}])
async def test_a_model_about_to_leave_or_of_unknown_expiry_is_left_alone(row: dict[str, Any]) -> None:
    rig = Rig(m=row)
    await rig.prober.turn()
    assert rig.ollama.asked == []
    assert rig.prober.last == {}
    assert set(rig.prober.skipped) == {"m"}


async def test_only_configured_models_are_probed_with_or_without_latest() -> None:
    models = {"a:latest": expiring(300), "b:7b": expiring(300), "c": expiring(300)}
    rig = Rig(probed(models=("a", "b:7b"), kinds=("small",)), **models)
    await rig.prober.turn()
    assert set(rig.models_asked()) == {"a:latest", "b:7b"}


async def test_a_model_for_embeddings_is_not_asked_for_text() -> None:
    rig = Rig(m=expiring(300))
    rig.ollama.capabilities = ["embedding"]
    await rig.prober.turn()
    assert rig.ollama.asked == []
    assert rig.value("probes_total") is None
    assert rig.prober.skipped == {"m": "it makes no text"}


async def test_a_model_unloaded_during_the_probe_before_is_not_loaded_again() -> None:
    rig = Rig(a=expiring(300), b=expiring(300))
    good = rig.ollama.generate

    async def unload(request: httpx.Request) -> httpx.Response:
        rig.ollama.models.pop("b", None)
        return await good(request)

    rig.ollama.generate = unload
    await rig.prober.turn()
    assert set(rig.models_asked()) == {"a"}


async def test_several_models_are_probed_one_at_a_time() -> None:
    rig = Rig(a=expiring(300), b=expiring(300))
    await rig.prober.turn()
    assert rig.models_asked() == ["a", "a", "b", "b"]
    assert rig.ollama.most_in_flight == 1


async def test_prompts_reach_their_sizes_by_the_servers_count_and_begin_with_a_nonce() -> None:
    rig = Rig(TARGET, m=expiring(3000))
    rig.ollama.generate = counting(rig.clock)
    for _ in range(2):
        await rig.prober.turn()
    prompts = [body["prompt"] for body in rig.ollama.asked]
    assert len({prompt[:8] for prompt in prompts}) == len(set(prompts)) == len(prompts) - 2  # two were repeated
    assert rig.prober.last["m", "small"].prompt_tokens == pytest.approx(200, rel=0.2)
    assert rig.prober.last["m", "large"].prompt_tokens == pytest.approx(2000, rel=0.05)


async def test_a_turn_asks_small_then_large_then_the_large_one_again() -> None:
    rig = Rig(TARGET, m=expiring(3000))
    rig.ollama.generate = counting(rig.clock)
    await rig.prober.turn()
    warm_up, small, large, cached = (body["prompt"] for body in rig.ollama.asked)
    assert len(warm_up) == pytest.approx(len(small), rel=0.2)
    assert len(large) > 8 * len(small)
    assert cached == large
    assert {body["options"]["num_predict"] for body in rig.ollama.asked} == {32}
    assert {kind for _, kind in rig.prober.last} == {"small", "large", "cached"}


async def test_the_slope_between_the_sizes_is_what_a_token_costs() -> None:
    rig = Rig(TARGET, m=expiring(3000))
    rig.ollama.generate = counting(rig.clock)
    await rig.prober.turn()
    assert rig.value("probe_prefill_seconds_per_token") == pytest.approx(0.001)
    assert rig.value("probe_prefill_fixed_seconds") == pytest.approx(0.1)
    assert rig.value("probe_cached_saving_seconds") == pytest.approx(0.0)


async def test_the_repeated_prompt_has_no_prefill_rate_where_the_server_does_not_tell_what_was_cached() -> None:
    rig = Rig(TARGET, m=expiring(3000))
    rig.ollama.generate = counting(rig.clock)
    await rig.prober.turn()
    assert rig.value("probe_prefill_tokens_per_second", prompt="large") == pytest.approx(1000)
    assert rig.value("probe_prefill_tokens_per_second", prompt="cached") is None


@pytest.mark.parametrize(("context", "tokens"), [(4096, 2000), (1024, 793), (300, None)])
async def test_a_large_prompt_fits_in_the_context_or_is_left_out(context: int, tokens: int | None) -> None:
    rig = Rig(TARGET, m=expiring(3000, context_length=context))
    rig.ollama.generate = counting(rig.clock)
    for _ in range(2):
        await rig.prober.turn()
    large = rig.prober.last.get(("m", "large"))
    assert (large and large.prompt_tokens) == (tokens and pytest.approx(tokens, rel=0.05))
    assert ("m", "cached") in rig.prober.last


async def test_a_failure_ends_the_turn_of_a_model() -> None:
    rig = Rig(TARGET, m=expiring(300))
    await rig.prober.turn()  # the large prompt is answered with a count of 200 tokens
    assert rig.prober.last["m", "large"].reason is Reason.TRUNCATED_PROMPT
    assert len(rig.ollama.asked) == 3
    assert rig.value("probe_prefill_seconds_per_token") is None


async def test_a_model_that_left_memory_takes_its_gauges_along_but_not_its_history() -> None:
    rig = Rig(m=expiring(300))
    await rig.prober.turn()
    assert rig.value("probe_decode_tokens_per_second", prompt="small") == pytest.approx(50)
    assert rig.value("probe_phase_seconds", prompt="small", phase="prefill") == pytest.approx(0.1)
    del rig.ollama.models["m"]
    await rig.prober.turn()
    assert rig.value("probe_decode_tokens_per_second", prompt="small") is None
    assert rig.value("probe_phase_seconds", prompt="small", phase="prefill") is None
    assert rig.value("probe_time_to_first_token_seconds_count", prompt="small") == 1
    assert rig.prober.last == {}


async def test_a_server_that_is_down_takes_the_gauges_along_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig(m=expiring(300))
    await rig.prober.turn()
    rig.ollama.down = True
    await rig.prober.turn()
    await rig.prober.turn()
    assert rig.value("probe_decode_tokens_per_second", prompt="small") is None
    rig.ollama.down = False
    await rig.prober.turn()
    told = [record.getMessage() for record in caplog.records if record.name.startswith("exporter")]
    assert len(told) == 2
    assert "not probed: cannot connect" in told[0]
    assert told[1] == "target box: probed again"


async def test_a_failing_model_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig(m=expiring(300))
    good = rig.ollama.generate
    await rig.prober.turn()
    rig.ollama.generate = answer(rig.clock, [(0.1, line("a"))])
    await rig.prober.turn()
    await rig.prober.turn()
    rig.ollama.generate = good
    await rig.prober.turn()
    told = [record.getMessage() for record in caplog.records if record.name.startswith("exporter")]
    assert len(told) == 2
    assert "model m: probe failed" in told[0]
    assert told[1] == "target box, model m: probes are good again"
    assert rig.value("probe_failures_total", reason=Reason.TRUNCATED_STREAM) == 2


async def test_turns_come_at_the_interval_give_or_take_a_tenth() -> None:
    rig = Rig(probed(interval=100.0, kinds=("small",), max_share=1.0), m=expiring(10_000))
    await rig.run_until(probes=5)
    assert 0 <= rig.sleeps[0] <= 10
    gaps = [after - before for before, after in pairwise(rig.starts[1:])]
    assert all(89 <= gap <= 111 for gap in gaps)
    assert len(set(gaps)) == len(gaps)


@pytest.mark.parametrize(("max_share", "lasting"), [(0.01, 5.0), (0.1, 5.0), (0.5, 60.0), (0.01, 1.0)])
async def test_slow_probes_come_so_seldom_that_they_keep_to_their_share(max_share: float, lasting: float) -> None:
    rig = Rig(probed(interval=10.0, kinds=("small",), max_share=max_share), m=expiring(1e7))
    await rig.run_until(probes=6, lasting=lasting)
    assert all(after - before >= lasting / max_share for before, after in pairwise(rig.starts[1:]))
    share = rig.share()
    assert share is not None
    assert 0.9 * max_share < share <= max_share + 1e-9


async def test_a_quick_probe_uses_less_than_its_share() -> None:
    rig = Rig(probed(interval=1000.0, kinds=("small",)), m=expiring(1e7))
    await rig.run_until(probes=4)
    share = rig.share()
    assert share is not None
    assert share < 0.001


async def test_a_wait_for_ones_turn_is_not_the_servers_time() -> None:
    rig = Rig(probed(interval=10.0, kinds=("small",), max_share=0.1), m=expiring(1e7))
    quick = [(20.0, line("a")), (0.02, line("b")), (0.02, line("c")), (0.02, line("d")), (0.0, done())]
    rig.ollama.generate = answer(rig.clock, quick)
    assert await rig.prober.turn() == pytest.approx(2 * (0.1 + 0.001 + 0.06))


async def test_a_server_that_hangs_is_asked_again_as_soon_as_if_it_did_not() -> None:
    rig = Rig(probed(kinds=("small",), first_token_timeout=0.05), m=expiring(1e7))
    good = rig.ollama.generate
    await rig.prober.turn()
    worked = await rig.prober.turn()

    async def hang(request: httpx.Request) -> httpx.Response:
        response = await good(request)
        rig.clock.now += 30.0
        await asyncio.Event().wait()
        return response

    rig.ollama.generate = hang
    assert await rig.prober.turn() == pytest.approx(worked)
    assert rig.prober.last["m", "small"].reason is Reason.TIMEOUT_FIRST_TOKEN
    assert rig.prober.last["m", "small"].waited == pytest.approx(30.0)
