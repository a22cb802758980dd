"""What is kept of one target between two readings: the reading in flight, the last one, counters and history."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from exporter.backends.table import RENAMED
from exporter.config import Target
from exporter.model import Outcome, Sample, Snapshot
from exporter.physics.watch import Watch
from exporter.relay.engine import Reader
from exporter.relay.render import render
from exporter.vitals import History, Vitals

if TYPE_CHECKING:
    from exporter.probe.schedule import Prober
    from exporter.proxy.observing import ObservingProxy

log = logging.getLogger(__name__)

CONTEXT = "vitals_model_context_length_tokens"

FAILURES = tuple(outcome for outcome in Outcome if outcome is not Outcome.OK)

DROP_REASONS = ("not_finite", "inconsistent_histogram", "duplicate", "unit")
"""Why a sample is withheld.  All reasons are exported from the start, so that the first one is an increase."""


SLACK = 0.1
"""Seconds beyond a reading's own deadline that are waited for it to say itself how it ended, and what helps."""


class TargetState:
    """One target: polls it, at most one poll at a time, and counts what went wrong.

    `wanted` is false for a place that is only looked at (nothing was configured) and has not answered yet;
    `tried` says whether anybody was told an outcome yet, `last` is the last reading that ended.
    `prober` is set where the target is probed, `proxy` where its users' traffic is observed.
    """

    def __init__(
        self, target: Target, reader: Reader, wanted: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.target = target
        self.reader = reader
        self.wanted = wanted
        self.tried = False
        self.last: Snapshot | None = None
        self.prober: Prober | None = None
        self.proxy: ObservingProxy | None = None
        self.watch = Watch(target)
        self._judging = True
        self._clock = clock
        self._history = History()
        self._failures: Counter[str] = Counter()
        self._bad_lines = 0
        self._dropped: Counter[str] = Counter()
        self._lasting: tuple[object, dict[str, str]] | None = None
        self._flight: asyncio.Task[Snapshot] | None = None
        self._too_short: float | None = None

    @property
    def backend(self) -> str:
        """The engine's name, "unknown" before it was found out."""
        return self.reader.backend

    async def poll(self, wait_s: float) -> Snapshot:
        """Read the target, joining a reading that is in flight; wait at most `wait_s` seconds.

        A reading has the target's own `timeout`, however short or long those wait who share it.  Who does not wait
        for its end is told a timeout.  Whatever fault is told is counted, once for all who are told it together.
        """
        counted = self._failures.copy()
        if self._flight is None:
            self._flight = asyncio.create_task(self._read(), name=f"read {self.target.name}")
            self._flight.add_done_callback(self._landed)
        flight = self._flight
        await asyncio.wait({flight}, timeout=wait_s if wait_s < self.target.timeout else wait_s + SLACK)
        if flight.done() and not flight.cancelled():
            snapshot = flight.result()
        else:
            snapshot = self._failed(Outcome.TIMEOUT, f"no complete answer within {wait_s:.3g} s", wait_s)
            if not flight.done():
                self._log_too_short(wait_s)
        why = snapshot.outcome
        if not snapshot.up and self._failures[why] == counted[why]:
            self._failures[why] += 1
        self.tried = True
        return snapshot

    async def close(self) -> None:
        """Give up a reading in flight, and let go of what the reader holds open."""
        if self._flight is not None:
            self._flight.cancel()
            await asyncio.wait({self._flight})
        await self.reader.close()

    @property
    def failures(self) -> int:
        """How many readings have failed; more of them than before may mean that the engine was started anew."""
        return self._failures.total()

    def vitals(self) -> Vitals | None:
        """Return the five numbers of the last reading; None if it was not a good one."""
        if self.last is None or (self.last.readings is None and self.proxy is None):
            return None
        return self._history.vitals(self._clock(), self._samples(self.last))

    def contexts(self) -> Mapping[str, float]:
        """Return the context length in tokens of each model in memory, as the last reading told it."""
        samples = self.last.readings.samples() if self.last is not None and self.last.readings is not None else ()
        return {sample.labels[0][1]: sample.value for sample in samples if sample.family == CONTEXT}

    def blocks(self, snapshot: Snapshot) -> Mapping[str, str]:
        """Return the lines to export for a reading: the engine's numbers and ours about it."""
        if not self.wanted:
            return {}
        observed = {} if self.proxy is None else self.proxy.blocks(snapshot.backend)
        if self.target.proxy.only:
            return observed
        blocks = {**self._own(snapshot), **self.watch.blocks(), **observed}
        if snapshot.readings is not None:
            blocks.update(snapshot.readings.blocks())  # What an engine reports itself comes before what we observe.
        return blocks

    def _samples(self, snapshot: Snapshot) -> Sequence[Sample]:
        """Return the numbers of `blocks` that are not about the reading itself."""
        own = snapshot.readings.samples() if snapshot.readings is not None else ()
        if self.proxy is None:
            return own
        told = {sample.family for sample in own}
        return [*own, *(sample for sample in self.proxy.samples() if sample.family not in told)]

    def _landed(self, flight: asyncio.Task[Snapshot]) -> None:
        self._flight = None

    async def _read(self) -> Snapshot:
        deadline_s = self.target.timeout
        try:
            async with asyncio.timeout(deadline_s + SLACK / 2):
                snapshot = await self.reader.read(deadline_s)
        except TimeoutError:
            snapshot = self._failed(Outcome.TIMEOUT, f"no complete answer within {deadline_s:.3g} s", deadline_s)
        except Exception:  # A bug of ours must be seen, and must not take the other targets' series with it.
            if self.last is None or self.last.outcome is not Outcome.INTERNAL:
                log.exception("reading target %s failed", self.target.name)
            snapshot = self._failed(Outcome.INTERNAL, "llm-vitals failed while reading this target; see its log")
        self._record(snapshot)
        return snapshot

    def _failed(self, outcome: Outcome, detail: str, duration: float = 0.0) -> Snapshot:
        return Snapshot(self.target.name, self.backend, outcome, time.time(), duration, detail)

    def _record(self, snapshot: Snapshot) -> None:
        before, self.last = self.last, snapshot
        if self._too_short is not None and snapshot.up and snapshot.duration < self._too_short:
            self._too_short = None
        if snapshot.readings is not None:
            self.wanted = True
            if self._history.due(self._clock()):
                self._history.add(self._clock(), self._samples(snapshot))
        if self._judging and self.watch.due(snapshot.at):
            self._judge(snapshot)
        self._bad_lines += snapshot.report.bad_line_count
        self._dropped.update(snapshot.report.dropped)
        if before is None or before.outcome != snapshot.outcome:
            self._log(snapshot)

    def _judge(self, snapshot: Snapshot) -> None:
        try:
            self.watch.observe(snapshot, self._samples(snapshot), self.prober.last if self.prober else {})
        except Exception:  # A bug there must be seen, and must cost no more than the verdict.
            log.exception("judging target %s failed; it gets no verdict until the next reload", self.target.name)
            self.watch, self._judging = Watch(self.target), False

    def _log(self, snapshot: Snapshot) -> None:
        name = self.target.name
        if snapshot.up:
            log.info("target %s is up: %s %s at %s", name, snapshot.backend, snapshot.version, self.target.url)
        elif self.wanted:
            log.warning("target %s is down (%s): %s", name, snapshot.outcome, snapshot.detail)
        else:
            log.info("looked for %s at %s: %s", self.target.backend, self.target.url, snapshot.detail)

    def _log_too_short(self, wait_s: float) -> None:
        """Say once that somebody was told a timeout of a reading that goes on, until one would have been in time."""
        if self._too_short is None and self.wanted:
            text = "target %s did not answer within the %.3g s that it was waited for; is a scrape_timeout too short?"
            log.warning(text, self.target.name, wait_s)
        self._too_short = wait_s

    def _own(self, snapshot: Snapshot) -> dict[str, str]:
        """Return our own lines about a reading; those that seldom change are kept as text."""
        report = snapshot.report
        counts = self._bad_lines + self._dropped.total() + self._failures.total()
        key = (snapshot.backend, snapshot.version, counts, report.sources, report.unknown)
        if self._lasting is None or self._lasting[0] != key:
            self._lasting = (key, self._render(snapshot, self._lasting_samples(snapshot)))
        passing = [_one("target_up", snapshot.up), _one("scrape_duration_seconds", snapshot.duration)]
        if snapshot.size:
            passing.append(_one("scrape_size_bytes", snapshot.size))
        return self._lasting[1] | self._render(snapshot, passing)

    def _render(self, snapshot: Snapshot, samples: list[Sample]) -> dict[str, str]:
        return render(self.target.name, snapshot.backend, samples)

    def _lasting_samples(self, snapshot: Snapshot) -> list[Sample]:
        samples = [
            _one("target_info", 1, ("version", snapshot.version), ("url", self.target.url)),
            _one("scrape_bad_lines_total", self._bad_lines),
            *(_one("scrape_failures_total", self._failures[why], ("reason", why)) for why in FAILURES),
            *(_one("scrape_dropped_samples_total", self._dropped[why], ("reason", why)) for why in DROP_REASONS),
        ]
        if snapshot.report.sources:
            samples.append(_one("unmapped_families", len(snapshot.report.unknown)))
        for family, source in snapshot.report.sources:
            if family in RENAMED:
                samples.append(_one("family_source_info", 1, ("family", family), ("source", source)))
        return samples


def _one(family: str, value: float, *labels: tuple[str, str]) -> Sample:
    return Sample(f"vitals_{family}", f"vitals_{family}", labels, repr(float(value)))
