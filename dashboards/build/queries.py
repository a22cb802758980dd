"""The PromQL of the dashboards: what may be added, averaged or compared is decided here and nowhere else."""

from __future__ import annotations

import re

from exporter.catalogue import FAMILIES, Family
from prometheus.build import bounds, latency, load, slo
from prometheus.build.promql import LABELS, LEVEL
from prometheus.build.settings import Settings

JOB = Settings().job
"""The exporter's job in prometheus/prometheus.yml."""

RATE = "$__rate_interval"
PROBES = "$probe_window"
"""The window over probes: they come once a minute or so, and a window of four scrapes mostly holds none."""

WHOLE = "$__range"
"""The dashboard's time range."""

RECENT = "15m"
"""How long a server that is no longer reported is still spoken of."""

AT_END = " @ end()"
"""Modifier of a selector: its value at the end of the time range, at every step."""

DOWN, GONE, ASLEEP, NONE = -1, -2, -3, -4
"""Values that stand for a state in a tile; none of the quantities shown is ever negative."""

SAMPLES: dict[str, Family] = {sample: family for family in FAMILIES for sample in family.sample_names}
"""Every series name that the exporter exports."""

RECORDED = {record.name for module in (bounds, latency, load, slo) for record in module.group(Settings()).records}
"""Every series name that a recording rule about latencies, load or service levels makes."""

OWN = ("up", "process_cpu_seconds_total", "process_resident_memory_bytes")
"""What Prometheus and its client library say of the exporter's own process."""

METRIC = re.compile(r"\b(?:target_model:)?vitals_\w+(?::\w+)?|\b(?:up|process_\w+)\b(?=\{)")
"""A series name in PromQL whose strings are blanked."""


def series(name: str, where: str = "", at: str = "") -> str:
    """Return the selector of a series by the dashboard's variables, as far as it has their labels.

    KeyError for a name that neither the exporter nor a recording rule makes.
    """
    if name in RECORDED:
        labels: tuple[str, ...] = ("target", "backend", "model")
    else:
        labels = SAMPLES[name].all_labels
    wanted = [f'{label}=~"${label}"' for label in ("target", "backend", "model", "engine") if label in labels]
    return f"{name}{{{','.join([*wanted, *filter(None, [where])])}}}{at}"


def metrics(promql: str) -> set[str]:
    """Return the names of the series that PromQL reads."""
    return set(METRIC.findall(re.sub(r'"[^"]*"', '""', promql)))


def summed(gauge: str, by: str = LABELS, where: str = "", at: str = "") -> str:
    """Return a gauge that may be added over engines."""
    return f"sum{_by(by)}({series(gauge, where, at)})"


def largest(gauge: str, by: str = LABELS, where: str = "", at: str = "") -> str:
    """Return the largest value of a gauge that must not be added."""
    return f"max{_by(by)}({series(gauge, where, at)})"


def rate(counter: str, by: str = LABELS, window: str = RATE, where: str = "") -> str:
    """Return a counter's growth per second."""
    return f"sum{_by(by)}(rate({series(counter, where)}[{window}]))"


def increase(counter: str, by: str = LABELS, window: str = RATE, where: str = "") -> str:
    """Return a counter's growth in the window."""
    return f"sum{_by(by)}(increase({series(counter, where)}[{window}]))"


def ratio(part: str, whole: str) -> str:
    """Return a quotient, and nothing where there is nothing to divide by."""
    return f"{part}\n/ ({whole} > 0)"


def mean(family: str, by: str = LABELS, window: str = RATE, where: str = "") -> str:
    """Return a histogram's mean, exact whatever the buckets; nothing without an observation."""
    return ratio(rate(f"{family}_sum", by, window, where), rate(f"{family}_count", by, window, where))


def within(family: str, bound: str, by: str = LABELS, window: str = RATE) -> str:
    """Return the exact share of observations up to a bucket bound, of the histograms that have such a bound."""
    bucket, count = series(f"{family}_bucket", f'le="{bound}"'), series(f"{family}_count")
    sooner = f"rate({bucket}[{window}])"
    every = f"rate({count}[{window}]) and ignoring (le) {sooner}"
    return ratio(f"sum{_by(by)}({sooner})", f"sum{_by(by)}({every})")


