"""Latencies: quantiles and means by target and model, the headline series, and alerts on p99 by cause."""

from __future__ import annotations

from prometheus.build import load
from prometheus.build.promql import LABELS, LEVEL, headline, increase, mean, observed, quantile
from prometheus.build.rule import Alert, Group, Record
from prometheus.build.settings import Settings

HEADLINES = {
    "ttft": ("vitals_time_to_first_token_seconds", "vitals_probe_time_to_first_token_seconds"),
    "itl": ("vitals_inter_token_latency_seconds", "vitals_probe_inter_token_latency_seconds"),
    "tpot": ("vitals_time_per_output_token_seconds", "vitals_probe_time_per_output_token_seconds"),
}
"""By short name: the family of real traffic and that of the probes."""

PHASES = ("vitals_request_queue_seconds", "vitals_request_prefill_seconds")

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def group(s: Settings) -> Group:
    """Return the rules of latencies."""
    return Group("latency", (*_records(s), *_headlines(s)), (_inter_token(s), *_first_token(s)))


def name(short: str, operation: str) -> str:
    """Return the name of a headline series."""
    return f"{LEVEL}:vitals_{short}_seconds:{operation}"


def _records(s: Settings) -> list[Record]:
    found = []
    for family in (*PHASES, *(family for pair in HEADLINES.values() for family in pair)):
        for what, q in QUANTILES.items():
            found.append(Record(f"{LEVEL}:{family}:{what}_rate{s.window}", quantile(q, family, s.window)))
        found.append(Record(f"{LEVEL}:{family}:mean_rate{s.window}", mean(family, s.window)))
    return found


def _headlines(s: Settings) -> list[Record]:
    found = []
    for short, families in HEADLINES.items():
        for what in (*QUANTILES, "mean"):
            traffic, probe = (f"{LEVEL}:{family}:{what}_rate{s.window}" for family in families)
            found.append(Record(name(short, f"{what}_rate{s.window}"), headline(traffic, probe)))
        traffic, probe = (observed(family, s.window) for family in families)
        found.append(Record(name(short, f"count_increase{s.window}"), headline(traffic, probe)))
    return found


def _p99(s: Settings, short: str, threshold: float, traffic_least: float, probe_least: float) -> str:
    """Return p99 where it is above its threshold and rests on enough observations.

    One above a histogram's last bound is given as that bound, which may be the threshold: hence >=.
    """
    count = name(short, f"count_increase{s.window}")
    return (
        f"{name(short, f'p99_rate{s.window}')} >= {threshold:g}"
        f'\nand ({count}{{source="traffic"}} >= {traffic_least:g}\n  or {count}{{source="probe"}} >= {probe_least:g})'
    )


def _inter_token(s: Settings) -> Alert:
    return Alert(
        "LLMInterTokenLatencyHigh",
        "warning",
        s.latency_for,
        _p99(s, "itl", s.itl_p99, s.itl_traffic_least, s.itl_probe_least),
        "{{ .Labels.target }}: p99 inter-token latency is high",
        "p99 ITL of model {{ .Labels.model }} on {{ .Labels.target }} is {{ .Value | humanizeDuration }} by its"
        f" {{{{ .Labels.source }}}}, above {s.itl_p99:g}s for {s.latency_for}: answers stutter.",
        main=True,
    )


def _first_token(s: Settings) -> tuple[Alert, ...]:
    slow = _p99(s, "ttft", s.ttft_p99, s.ttft_traffic_least, s.ttft_probe_least)
    # An engine that reports no queue (Ollama) is judged by where its last probes spent their time.
    queue, prefill = (
        f'avg by ({LABELS}) (avg_over_time(vitals_probe_phase_seconds{{phase="{phase}"}}[{s.window}]))'
        for phase in ("queue", "prefill")
    )
    queueing = f"on ({LABELS}) (\n  {load.waiting(s)} > 0\n  or {queue} > {prefill}\n)"
    text = (
        "p99 TTFT of model {{ .Labels.model }} on {{ .Labels.target }} is {{ .Value | humanizeDuration }} by its"
        f" {{{{ .Labels.source }}}}, above {s.ttft_p99:g}s for {s.latency_for}"
    )
    return (
        Alert(
            "LLMTimeToFirstTokenHighQueueing",
            "warning",
            s.latency_for,
            f"{slow}\nand {queueing}",
            "{{ .Labels.target }}: first tokens are late because requests queue",
            f"{text}, and requests wait before their prefill: capacity.",
            main=True,
        ),
        Alert(
            "LLMTimeToFirstTokenHighPrefill",
            "warning",
            s.latency_for,
            f"{slow}\nunless {queueing}",
            "{{ .Labels.target }}: first tokens are late because prefill is slow",
            f"{text}, and nothing waits: prefill itself takes long.",
            main=True,
        ),
        Alert(
            "LLMTimeToFirstTokenHighLoad",
            "warning",
            "0m",
            f"{increase('vitals_probe_cold_total', s.cold_window)} > {s.cold_starts:g}",
            "{{ .Labels.target }}: first tokens are late because the model is loaded again and again",
            'Model {{ .Labels.model }} on {{ .Labels.target }} was found cold {{ printf "%.0f" .Value }} times within'
            f" {s.cold_window}: whoever asked then waited for the load.",
        ),
    )
