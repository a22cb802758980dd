"""What a rule is: a recording rule, an alert with its links, and the group that they are evaluated in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from prometheus.build.settings import Settings, Severity

DASHBOARD = "llm-vitals-five"
"""The uid of the dashboard that alerts lead to."""


@dataclass(frozen=True, slots=True)
class Record:
    """A recording rule; `name` is level:metric:operation."""

    name: str
    expr: str
    labels: dict[str, str] = field(default_factory=dict)

    def rule(self) -> dict[str, Any]:
        """Return the rule as Prometheus reads it."""
        return {"record": self.name, "expr": self.expr} | ({"labels": self.labels} if self.labels else {})


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert.

    `wait` is how long `expr` has to hold.  The texts may use `{{ .Labels.X }}` and `{{ .Value }}`, which mean
    the same in Prometheus and, after `grafana.py` has been over them, in Grafana.  `main`: Grafana gets a copy.
    """

    name: str
    severity: Severity
    wait: str
    expr: str
    summary: str
    description: str
    main: bool = False

    @property
    def anchor(self) -> str:
        """The section of docs/runbooks.md, as forges make anchors of headings."""
        return self.name.lower()

    def annotations(self, settings: Settings) -> dict[str, str]:
        """Return the texts and the two links, so that no alert can be without them."""
        of_target = "?var-target={{ .Labels.target }}" if "{{ .Labels.target }}" in self.summary else ""
        return {
            "summary": self.summary,
            "description": self.description,
            "runbook_url": f"{settings.runbooks_url}#{self.anchor}",
            "dashboard_url": f"{settings.grafana_url}/d/{DASHBOARD}{of_target}",
        }

    def rule(self, settings: Settings) -> dict[str, Any]:
        """Return the rule as Prometheus reads it."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.wait,
            "labels": {"severity": self.severity},
            "annotations": self.annotations(settings),
        }


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated one after the other, so that an alert sees what was recorded just before.

    `interval`: how often, if not as often as most.
    """

    name: str
    records: tuple[Record, ...]
    alerts: tuple[Alert, ...]
    interval: str = ""

    def rules(self, settings: Settings) -> dict[str, Any]:
        """Return the group as Prometheus reads it."""
        return {
            "name": f"llm-vitals-{self.name}",
            "interval": self.interval or settings.interval,
            "rules": [record.rule() for record in self.records] + [alert.rule(settings) for alert in self.alerts],
        }
