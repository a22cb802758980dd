"""The table of dashboards and how each becomes the text of its file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.build.capacity import capacity
from dashboards.build.five import five_key_metrics
from dashboards.build.marks import marks
from dashboards.build.phases import prefill_and_decode
from dashboards.build.probing import probes
from dashboards.build.targets import exporter_and_targets

FOLDER = Path(__file__).resolve().parent.parent / "json"

BOARDS: dict[str, Callable[[], dashboard.Dashboard]] = {
    "five-key-metrics.json": five_key_metrics,
    "prefill-and-decode.json": prefill_and_decode,
    "capacity.json": capacity,
    "probes.json": probes,
    "exporter-and-targets.json": exporter_and_targets,
}

CHAIN = ("datasource", "backend", "target", "model")
"""Variables shown on every dashboard."""

HIDDEN = 2
"""Grafana's number for a variable that is not shown; links carry it on all the same."""


def render() -> dict[str, str]:
    """Return, by file name, the JSON of every dashboard; the same on each call."""
    texts = {}
    for name, build in BOARDS.items():
        model = json.loads(json.dumps(build().build(), cls=JSONEncoder))
        model["id"] = None  # Grafana gives the number; one brought along could overwrite another dashboard
        model["annotations"] = {"list": marks()}
        _hide_unused(model)
        texts[name] = json.dumps(model, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    return texts


def _hide_unused(model: dict[str, Any]) -> None:
    """Show only the variables that make a difference on this dashboard."""
    panels = re.sub(r"\$\{\w+:queryparam\}", "", json.dumps(model["panels"]))  # what a link only hands on
    for variable in model["templating"]["list"]:
        name = variable["name"]
        used = any(
            f"{start}{name}{end}" in panels for start in ("$", "${") for end in ("}", ":", ",", " ", ")", "]", '\\"')
        )
        variable["hide"] = 0 if used or name in CHAIN else HIDDEN
