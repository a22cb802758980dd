"""What is marked on all graphs: alerts that fire, servers that restarted, models that were loaded."""

from __future__ import annotations

from typing import Any

from dashboards.build import queries as q

LONGEST = "1h"
"""How long a server may have been away so that its return is seen as a restart."""


def marks() -> list[dict[str, Any]]:
    """Return the dashboards' annotations, as Grafana's JSON has them."""
    counters = [q.series(name) for name in ("vitals_prompt_tokens_total", "vitals_generation_tokens_total")]
    # A server that was away for longer than the window is seen by what it had counted before.
    restarted = " or ".join(
        f"resets({counter}[{q.RATE}]) > 0 or {counter} < last_over_time({counter}[{LONGEST}] offset {q.RATE})"
        for counter in counters
    )
    loaded = q.series("vitals_model_loaded")
    # What was not seen need not have been absent: a model was loaded if it was seen less often than its server was up.
    seen = f"max by (target, model) (count_over_time({loaded}[{q.RATE}]))"
    up = f"max by (target) (sum_over_time({q.series('vitals_target_up')}[{q.RATE}]))"
    return [
        _mark(
            "Alerts firing",
            "red",
            'ALERTS{alertstate="firing",target=~"$target|",alertname=~"LLM.*"}',
            "{{alertname}}",
            "{{target}} {{model}} ({{severity}})",
        ),
        _mark(
            "Restarts", "orange", f"group by (target) ({restarted})", "{{target}} restarted", "its counters began anew"
        ),
        _mark(
            "Model loads",
            "blue",
            f"max by (target, model) ({loaded}) and {seen} < on (target) group_left () {up}",
            "{{model}} was loaded",
            "on {{target}}",
        ),
    ]


def _mark(name: str, color: str, expr: str, title: str, text: str) -> dict[str, Any]:
    return {
        "name": name,
        "enable": True,
        "hide": False,
        "iconColor": color,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "expr": expr,
        "step": "15s",
        "titleFormat": title,
        "textFormat": text,
        "tagKeys": "",
        "useValueForTime": False,
    }
