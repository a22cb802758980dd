"""Targets that come, go, hang and fail, seen through /metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from exporter.config import DEFAULT_LISTEN, Config, Target
from exporter.model import Snapshot
from exporter.state import TargetState
from tests.peers import (
    PREEMPTED,
    TWO_ENGINES,
    Engine,
    Ollama,
    free_port,
    http,
    request,
    saying,
    serving,
    talking,
    target,
)
from tests.running import running, samples


def config(*engines: Engine, discovered: bool = False) -> Config:
    """Return a configuration with the engines as targets t0, t1, ..."""
    targets = tuple(target(engine.url, name=f"t{number}") for number, engine in enumerate(engines))
    return Config(DEFAULT_LISTEN, targets, discovered)


@pytest.fixture
async def three() -> AsyncIterator[tuple[Engine, Engine, Engine]]:
    async with AsyncExitStack() as stack:
        first, second, third = [
            await stack.enter_async_context(serving(Engine(text))) for text in (Engine().text, PREEMPTED, TWO_ENGINES)
        ]
        yield first, second, third


async def test_every_target_is_read_and_its_series_say_whose_they_are(three: tuple[Engine, ...]) -> None:
    async with running(config(*three)) as exporter:
        assert await exporter.series("vitals_target_up") == {"t0": 1, "t1": 1, "t2": 1}
        assert await exporter.series("vitals_target_info", version="0.32.0") == {"t0": 1, "t1": 1, "t2": 1}
        running_by_engine = [
            (sample.labels["target"], sample.labels["engine"])
            for sample in await exporter.metrics()
            if sample.name == "vitals_requests_running"
        ]
    assert running_by_engine == [("t0", "0"), ("t1", "0"), ("t2", "0"), ("t2", "1")]


async def test_scrapers_that_come_during_a_reading_share_it_and_their_timeout_counts_once(
    three: tuple[Engine, ...],
) -> None:
    slow = three[0]
    slow.hold = asyncio.Event()
    async with running(config(slow)) as exporter:
        await slow.arrived.wait()
        ups = await asyncio.gather(*(exporter.series("vitals_target_up", within="1") for _ in range(5)))
        assert ups == [{"t0": 0}] * 5
        assert slow.asked == {"/metrics": 1}
        slow.hold.set()
        await exporter.until(lambda found: any(s.name == "vitals_target_up" and s.value == 1 for s in found))
        assert await exporter.series("vitals_scrape_failures_total", reason="timeout") == {"t0": 1}


async def test_each_scrape_that_says_down_has_counted_why_and_the_first_has_logged_it(
    three: tuple[Engine, ...], caplog: pytest.LogCaptureFixture
) -> None:
    slow = three[0]
    slow.hold = asyncio.Event()
    async with running(config(slow)) as exporter:
        for timeouts in (1, 2):
            found = {(s.name, s.labels.get("reason")): s.value for s in await exporter.metrics(within="0.2")}
            assert found["vitals_target_up", None] == 0
            assert found["vitals_scrape_failures_total", "timeout"] == timeouts
            assert (await exporter.get("/-/ready"))[0] == 200
        assert slow.asked == {"/metrics": 1}
        said = "target t0 did not answer within the 0.16 s that it was waited for; is a scrape_timeout too short?"
        assert caplog.messages == [said]
        slow.hold.set()
        slow.hold = None
        assert await exporter.series("vitals_target_up") == {"t0": 1}
        assert await exporter.series("vitals_target_up") == {"t0": 1}  # a reading that was in time
        slow.hold = asyncio.Event()
        assert await exporter.series("vitals_target_up", within="0.2") == {"t0": 0}
        assert caplog.messages == [said] * 2


async def test_who_waits_for_a_reading_is_not_bound_to_the_time_of_who_began_it(three: tuple[Engine, ...]) -> None:
    slow = three[0]
    async with running(config(slow)) as exporter:
        await exporter.tried()
        slow.hold = asyncio.Event()
        slow.arrived.clear()
        hasty = asyncio.create_task(exporter.series("vitals_target_up", within="0.5"))
        await slow.arrived.wait()
        patient = asyncio.create_task(exporter.series("vitals_target_up", within="10"))
        assert await hasty == {"t0": 0}
        slow.hold.set()
        assert await patient == {"t0": 1}
        assert slow.asked["/metrics"] == 2


async def test_a_slow_target_is_down_alone_and_within_the_scrapers_time(three: tuple[Engine, ...]) -> None:
    slow = three[1]
    async with running(config(*three)) as exporter:
        await exporter.tried()
        slow.hold = asyncio.Event()
        async with asyncio.timeout(2.0):
            _, _, text = await exporter.get("/metrics", X_Prometheus_Scrape_Timeout_Seconds="2")
        ups = {sample.labels["target"]: sample.value for sample in samples(text) if sample.name == "vitals_target_up"}
        assert ups == {"t0": 1, "t1": 0, "t2": 1}
        slow.hold.set()
        timeouts = await exporter.series("vitals_scrape_failures_total", reason="timeout")
    assert timeouts == {"t0": 0, "t1": 1, "t2": 0}


@pytest.mark.parametrize(
    ("backend", "remedy"),
    [("vllm", "within 0.1 s; is it overloaded?"), ("ollama", "did not answer in time; raise `timeout`")],
)
async def test_a_targets_own_timeout_counts_where_it_is_shorter_and_brings_its_remedy(
    backend: str, remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with talking(silent) as url, asyncio.timeout(5):
        short = Config(DEFAULT_LISTEN, (target(url, name="t0", backend=backend, timeout=0.1),))
        async with running(short) as exporter:
            assert await exporter.series("vitals_target_up", within="60") == {"t0": 0}
    assert remedy in caplog.text


async def test_what_a_target_told_is_gone_with_it_and_comes_back_with_it(
    three: tuple[Engine, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "exporter")
    engine = three[0]
    async with running(config(*three[:2])) as exporter:
        good = await exporter.names("t0")
        assert "vitals_kv_cache_usage_ratio" in good
        engine.status = 503
        for failures in (1, 2):
            assert await exporter.names("t0") < good
            assert not {name for name in await exporter.names("t0") if "kv_cache" in name or "token" in name}
            counted = await exporter.series("vitals_scrape_failures_total", reason="http_status")
            assert counted["t0"] == 3 * failures
        assert await exporter.series("vitals_target_up") == {"t0": 0, "t1": 1}
        engine.status = 200
        assert await exporter.names("t0") == good
    said = [record.getMessage() for record in caplog.records if "target t0" in record.getMessage()]
    up = f"target t0 is up: vllm 0.32.0 at {engine.url}"
    assert [line.partition(": HTTP")[0] for line in said] == [up, "target t0 is down (http_status)", up]


async def test_the_reason_is_counted_for_each_way_to_fail() -> None:
    refused = target(f"http://127.0.0.1:{await free_port()}", name="refused")
    async with talking(saying(b"")) as cut, talking(saying(b"SSH-2.0\r\n")) as other:
        targets = (refused, target(cut, name="cut"), target(other, name="other"))
        async with running(Config(DEFAULT_LISTEN, targets)) as exporter:
            await exporter.tried()
            found = {
                (sample.labels["target"], sample.labels["reason"])
                for sample in await exporter.metrics()
                if sample.name == "vitals_scrape_failures_total" and sample.value == 2
            }
    assert found == {("refused", "connect"), ("cut", "truncated"), ("other", "protocol")}


async def test_all_reasons_are_there_from_the_start_so_that_the_first_failure_is_an_increase(
    three: tuple[Engine, ...],
) -> None:
    async with running(config(three[0])) as exporter:
        zero = [s for s in await exporter.metrics() if s.name == "vitals_scrape_failures_total"]
    assert len(zero) > 10
    assert all(sample.value == 0 for sample in zero)


class Buggy:
    """A reader with a bug."""

    backend = "vllm"

    async def read(self, deadline_s: float) -> Snapshot:
        raise KeyError("a bug")

    async def close(self) -> None:
        """Hold nothing."""


async def test_a_bug_in_reading_one_target_harms_no_other(
    three: tuple[Engine, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async with running(config(*three)) as exporter:
        await exporter.tried()
        exporter.app.states["t1"] = TargetState(exporter.app.states["t1"].target, Buggy())
        assert await exporter.series("vitals_target_up") == {"t0": 1, "t1": 0, "t2": 1}
        assert (await exporter.series("vitals_scrape_failures_total", reason="internal"))["t1"] == 2
    assert caplog.text.count("KeyError: 'a bug'") == 1


@pytest.mark.parametrize("said", ['"\\ud800"', '"a\\u0000\\nvitals_x 1"', f'"{"a" * 10**6}"'])
@pytest.mark.parametrize("where", ["version", "name", "family"])
async def test_what_one_server_says_in_words_costs_no_other_its_series(where: str, said: str) -> None:
    texts = {"version": '"1"', "name": '"m"', "family": '"f"', where: said}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await request(reader)).startswith("GET /api/version"):
            body = f'{{"version": {texts["version"]}}}'
        else:
            body = f'{{"models": [{{"name": {texts["name"]}, "details": {{"family": {texts["family"]}}}}}]}}'
        writer.write(http(body.encode()))

    async with talking(answer) as url, serving(Engine()) as engine:
        targets = (target(url, name="odd", backend="ollama"), target(engine.url, name="t1"))
        async with running(Config(DEFAULT_LISTEN, targets)) as exporter:
            assert (await exporter.series("vitals_target_up"))["t1"] == 1
            _, _, text = await exporter.get("/metrics")
            assert len(max(text.split("\n"), key=len)) < 1000
            assert "vitals_x 1" not in text
            assert (await exporter.get("/"))[0] == 200


# --- nothing configured ----------------------------------------------------------------------------------------


async def test_a_place_where_nothing_was_found_has_no_series_until_something_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "exporter")
    engine = Engine()
    engine.status = 404
    async with serving(engine), running(config(engine, discovered=True)) as exporter:
        assert await exporter.names("t0") == set()
        assert await exporter.names("t0") == set()
        engine.status = 200
        assert await exporter.series("vitals_target_up") == {"t0": 1}
        engine.status = 404
        assert await exporter.series("vitals_target_up") == {"t0": 0}
    looked = [record for record in caplog.records if "looked for vllm" in record.getMessage()]
    assert [record.levelname for record in looked] == ["INFO"]


async def test_what_was_found_is_probed_and_what_is_missing_is_not() -> None:
    async with serving(Ollama()) as ollama, serving(Engine()) as vllm:
        targets = (
            Target("there", ollama.url, "ollama"),
            Target("auto", ollama.url),
            Target("other", vllm.url),
            Target("gone", f"http://127.0.0.1:{await free_port()}", "ollama"),
        )
        async with running(Config(DEFAULT_LISTEN, targets, discovered=True)) as exporter:
            await exporter.tried()
            found = {"there", "auto", "other"}
            assert (await exporter.series("vitals_target_up")).keys() == found
            await exporter.until(
                lambda _: {name for name, state in exporter.app.states.items() if state.prober} == found
            )
            backends = {s.labels["backend"] for s in await exporter.metrics() if s.labels.get("target") == "auto"}
    assert backends == {"ollama"}


async def test_the_exporter_ends_at_once_although_a_target_hangs() -> None:
    engine = Engine()
    engine.hold = asyncio.Event()
    async with serving(engine), asyncio.timeout(5), running(config(engine)):
        await engine.arrived.wait()
