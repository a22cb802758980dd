"""Probes: failing, slow against their own last day, and a decode rate far below what the memory allows."""

from __future__ import annotations

from prometheus.build.promql import LABELS, LEVEL, increase
from prometheus.build.rule import Alert, Group, Record
from prometheus.build.settings import Settings

SLOW = {
    "FirstToken": ("time to first token", "vitals_probe_time_to_first_token_seconds", ", prompt"),
    "Decode": ("time per output token", "vitals_probe_time_per_output_token_seconds", ""),
}
"""What a probe may be slow in: its name, family, and labels by which like is compared with like."""


def group(s: Settings) -> Group:
    """Return the rules of the probes."""
    records: list[Record] = []
    alerts: list[Alert] = []
    for what in SLOW:
        found, alert = _slow(s, what)
        records += found
        alerts.append(alert)
    return Group("probes", tuple(records), (_failing(s), *alerts, _below_ceiling(s)))


def _failing(s: Settings) -> Alert:
    failures = increase("vitals_probe_failures_total", s.probe_failures_window)
    return Alert(
        "LLMProbeFailing",
        "critical",
        s.probe_failures_for,
        f"{failures} / ({increase('vitals_probes_total', s.probe_failures_window)} > 0) > {s.probe_failures:g}"
        f"\nand {failures} > {s.probe_failures_least:g}",
        "{{ .Labels.target }}: probes fail",
        "{{ .Value | humanizePercentage }} of the probes of model {{ .Labels.model }} on {{ .Labels.target }} failed in"
        f" the last {s.probe_failures_window}; the exporter's page /debug/{{{{ .Labels.target }}}} says why.",
        main=True,
    )


def _slow(s: Settings, what: str) -> tuple[list[Record], Alert]:
    unit, family, extra = SLOW[what]
    by = LABELS + extra
    prefix = f"{LEVEL}{extra.replace(', ', '_')}:{family}"
    records = [
        Record(f"{prefix}:mean_rate{s.slow_window}", _mean(family, by, s.slow_window)),
        Record(f"{prefix}:mean_rate{s.slow_history}_before", _mean(family, by, s.slow_history, s.slow_window)),
        Record(f"{prefix}:count_increase{s.slow_window}", increase(f"{family}_count", s.slow_window, by)),
        Record(f"{prefix}:count_increase{s.slow_history}", increase(f"{family}_count", s.slow_history, by)),
    ]
    now, before, recent, past = (record.name for record in records)
    alert = Alert(
        f"LLMProbeSlow{what}",
        "warning",
        s.slow_for,
        f"{now} / {before} > {s.slow_factor:g}\nand {recent} > {s.slow_least:g}\nand {past} > {s.slow_history_least:g}",
        f"{{{{ .Labels.target }}}}: the probes' {unit} is far above its last day's",
        f"The probes' {unit} of model {{{{ .Labels.model }}}} on {{{{ .Labels.target }}}} was, over"
        f' {s.slow_window}, {{{{ printf "%.1f" .Value }}}} times the mean of the {s.slow_history} before.',
    )
    return records, alert


def _mean(family: str, by: str, window: str, before: str = "") -> str:
    """Return the mean over a window, or over one that ended `before` ago."""
    offset = f" offset {before}" if before else ""
    total, count = (f"sum by ({by}) (rate({family}_{what}[{window}]{offset}))" for what in ("sum", "count"))
    return f"{total} / ({count} > 0)"


def _below_ceiling(s: Settings) -> Alert:
    rate = f"avg by ({LABELS}) (avg_over_time(vitals_probe_alone_decode_tokens_per_second[{s.ceiling_window}]))"
    return Alert(
        "LLMDecodeBelowCeiling",
        "info",
        s.ceiling_for,
        f"{rate}\n/ max by ({LABELS}) (vitals_decode_ceiling_tokens_per_second) < {s.ceiling_share:g}",
        "{{ .Labels.target }}: decode is far below what the memory bandwidth allows",
        "Alone on the server, model {{ .Labels.model }} on {{ .Labels.target }} decodes at"
        " {{ .Value | humanizePercentage }} of its ceiling.",
    )
