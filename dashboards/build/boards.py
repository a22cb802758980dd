"""The table of dashboards and how each becomes the text of its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.build.five import five_key_metrics

FOLDER = Path(__file__).resolve().parent.parent / "json"

BOARDS: dict[str, Callable[[], dashboard.Dashboard]] = {
    "five-key-metrics.json": five_key_metrics,
}


def render() -> dict[str, str]:
    """Return, by file name, the JSON of every dashboard; the same on each call."""
    texts = {}
    for name, build in BOARDS.items():
        model = json.loads(json.dumps(build().build(), cls=JSONEncoder))
        model["id"] = None  # Grafana gives the number; one brought along could overwrite another dashboard
        texts[name] = json.dumps(model, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    return texts
