"""What the probes of a model say to the verdict, and whether one was alone on the server."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from exporter.physics.evidence import tokens_per_step
from exporter.probe.result import ProbeResult, Reason
from exporter.settings import ProbeSettings

QUIET_QUEUE = 0.1
"""Seconds in the queue below which a probe is taken to have been alone, where the engine counts no tokens."""

RECENT = 300.0
"""Seconds for which a probe speaks of now at least."""

Results = Mapping[tuple[str, str], ProbeResult]
"""A prober's last results by (model, kind of prompt)."""


@dataclass(frozen=True, slots=True)
class Probed:
    """The last probe of one model: when it ended and until when it speaks of now (Unix times), its figures in seconds.

    `itl`: the median.  `reloaded`: the server loaded the model for it; `stalled`: it gave up waiting for a token.
    """

    at: float
    until: float
    ttft: float | None
    itl: float | None
    phases: Mapping[str, float]
    reloaded: bool
    stalled: bool
    ok: bool


def last(results: Results, model: str, settings: ProbeSettings) -> Probed | None:
    """Return the last probe of a model: of a good turn the one that was slowest to its first token.

    It speaks of now until two more would have been due.
    """
    own = [result for (name, _), result in results.items() if name == model]
    if not own:
        return None
    latest = max(own, key=lambda result: result.at)
    slowest = max(own, key=lambda result: result.ttft or 0.0) if latest.ok else latest
    spent = sum(result.duration for result in own)
    return Probed(
        latest.at,
        latest.at + max(RECENT, 2 * settings.interval, 2 * spent / settings.max_share),
        slowest.ttft,
        statistics.median(slowest.gaps) if slowest.gaps else slowest.tpot,
        slowest.phases,
        any(result.reloaded for result in own),
        latest.reason is Reason.TIMEOUT_FIRST_TOKEN,
        latest.ok,
    )


class Tokens:
    """Remembers how many tokens were made for probes of one model, and when."""

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self._made: deque[tuple[float, int]] = deque()

    def note(self, results: Iterable[ProbeResult]) -> None:
        """Take those results that are new; forget those that are more than `keep` seconds older than the newest."""
        seen = {at for at, _ in self._made}
        for result in sorted(results, key=lambda result: result.at):
            if result.at not in seen:
                # A model's first probe is sent twice, and of the first time, which warms it up, no result is kept.
                times = 1 if self._made else 2
                self._made.append((result.at, times * (result.output_tokens or 0)))
        while self._made and self._made[-1][0] - self._made[0][0] > self._keep:
            self._made.popleft()

    def between(self, start: float, end: float) -> int:
        """Return how many were made for probes that ended after `start` and not after `end`, Unix times."""
        return sum(tokens for at, tokens in self._made if start < at <= end)


class Counted(NamedTuple):
    """The engine's counters at Unix time `at`: tokens generated, and those of them that came of accepted drafts."""

    at: float
    generated: float | None
    accepted: float | None = None


@dataclass(frozen=True, slots=True)
class Alone:
    """A probe that was alone on the server: its tokens/s, and how many of them one reading of the weights gave.

    `per_reading` is 1 without speculative decoding, or where the engine does not tell.
    """

    rate: float
    per_reading: float = 1.0


def alone(result: ProbeResult, counted: Iterable[Counted], made: Tokens) -> float | None:
    """Return the tokens per reading of the weights of a probe that was alone on the server, 0 if it was not alone.

    None while no reading was taken after it.  By the engine's counter of generated tokens at Unix times, from the
    last reading before it to the first one after it: no more than the probes' own.  An engine without that counter is
    believed to serve one request where the probe did not wait.
    """
    begun = result.at - result.duration
    before, after = None, None
    for count in counted:
        if count.at <= begun:
            before = count
        elif count.at >= result.at and after is None:
            after = count
    if after is None:
        return None
    if after.generated is None:
        return 1.0 if result.phases.get("queue", 0.0) < QUIET_QUEUE else 0.0
    if before is None or before.generated is None:
        return 0.0
    generated = after.generated - before.generated
    if generated > made.between(before.at, after.at):
        return 0.0
    return tokens_per_step(generated, (after.accepted or 0.0) - (before.accepted or 0.0))


def decode_rate(result: ProbeResult) -> float | None:
    """Return a good, warm probe's tokens/s."""
    if not result.ok or result.cold:
        return None
    return result.decode_rate or (1 / result.tpot if result.tpot else None)
