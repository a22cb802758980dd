"""The simulation's time: real, faster than real, or moved by a test's hand."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Awaitable
from typing import Protocol, TypeVar

T = TypeVar("T")

_TURNS = 8
"""Turns of the event loop that let a woken task reach its next sleep; sockets get their reads in between."""


class Clock(Protocol):
    """Simulated seconds since an arbitrary start, and the Unix time that a client would call them."""

    def now(self) -> float:
        """Return simulated seconds; they never go back."""
        ...

    def unix(self, at: float) -> float:
        """Return the Unix time, in seconds, at which `now()` is `at`."""
        ...

    async def sleep_until(self, at: float) -> None:
        """Return when `now()` has reached `at`, after giving other tasks a turn at least once."""
        ...


class RealClock:
    """The machine's own clock, `speed` times as fast; 1 is real time."""

    def __init__(self, speed: float = 1.0) -> None:
        if speed <= 0:
            raise ValueError(f"speed must be above 0, got {speed}")
        self.speed = speed
        self._monotonic = time.monotonic()
        self._unix = time.time()

    def now(self) -> float:
        """Return simulated seconds since this clock was made."""
        return (time.monotonic() - self._monotonic) * self.speed

    def unix(self, at: float) -> float:
        """Return the wall time of simulated second `at`: at speed 10 it lies a tenth as far away."""
        return self._unix + at / self.speed

    async def sleep_until(self, at: float) -> None:
        """Sleep what is left; a deadline that has passed costs one turn of the loop."""
        await asyncio.sleep(max(0.0, (at - self.now()) / self.speed))


class ManualClock:
    """A clock that stands still until a test moves it; sleepers wake in the order of their deadlines."""

    def __init__(self, unix: float = 1_700_000_000.0) -> None:
        self._now = 0.0
        self._unix = unix
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def now(self) -> float:
        """Return simulated seconds since this clock was made."""
        return self._now

    def unix(self, at: float) -> float:
        """Return the Unix time given at the start plus `at`."""
        return self._unix + at

    async def sleep_until(self, at: float) -> None:
        """Wait until a test has moved the clock to `at`."""
        if at <= self._now:
            await asyncio.sleep(0)
            return
        self._count += 1
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (at, self._count, woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Move the clock, stopping at each deadline on the way so that whoever wakes there can act."""
        target = self._now + seconds
        await _turns()
        while self._sleepers and self._sleepers[0][0] <= target:
            await self._wake_next()
        self._now = target
        await _turns()

    async def run(self, work: Awaitable[T]) -> T:
        """Move the clock from deadline to deadline until `work` is done, and return its result.

        While nobody sleeps the clock stands still and the loop turns, so that bytes on sockets arrive.
        """
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await _turns()
                if self._sleepers and not task.done():
                    await self._wake_next()
        finally:
            if not task.done():
                task.cancel()
        return await task

    async def _wake_next(self) -> None:
        at, _, woken = heapq.heappop(self._sleepers)
        if not woken.done():
            self._now = max(self._now, at)
            woken.set_result(None)
            await _turns()


async def _turns() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)