def quantile(q: str, family: str) -> str:
    """Return the q-quantile of a histogram by server and model, in its unit; nothing without an observation.

    Between two bucket bounds histogram_quantile interpolates, as everywhere in Prometheus.  Below the
    lowest bound and above the highest it only knows the bound: there the series is the bound itself and
    has a label `bound`, "≤" or "≥".
    """
    value = f"histogram_quantile({q}, {rate(f'{family}_bucket', f'le, {LABELS}')})"
    return bounds.bounded(family, value)


def probed(what: str, family: str) -> str:
    """Return the recorded p50, p95 or p99 of a probes' histogram, with its label `bound` as above."""
    return series(bounds.recorded(family, what, Settings()))


def probed_mean(family: str) -> str:
    """Return the recorded mean of a probes' histogram, of the same observations as those quantiles."""
    return series(f"{LEVEL}:{family}:mean_rate{Settings().window}")


def headline(short: str, what: str) -> str:
    """Return the name of the recorded p50, p95, p99, p99_bounded or mean of `ttft`, `itl` or `tpot`."""
    return f"target_model:vitals_{short}_seconds:{what}_rate{Settings().window}"


def awake(at: str = "") -> str:
    """Return the KV-cache usage of each engine that does not sleep, 0 to 1."""
    asleep = f"{series('vitals_engine_asleep', at=at)} == 1"
    return f"{series('vitals_kv_cache_usage_ratio', at=at)} unless on (target, model, engine) {asleep}"


def fullest(by: str = LABELS, at: str = "") -> str:
    """Return the KV-cache usage of the fullest engine; one that sleeps has none."""
    return f"max{_by(by)}({awake(at)})"


def up(at: str = "") -> str:
    """Return a sample for each target that is up."""
    return f"max by (target, backend) ({series('vitals_target_up', at=at)}) == 1"


def of_those_up(expr: str, at: str = "") -> str:
    """Return `expr` of the targets that are up: a rate lives on for its window, and a recorded one for longer."""
    return f"{expr}\nand on (target, backend) {up(at)}"


def those_with_most(expr: str, criterion: str, count: str = "$lines", where: str = "") -> str:
    """Return `expr` of so many targets as graphs have room for, those with the highest `criterion` in the time range.

    `criterion` is a gauge or a recorded series, of which `where` may choose some.
    """
    highest = f"max by (target) (max_over_time({series(criterion, where)}[{WHOLE}] @ end()))"
    return f"({expr})\nand on (target) topk({count}, {highest})"


def unless_traffic(expr: str, family: str) -> str:
    """Return `expr`, of probes, for the targets that do not tell of their users' requests in `family`."""
    told = f"group by (target) (last_over_time({series(f'{family}_count')}[{WHOLE}] @ end()))"
    return f"({expr})\nunless on (target) {told}"


def target_state() -> str:
    """Return 1 (up), 2 (up and asleep), 0 (down) or GONE by target and its present backend."""
    reported = series("vitals_target_up")
    gone = f"last_over_time({reported}[{RECENT}]) unless on (target) {reported}"
    return (
        f"max by (target, backend) ({series('vitals_engine_asleep')} == 1) * 2"
        f"\nor max by (target, backend) ({reported})"
        f"\nor max by (target, backend) ({gone}) * 0 + {GONE}"
    )


def models() -> str:
    """Return a sample for each model that was reported or probed not long ago."""
    seen = (
        f"last_over_time({series(name)}[{RECENT}])"
        for name in (
            "vitals_requests_running",
            "vitals_model_loaded",
            "vitals_probe_last_success_timestamp_seconds",
        )
    )
    return f"group by ({LABELS}) ({' or '.join(seen)})"


def _by(labels: str) -> str:
    return f" by ({labels}) " if labels else ""
