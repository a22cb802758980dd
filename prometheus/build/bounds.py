"""Quantiles that say when they are only a bound: below a histogram's first bound and above its last there is no more.

Between two bounds Prometheus interpolates; in the first and in the last bucket the bound itself is all that is known.
"""

from __future__ import annotations

from prometheus.build.latency import HEADLINES, PHASES, QUANTILES, name
from prometheus.build.promql import LABELS, LEVEL, headline
from prometheus.build.rule import Group, Record
from prometheus.build.settings import Settings

SHORT = ("ttft", "itl")
"""Which headline series there are with a label `bound`."""


def bounded(family: str, value: str) -> str:
    """Return `value`, a quantile of the family, between its bounds, else the bound with a label `bound`, "≤" or "≥"."""
    lowest, highest = (bound(family, end) for end in ("lowest", "highest"))
    # A result keeps the name of a bare series; * 1 drops it.
    return (
        f"({value} > {lowest}) < {highest}"
        f'\nor label_replace({lowest} * 1 >= {value}, "bound", "≤", "", "")'
        f'\nor label_replace({highest} * 1 <= {value}, "bound", "≥", "", "")'
    )


def bound(family: str, end: str) -> str:
    """Return the name of the lowest or the highest finite bucket bound of a histogram, in its unit."""
    return f"{LEVEL}:{family}:{end}_bound"


def recorded(family: str, what: str, s: Settings) -> str:
    """Return the name of a bounded p50, p95 or p99."""
    return f"{LEVEL}:{family}:{what}_bounded_rate{s.window}"


def group(s: Settings) -> Group:
    """Return the rules: bounds, the probes' quantiles and the headline p99, bounded."""
    records = []
    for family in (*PHASES, *(family for short in SHORT for family in HEADLINES[short])):
        records += _bounds(family, s)
    for short in SHORT:
        traffic, probe = HEADLINES[short]
        records.append(_quantile(traffic, "p99", s))
        records += [_quantile(probe, what, s) for what in QUANTILES]
        # Traffic may have a bound where the probes have none, and still comes first.
        both = headline(recorded(traffic, "p99", s), recorded(probe, "p99", s), ignoring="source, bound")
        records.append(Record(name(short, f"p99_bounded_rate{s.window}"), both))
    return Group("bounds", tuple(records), ())


def _bounds(family: str, s: Settings) -> list[Record]:
    # A histogram with all its observations in the first bucket, or all in +Inf, has that bound as its maximum.
    every, finite, infinite = (
        f"sum by (le, {LABELS}) (rate({family}_bucket{where}[{s.window}])) * 0"
        for where in ("", '{le!="+Inf"}', '{le="+Inf"}')
    )
    return [
        Record(bound(family, "lowest"), f"histogram_quantile(1, {every} + 1)"),
        Record(bound(family, "highest"), f"histogram_quantile(1, {finite} or {infinite} + 1)"),
    ]


def _quantile(family: str, what: str, s: Settings) -> Record:
    return Record(recorded(family, what, s), bounded(family, f"{LEVEL}:{family}:{what}_rate{s.window}"))
