"""Service levels of ITL and TTFT: shares above each threshold over five windows, and multi-window burn-rate alerts."""

from __future__ import annotations

from prometheus.build.latency import HEADLINES, name
from prometheus.build.promql import headline, observed, share_above
from prometheus.build.rule import Alert, Group, Record
from prometheus.build.settings import Burn, Settings

LONG_NAMES = {"itl": "InterTokenLatency", "ttft": "TimeToFirstToken"}


def group(s: Settings) -> Group:
    """Return the rules of the service levels."""
    levels = (
        ("itl", s.itl_slo, s.itl_objective, s.itl_slo_least, {s.itl_slo, s.itl_p99}),
        ("ttft", s.ttft_slo, s.ttft_objective, s.ttft_slo_least, {s.ttft_slo, s.ttft_p99}),
    )
    records: list[Record] = []
    alerts: list[Alert] = []
    for short, threshold, objective, least, thresholds in levels:
        records += [_share(short, bound, window) for window in s.slo_windows for bound in sorted(thresholds)]
        records += [_observed(short, burn.long) for burn in s.burns]
        alerts += [_burn(short, threshold, objective, least, burn) for burn in s.burns]
    return Group("slo", tuple(records), tuple(alerts), s.slo_interval)


def _share(short: str, bound: float, window: str) -> Record:
    traffic, probe = (share_above(family, bound, window) for family in HEADLINES[short])
    return Record(name(short, f"share_above_rate{window}"), headline(traffic, probe), {"threshold": f"{bound:g}"})


def _observed(short: str, window: str) -> Record:
    traffic, probe = (observed(family, window) for family in HEADLINES[short])
    return Record(name(short, f"observed_increase{window}"), headline(traffic, probe))


def _burn(short: str, threshold: float, objective: float, least: float, burn: Burn) -> Alert:
    limit = f"{burn.factor * (1 - objective):.4g}"
    shares = [
        f'{name(short, f"share_above_rate{window}")}{{threshold="{threshold:g}"}} > {limit}'
        for window in (burn.long, burn.short)
    ]
    enough = f"and ignoring (threshold) {name(short, f'observed_increase{burn.long}')} >= {least:g}"
    return Alert(
        f"LLM{LONG_NAMES[short]}BudgetBurn{burn.name}",
        burn.severity,
        burn.wait,
        f"{shares[0]}\nand {shares[1]}\n{enough}",
        f"{{{{ .Labels.target }}}}: the {short.upper()} error budget burns {burn.factor:g} times too fast",
        f"{{{{ .Value | humanizePercentage }}}} of the {short.upper()} observations of model {{{{ .Labels.model }}}} on"
        f" {{{{ .Labels.target }}}} ({{{{ .Labels.source }}}}) were above {threshold:g}s over {burn.long}, and the last"
        f" {burn.short} are no better; {100 * (1 - objective):g}% would be within the objective.",
        main=burn.severity == "critical",
    )
