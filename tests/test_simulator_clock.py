"""The clocks of the simulation, and the driver that runs an engine on one."""

from __future__ import annotations

import asyncio
import time

import pytest

from exporter.simulator.cache import PagedCache
from exporter.simulator.clock import ManualClock, RealClock
from exporter.simulator.driver import Driver
from exporter.simulator.engine import Engine, Limits, Step
from exporter.simulator.truth import Ledger, Record
from tests.test_simulator_engine import DEVICE, MODEL, prompt


async def test_a_manual_clock_wakes_sleepers_in_the_order_of_their_deadlines() -> None:
    clock, woken = ManualClock(), []

    async def sleeper(at: float) -> None:
        await clock.sleep_until(at)
        woken.append((at, clock.now()))

    async with asyncio.TaskGroup() as tasks:
        for at in (3.0, 1.0, 2.0, 7.0):
            tasks.create_task(sleeper(at))
        await clock.advance(5.0)
        assert woken == [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]
        assert clock.now() == 5.0
        await clock.advance(2.0)
    assert woken[-1] == (7.0, 7.0)


async def test_a_manual_clock_runs_work_to_its_end_without_waiting() -> None:
    clock = ManualClock(unix=1000.0)

    async def work() -> str:
        for _ in range(100):
            await clock.sleep_until(clock.now() + 3600.0)
        return "done"

    began = time.monotonic()
    assert await clock.run(work()) == "done"
    assert clock.now() == 360_000.0
    assert clock.unix(clock.now()) == 361_000.0
    assert time.monotonic() - began < 5.0


async def test_an_accelerated_clock_runs_so_many_times_faster() -> None:
    clock = RealClock(speed=1000.0)
    began = time.monotonic()
    await clock.sleep_until(clock.now() + 20.0)
    elapsed = time.monotonic() - began
    assert 0.02 <= elapsed < 1.0
    assert clock.now() >= 20.0
    assert clock.unix(1000.0) - clock.unix(0.0) == pytest.approx(1.0, abs=1e-3)


def test_a_clock_does_not_stand_still_or_go_back() -> None:
    with pytest.raises(ValueError, match="speed must be above 0"):
        RealClock(speed=0.0)


class Stage:
    """A driver on a manual clock, and what it told its observers."""

    def __init__(self, **limits: int) -> None:
        self.clock = ManualClock()
        self.ledger = Ledger()
        self.steps: list[Step] = []
        self.ended: list[Record] = []
        engine = Engine(DEVICE, MODEL, PagedCache(100, 16), Limits(**limits))
        self.driver = Driver(engine, self.clock, self.ledger, self.steps.append, self.ended.append)

    async def __aenter__(self) -> Stage:
        self.task = asyncio.create_task(self.driver.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_tokens_reach_the_reader_when_their_step_is_over_and_not_before() -> None:
    async with Stage() as stage:
        stream = stage.driver.submit(prompt(10), max_tokens=2)
        await stage.clock.advance(0.0264)
        first = asyncio.create_task(stream.next())
        await stage.clock.advance(0.0)
        assert not first.done()
        await stage.clock.advance(0.0002)
        assert (await first).at == pytest.approx(0.0265)
        second = await stage.clock.run(stream.next())
        assert second.at == pytest.approx(0.0386)
        assert second.finished == "length"
        assert [len(step.outputs) for step in stage.steps] == [1, 1]
        assert stage.ended == [stream.record] == list(stage.ledger.records)


async def test_an_engine_that_was_idle_begins_when_a_request_arrives() -> None:
    async with Stage() as stage:
        await stage.clock.advance(50.0)
        stream = stage.driver.submit(prompt(10), max_tokens=1)
        assert await stage.clock.run(stream.answer()) == stream.sequence.generated
        assert stream.record.queue == 0.0
        assert stream.record.first_token == pytest.approx(50.0265)
        assert not stage.driver.busy


async def test_a_request_that_is_aborted_ends_at_once_and_the_others_go_on() -> None:
    async with Stage() as stage:
        leaver, stayer = (stage.driver.submit(prompt(10, 50 * index), max_tokens=20) for index in range(2))
        await stage.clock.advance(0.1)
        stage.driver.abort(leaver)
        tokens = leaver.record.output_tokens
        assert await stage.clock.run(leaver.answer()) is None
        assert await stage.clock.run(stayer.answer()) is not None
        assert leaver.record.output_tokens == tokens < 20
        assert [record.reason for record in stage.ended] == ["abort", "length"]


async def test_when_the_engine_dies_every_request_ends_with_an_error_and_the_owner_sees_why() -> None:
    async with Stage() as stage:
        stream = stage.driver.submit(prompt(10), max_tokens=5)

        def broken(now: float) -> Step | None:
            raise ZeroDivisionError("no such kernel")

        stage.driver.engine.step = broken  # type: ignore[method-assign]  # the peer that fails
        assert await stage.clock.run(stream.answer()) is None
        assert stream.record.reason == "error"
        with pytest.raises(ZeroDivisionError):
            await stage.task


def test_a_record_says_what_has_not_happened_yet() -> None:
    record = Record(7, arrival=1.0, prompt_tokens=3, max_tokens=5)
    for name, what in (("ttft", "first token"), ("queue", "admission"), ("decode", "first token"), ("e2e", "end")):
        with pytest.raises(ValueError, match=f"request 7 has had no {what}"):
            getattr(record, name)
    assert record.gaps == []
