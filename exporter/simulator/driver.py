"""Gives an engine a clock: one task steps it, waits as long as each step takes and hands out what it brought."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from exporter.simulator.clock import Clock
from exporter.simulator.engine import Engine, Sequence, Step
from exporter.simulator.truth import FinishReason, Ledger, Record


@dataclass(frozen=True, slots=True)
class Update:
    """New tokens of one request; `finished` says why it ended, with the last of them or without any."""

    at: float
    tokens: list[int]
    finished: FinishReason | None


class Stream:
    """What a request's owner reads: updates in order until one is finished."""

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self._updates: deque[Update] = deque()
        self._reader: asyncio.Future[None] | None = None

    @property
    def record(self) -> Record:
        """The truth about this request."""
        return self.sequence.record

    async def next(self) -> Update:
        """Return the next update; only one reader may wait."""
        while not self._updates:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self._updates.popleft()

    async def answer(self) -> list[int] | None:
        """Wait for the end and return all tokens, or None if it was cut short."""
        while (update := await self.next()).finished is None:
            pass
        return self.sequence.generated if update.finished in ("stop", "length") else None

    def put(self, update: Update) -> None:
        """Add an update and wake the reader."""
        self._updates.append(update)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class Driver:
    """Runs an engine on a clock; `observe` is called with each step when it ends, and `observe_end` with each request.

    While requests are there, a step starts when the one before it ended and not when this process got
    round to it, so that simulated times do not depend on how busy the machine is.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        ledger: Ledger,
        observe: Callable[[Step], None] = lambda step: None,
        observe_end: Callable[[Record], None] = lambda record: None,
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.ledger = ledger
        self._observe = observe
        self._observe_end = observe_end
        self._streams: dict[Sequence, Stream] = {}
        self._wake = asyncio.Event()

    def submit(self, prompt: list[int], max_tokens: int, stop_after: int | None = None) -> Stream:
        """Queue a request as of now; its updates come through the stream returned."""
        sequence = self.engine.add(prompt, max_tokens, self.clock.now(), stop_after)
        self.ledger.records.append(sequence.record)
        stream = Stream(sequence)
        self._streams[sequence] = stream
        self._wake.set()
        return stream

    def abort(self, stream: Stream, reason: FinishReason = "abort") -> None:
        """End a request before its time; nothing happens if it has ended, or ends with the step under way."""
        now = self.clock.now()
        if self.engine.abort(stream.sequence, now, reason):
            del self._streams[stream.sequence]
            self._observe_end(stream.record)
            self._observe(self.engine.state(now))
            stream.put(Update(now, [], reason))

    def fail(self) -> None:
        """End every request with an error, as when the process that computes them dies."""
        for stream in list(self._streams.values()):
            self.abort(stream, "error")

    @property
    def busy(self) -> bool:
        """Whether any request is queued or running, or its last step not yet over."""
        return bool(self._streams)

    async def run(self) -> None:
        """Step the engine for ever; the task's owner cancels it.  If the engine breaks, all requests end."""
        try:
            await self._run()
        except Exception:
            self.fail()
            raise

    async def _run(self) -> None:
        free_at = self.clock.now()
        while True:
            step = self.engine.step(max(free_at, self._started()))
            if step is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            free_at = step.end
            await self.clock.sleep_until(step.end)
            self._publish(step)

    def _started(self) -> float:
        """Return when the work there is could begin: at the first arrival if the engine was idle before it."""
        if self.engine.running:
            return 0.0
        return min((sequence.record.arrival for sequence in self.engine.waiting), default=0.0)

    def _publish(self, step: Step) -> None:
        step.outputs = [output for output in step.outputs if output.sequence in self._streams]  # not aborted since
        self._observe(step)
        for output in step.outputs:
            stream = self._streams[output.sequence]
            record = stream.record
            start = record.prompt_tokens + record.output_tokens - output.tokens
            tokens = output.sequence.held.tokens[start : start + output.tokens]
            if output.finished:
                del self._streams[output.sequence]
                self._observe_end(record)
            stream.put(Update(step.end, tokens, record.reason if output.finished else None))
