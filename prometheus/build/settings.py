"""Every threshold, window and waiting time of the rules, and where their links lead.

To change one for good, edit it here and run `make rules`.  To try one without editing:
`python -m prometheus.build --set itl_p99=0.05 --set latency_for=5m`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Literal

Severity = Literal["critical", "warning", "info"]

SEVERITIES: dict[Severity, str] = {
    "critical": "users are without answers, or will soon have used up what they were promised: wake somebody",
    "warning": "users are served worse than meant, or soon will be: a ticket for the next working day",
    "info": "worth knowing when looking into something else: tell nobody",
}


@dataclass(frozen=True, slots=True)
class Burn:
    """One pair of windows of a burn-rate alert: it needs both to burn `factor` times too fast."""

    name: str
    factor: float
    long: str
    short: str
    wait: str
    severity: Severity


BURNS = (
    Burn("Fast", 14.4, "1h", "5m", "2m", "critical"),
    Burn("Steady", 6.0, "6h", "30m", "15m", "critical"),
    Burn("Slow", 1.0, "3d", "6h", "1h", "warning"),
)
"""A month's budget is gone in 2 days, 5 days, 30 days (Google's SRE workbook, chapter 5)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Seconds, tokens and ratios are plain numbers; windows and waiting times (`..._for`) are Prometheus's durations.

    A latency threshold has to be a bucket bound of the histograms it is compared with, because only there is a
    share exact: vLLM's and the probes' bounds have 0.01, 0.1, 1 and 10 s in common.
    """

    # Where links lead.  Compose's Prometheus serves docs/ under /user, so that the default works there.
    runbooks_url: str = "http://127.0.0.1:9090/user/runbooks.md"
    grafana_url: str = "http://127.0.0.1:3000"
    # The exporter's job in prometheus.yml.
    job: str = "llm-vitals"
    # How often rules are evaluated; those that read days of samples less often.
    interval: str = "30s"
    slo_interval: str = "1m"

    # --- latencies: p99 above its threshold, for so long ------------------------------------------------
    window: str = "5m"
    itl_p99: float = 0.1
    ttft_p99: float = 10.0
    latency_for: str = "10m"
    # Fewest observations in the window: below them a p99 is the luck of a few tokens.
    itl_traffic_least: float = 100
    itl_probe_least: float = 30
    ttft_traffic_least: float = 20
    ttft_probe_least: float = 3
    # More cold starts than this are reloads again and again (increase() is no whole number: three are about 3).
    cold_starts: float = 2.5
    cold_window: str = "1h"

    # --- service levels: `objective` of all observations are to be within the threshold ----------------
    itl_slo: float = 0.1
    itl_objective: float = 0.99
    ttft_slo: float = 1.0
    ttft_objective: float = 0.95
    # Fewest observations in the longer window.
    itl_slo_least: float = 1000
    ttft_slo_least: float = 50
    burns: tuple[Burn, ...] = BURNS

    # --- capacity ---------------------------------------------------------------------------------------
    waiting: float = 1.0
    waiting_for: str = "10m"
    kv_usage: float = 0.95
    kv_for: str = "5m"
    preemptions_per_second: float = 0.05
    preemptions_for: str = "10m"
    stuck_for: str = "2m"
    frozen_window: str = "5m"
    frozen_for: str = "5m"

    # --- probes -----------------------------------------------------------------------------------------
    probe_failures: float = 0.5
    probe_failures_least: float = 2.5
    probe_failures_window: str = "15m"
    probe_failures_for: str = "5m"
    slow_factor: float = 2.0
    slow_window: str = "30m"
    slow_history: str = "1d"
    # Fewest observations in the window, and in the history.
    slow_least: float = 4.5
    slow_history_least: float = 100
    slow_for: str = "15m"
    # Share of the decode ceiling below which a lone stream is slow.
    ceiling_share: float = 0.3
    ceiling_window: str = "30m"
    ceiling_for: str = "15m"

    # --- targets and the exporter -----------------------------------------------------------------------
    down_for: str = "2m"
    flaps: float = 4
    flap_window: str = "30m"
    no_metrics_window: str = "5m"
    no_metrics_for: str = "5m"
    unmapped_for: str = "1h"
    exporter_for: str = "2m"

    @property
    def slo_windows(self) -> tuple[str, ...]:
        """The windows over which shares above a threshold are recorded."""
        return tuple(dict.fromkeys(window for burn in self.burns for window in (burn.short, burn.long)))


def override(settings: Settings, assignments: Iterable[str]) -> Settings:
    """Return `settings` with each `name=value` put in; ValueError for a name or a number that is none."""
    known = {field.name: field.type for field in fields(Settings) if field.name != "burns"}
    changes: dict[str, str | float] = {}
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        if name not in known:
            raise ValueError(f"no setting is called {name!r}; there are {', '.join(known)}")
        changes[name] = float(text) if known[name] == "float" else text
    return replace(settings, **changes)  # type: ignore[arg-type]  # the types are the fields' own
