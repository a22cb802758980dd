"""The PromQL of the dashboards: what may be added, averaged or compared is decided here and nowhere else."""

from __future__ import annotations

JOB = "llm-vitals"
"""The exporter's job in prometheus/prometheus.yml."""

TARGETS = 'target=~"$target",backend=~"$backend"'
SERIES = f'{TARGETS},model=~"$model"'

RATE = "$__rate_interval"
PROBES = "$probe_window"
"""The window over probes: they come once a minute or so, and a window of four scrapes mostly holds none."""

RECENT = "15m"
"""The time range of the tiles, and how long a series that has ended is still spoken of there."""

DOWN, GONE, ASLEEP = -1, -2, -3
"""Values that stand for a state in a tile; none of the quantities shown is ever negative."""


def quantile(q: float, family: str, by: str, window: str) -> str:
    """Return the q-quantile of a histogram by the labels `by`, in the histogram's unit.

    Between two bucket bounds histogram_quantile interpolates, as everywhere in Prometheus.  Below the
    lowest bound and above the highest it only knows the bound: there the series is the bound itself and
    has a label `bound`, "≤" or "≥".  Without an observation in the window there is no sample.
    """

    def buckets(le: str = "") -> str:
        return f"sum by (le, {by}) (rate({family}_bucket{{{SERIES}{le}}}[{window}]))"

    value = f"histogram_quantile({q}, {buckets()})"
    # A histogram with all its observations in the first bucket, or all in +Inf, has the bound as its maximum.
    lowest = f"histogram_quantile(1, {buckets()} * 0 + 1)"
    finite, infinite = buckets(',le!="+Inf"'), buckets(',le="+Inf"')
    highest = f"histogram_quantile(1, {finite} * 0 or {infinite} * 0 + 1)"
    return (
        f"({value} > {lowest}) < {highest}"
        f'\nor label_replace({lowest} >= {value}, "bound", "≤", "", "")'
        f'\nor label_replace({highest} <= {value}, "bound", "≥", "", "")'
    )


def mean(family: str, by: str, window: str) -> str:
    """Return a histogram's mean by the labels `by`, exact whatever the buckets; NaN without an observation."""
    return (
        f"sum by ({by}) (rate({family}_sum{{{SERIES}}}[{window}]))"
        f" / sum by ({by}) (rate({family}_count{{{SERIES}}}[{window}]))"
    )


def observed(expr: str) -> str:
    """Return `expr` without its NaN: a gap where nothing was observed."""
    return f"{expr} >= 0"


def summed(gauge: str, by: str) -> str:
    """Return a gauge that may be added over engines."""
    return f"sum by ({by}) ({gauge}{{{SERIES}}})"


def kv_usage(by: str) -> str:
    """Return the KV-cache usage of the fullest engine, 0 to 1; an engine that sleeps has none."""
    asleep = f"vitals_engine_asleep{{{SERIES}}} == 1"
    return f"max by ({by}) (vitals_kv_cache_usage_ratio{{{SERIES}}} unless on (target, model, engine) {asleep})"


def kv_usage_or_asleep() -> str:
    """Return the KV-cache usage by target, or ASLEEP where all its engines sleep."""
    return f"{kv_usage('target')}\nor max by (target) (vitals_engine_asleep{{{SERIES}}} == 1) * 0 + {ASLEEP}"


def gauge_seen(gauge: str) -> str:
    """Return a sample for each target that reported the gauge not long ago."""
    return f"max by (target) (last_over_time({gauge}{{{SERIES}}}[{RECENT}]))"


def histogram_seen(family: str) -> str:
    """Return a sample for each target that reported the histogram not long ago."""
    return f"sum by (target) (rate({family}_count{{{SERIES}}}[{RECENT}]))"


def with_state(expr: str, seen: str) -> str:
    """Return `expr` by target, or DOWN for a target that is down, or GONE for one that `seen` still knows.

    Without this a tile would go on showing the last value of a target that has stopped reporting.
    """
    down = f"max by (target) (vitals_target_up{{{TARGETS}}} == 0) * 0 + {DOWN}"
    return f"{down}\nor {expr}\nor {seen} * 0 + {GONE}"


def target_state() -> str:
    """Return 1 (up), 2 (up and asleep), 0 (down) or GONE by target and backend, and the exporter's own up."""
    up = f"vitals_target_up{{{TARGETS}}}"
    return (
        f"max by (target, backend) (vitals_engine_asleep{{{TARGETS}}} == 1) * 2"
        f"\nor max by (target, backend) ({up})"
        f"\nor max by (target, backend) (last_over_time({up}[{RECENT}])) * 0 + {GONE}"
        f'\nor label_replace(min(up{{job="{JOB}"}}), "target", "{JOB}", "", "")'
    )


def target_version() -> str:
    """Return an info sample with version and url by target, and with the exporter's own version."""
    return (
        f"max by (target, backend, version, url) (vitals_target_info{{{TARGETS}}})"
        f'\nor label_replace(max by (version) (vitals_build_info), "target", "{JOB}", "", "")'
    )


def failure_reason() -> str:
    """Return the most frequent reason of failed readings for each target that is down now."""
    failures = f"increase(vitals_scrape_failures_total{{{TARGETS}}}[{RATE}])"
    top = f"topk by (target) (1, max by (target, backend, reason) ({failures}) > 0)"
    return f"{top} and on (target) vitals_target_up{{{TARGETS}}} == 0"


def reading_duration() -> str:
    """Return how long the last reading of each target took, in seconds."""
    return f"max by (target, backend) (vitals_scrape_duration_seconds{{{TARGETS}}})"


def probe_age() -> str:
    """Return the seconds since the last good probe of each target."""
    return f"time() - max by (target, backend) (vitals_probe_last_success_timestamp_seconds{{{TARGETS}}})"
