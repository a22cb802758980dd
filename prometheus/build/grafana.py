"""The main alerts as Grafana-managed ones, for people without Alertmanager, in Grafana's provisioning format.

Each queries what the recording rules in Prometheus made.  Fields: Grafana's documentation, "Use configuration
files to provision alerting resources".
"""

from __future__ import annotations

import re
from typing import Any

from prometheus.build.rule import Alert
from prometheus.build.settings import Settings

DATASOURCE = "llm-vitals-prometheus"
"""The uid in dashboards/provisioning/datasources/prometheus.yml."""

_RANGE = 600
"""Seconds before now that Grafana asks for; an instant query looks at its end only."""

_INTERVAL = "1m"


def provisioning(s: Settings, alerts: list[Alert]) -> dict[str, Any]:
    """Return the file's content."""
    return {
        "apiVersion": 1,
        "groups": [
            {
                "orgId": 1,
                "name": "llm-vitals",
                "folder": "LLM vitals",
                "interval": _INTERVAL,
                "rules": [_rule(s, alert) for alert in alerts if alert.main],
            }
        ],
    }


def _rule(s: Settings, alert: Alert) -> dict[str, Any]:
    return {
        "uid": alert.anchor,
        "title": alert.name,
        "condition": "B",
        "data": [_query(alert.expr), _any_result()],
        "for": alert.wait,
        # An alert's query gives nothing when all is well.
        "noDataState": "OK",
        "execErrState": "Error",
        "labels": {"severity": alert.severity},
        "annotations": {name: _text(text) for name, text in alert.annotations(s).items()},
    }


def _query(expr: str) -> dict[str, Any]:
    return {
        "refId": "A",
        "relativeTimeRange": {"from": _RANGE, "to": 0},
        "datasourceUid": DATASOURCE,
        "model": {
            "refId": "A",
            "datasource": {"type": "prometheus", "uid": DATASOURCE},
            "expr": expr,
            "instant": True,
            "range": False,
        },
    }


def _any_result() -> dict[str, Any]:
    """Return the condition: whatever the query gives fires; no value of any alert is below 0."""
    return {
        "refId": "B",
        "relativeTimeRange": {"from": _RANGE, "to": 0},
        "datasourceUid": "__expr__",
        "model": {
            "refId": "B",
            "datasource": {"type": "__expr__", "uid": "__expr__"},
            "type": "threshold",
            "expression": "A",
            "conditions": [{"evaluator": {"type": "gt", "params": [-1]}}],
        },
    }


def _text(text: str) -> str:
    """Return a text with Prometheus's `.Value`, a number, as Grafana calls it."""
    return re.sub(r"\.Value\b", ".Values.A.Value", text)
