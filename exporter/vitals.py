"""The five numbers of a target, now: what the landing page and the command line show without Prometheus."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from exporter.model import Sample

TTFT = "vitals_time_to_first_token_seconds"
ITL = "vitals_inter_token_latency_seconds"

WINDOW = 300.0
"""Seconds of history kept."""

SPACING = 15.0
"""Seconds between two kept points."""

Buckets = Mapping[float, float]


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile in seconds; `side` is "<" or ">" where the histogram only says which side of `value` it is on."""

    value: float
    side: str = ""

    def __str__(self) -> str:
        """Write it for a person: 12 ms, < 10 ms, 1.25 s."""
        number = f"{self.value * 1000:.3g} ms" if self.value < 1 else f"{self.value:.3g} s"
        return f"{self.side} {number}".strip()


@dataclass(frozen=True, slots=True)
class Latency:
    """A latency over `window` seconds: median, p99 and mean in seconds, and the number of observations."""

    p50: Quantile
    p99: Quantile
    mean: float
    count: float
    window: float


@dataclass(frozen=True, slots=True)
class Vitals:
    """The five numbers; None is "not reported" or "no traffic", which is not zero."""

    ttft: Latency | None
    itl: Latency | None
    running: float | None
    waiting: float | None
    kv_usage: float | None
    asleep: bool


def quantile(q: float, buckets: Buckets) -> Quantile | None:
    """Return the q-quantile of a histogram given as cumulative counts by upper bound in seconds (+Inf included).

    Interpolates within a bucket as Prometheus's histogram_quantile does, except that a quantile in the first
    or in the infinite bucket is not invented: the bound and the side are returned.  None without observations.
    """
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    rank = q * total
    index = next(i for i, bound in enumerate(bounds) if buckets[bound] >= rank)
    if index == 0 and math.isfinite(bounds[0]):
        return Quantile(bounds[0], "<")
    if math.isinf(bounds[index]):
        return Quantile(bounds[index - 1], ">") if index else None
    low, high = bounds[index - 1], bounds[index]
    before, inside = buckets[low], buckets[high] - buckets[low]
    return Quantile(low + (high - low) * (rank - before) / inside)


@dataclass(frozen=True, slots=True)
class _Totals:
    buckets: Buckets
    sum: float


@dataclass(frozen=True, slots=True)
class _Point:
    at: float
    totals: Mapping[str, _Totals]


class History:
    """The last minutes of a target's TTFT and ITL, so that "now" can be the change since then."""

    def __init__(self) -> None:
        self._points: deque[_Point] = deque()

    def due(self, at: float) -> bool:
        """Return whether the last point kept is so old that another should be."""
        return not self._points or at - self._points[-1].at >= SPACING

    def add(self, at: float, samples: Iterable[Sample]) -> None:
        """Keep a reading taken `at`, in seconds of a steady clock; forget those too old or before a restart."""
        point = _Point(at, _totals(samples))
        if self._points and _restarted(self._points[-1], point):
            self._points.clear()
        while self._points and at - self._points[0].at > WINDOW:
            self._points.popleft()
        self._points.append(point)

    def vitals(self, at: float, samples: Iterable[Sample]) -> Vitals:
        """Return the five numbers of a reading taken `at`, over the time since the oldest point kept."""
        samples = list(samples)
        now = _Point(at, _totals(samples))
        oldest = next(iter(self._points), now)
        running, waiting = (_gauge(samples, f"vitals_requests_{what}") for what in ("running", "waiting"))
        usage = _gauge(samples, "vitals_kv_cache_usage_ratio")
        asleep = _gauge(samples, "vitals_engine_asleep")
        return Vitals(
            _latency(TTFT, oldest, now),
            _latency(ITL, oldest, now),
            sum(running) if running else None,
            sum(waiting) if waiting else None,
            max(usage) if usage else None,
            bool(asleep) and min(asleep) == 1.0,
        )


def _gauge(samples: Iterable[Sample], family: str) -> list[float]:
    return [sample.value for sample in samples if sample.family == family]


def _totals(samples: Iterable[Sample]) -> dict[str, _Totals]:
    """Add up a target's histograms over models and engines, at the bounds that all of them have."""
    counts: dict[str, dict[float, list[float]]] = {TTFT: {}, ITL: {}}
    sums = {TTFT: 0.0, ITL: 0.0}
    for sample in samples:
        if sample.family in counts:
            if sample.name.endswith("_bucket"):
                bound = float(sample.labels[-1][1])
                counts[sample.family].setdefault(bound, []).append(sample.value)
            elif sample.name.endswith("_sum"):
                sums[sample.family] += sample.value
    return {
        family: _Totals(
            {bound: sum(values) for bound, values in bounds.items() if len(values) == len(bounds[math.inf])},
            sums[family],
        )
        for family, bounds in counts.items()
        if bounds
    }


def _added(start: _Totals, end: _Totals) -> Buckets | None:
    """Return the counts added from one to the other; None if they are not of one run of the server."""
    if start.buckets.keys() != end.buckets.keys() or start.sum > end.sum:
        return None
    buckets = {bound: count - start.buckets[bound] for bound, count in end.buckets.items()}
    return None if min(buckets.values()) < 0 else buckets


def _restarted(then: _Point, now: _Point) -> bool:
    return any(
        _added(then.totals[family], now.totals[family]) is None for family in then.totals.keys() & now.totals.keys()
    )


def _latency(family: str, then: _Point, now: _Point) -> Latency | None:
    end, start = now.totals.get(family), then.totals.get(family)
    if end is None or start is None or (buckets := _added(start, end)) is None:
        return None
    p50, p99, count = quantile(0.5, buckets), quantile(0.99, buckets), buckets[math.inf]
    if p50 is None or p99 is None:
        return None
    return Latency(p50, p99, (end.sum - start.sum) / count, count, now.at - then.at)
