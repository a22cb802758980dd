"""What is marked on all graphs: alerts that fire, servers that restarted, models that were loaded."""

from __future__ import annotations

from typing import Any

from dashboards.build import queries as q


def marks() -> list[dict[str, Any]]:
    """Return the dashboards' annotations, as Grafana's JSON has them."""
    restarted = " or ".join(
        f"resets({q.series(name)}[{q.RATE}]) > 0"
        for name in ("vitals_prompt_tokens_total", "vitals_generation_tokens_total")
    )
    loaded = q.series("vitals_model_loaded")
    return [
        _mark(
            "Alerts firing",
            "red",
            'ALERTS{alertstate="firing",target=~"$target|",alertname=~"LLM.*"}',
            "{{alertname}}",
            "{{target}} {{model}} ({{severity}})",
        ),
        _mark(
            "Restarts", "orange", f"max by (target) ({restarted})", "{{target}} restarted", "its counters began anew"
        ),
        _mark(
            "Model loads",
            "blue",
            f"max by (target, model) ({loaded}) unless max by (target, model) ({loaded} offset {q.RATE})",
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
