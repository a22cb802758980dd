"""When a prober asks and what it counts, under a fake clock and against a scripted Ollama."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise

import httpx
import pytest

from exporter.probe.result import Reason
from tests.ollama_fakes import TARGET, Rig, answer, done, expiring, line, probed


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


async def test_a_failure_ends_the_turn_of_a_model() -> None:
    rig = Rig(TARGET, m=expiring(300))
    await rig.prober.turn()  # the large prompt is answered with a count of 200 tokens
    assert rig.prober.last["m", "large"].reason is Reason.TRUNCATED_PROMPT
    assert len(rig.ollama.asked) == 3
    assert rig.value("probe_prefill_seconds_per_token") is None


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
