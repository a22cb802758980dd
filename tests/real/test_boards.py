"""The dashboards on the demo's episodes, by a real Prometheus, and drawn where the environment says how.

VITALS_DRAW   a command that draws dashboards (a folder of JSON) from a Prometheus to PNG and writes a report; it gets
              FOLDER --prom URL --from T --to T --scrape-interval D --out FOLDER --report FILE
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboards.build.boards import FOLDER, render
from tests.real import demo
from tests.real.servers import query

pytestmark = pytest.mark.timeout(500)

BOARDS: dict[str, Any] = {name: json.loads(text) for name, text in render().items()}
RANGE = 120
BUILT_IN = {"__rate_interval": "4s", "__range": f"{RANGE}s"}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with demo.playing(tmp_path_factory.mktemp("demo")) as prometheus:
        yield prometheus


def filled_in(board: Any, expr: str) -> str:
    values = dict(BUILT_IN)
    for variable in board["templating"]["list"]:
        value = variable.get("current", {}).get("value", "")
        values[variable["name"]] = ".*" if value == ["$__all"] else value

    return re.sub(r"\$(\w+)", lambda match: str(values[match[1]]), expr)


def answers(prometheus: str, board: Any, target: Any, now: float) -> bool:
    """Return whether a query has data within the range; a table's, which shows a moment, at any moment of it."""
    return bool(demo.series(prometheus, filled_in(board, target["expr"]), RANGE, now))


def test_every_query_of_every_panel_returns_data_on_the_demo(played: str) -> None:
    now = time.time()
    silent = [
        f"{name}: {panel['title']} {target['refId']}: {target['expr']}"
        for name, board in BOARDS.items()
        for panel in board["panels"]
        for target in panel.get("targets", [])
        if panel["type"] != "stat" and not answers(played, board, target, now)
    ]
    assert not silent, "\n".join(silent)


def test_of_the_colours_of_a_tile_exactly_one_is_shown(played: str) -> None:
    for board in BOARDS.values():
        for panel in board["panels"]:
            if panel["type"] == "stat":
                exprs = {target["refId"]: filled_in(board, target["expr"]) for target in panel["targets"]}
                shown = [ref for ref, expr in exprs.items() if query(played, expr)]
                assert len(shown) == 1, (panel["title"], shown)


def test_all_boards_are_drawn_without_a_finding(played: str, tmp_path: Path) -> None:
    draw = os.environ.get("VITALS_DRAW")
    if not draw:
        pytest.skip("VITALS_DRAW is not set: nothing to draw dashboards with")
    report = tmp_path / "report.json"
    command = [
        *shlex.split(draw), str(FOLDER), "--prom", played, "--from", f"now-{RANGE}s", "--to", "now",
        "--scrape-interval", "1s", "--out", str(tmp_path), "--report", str(report),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    drawn = json.loads(report.read_text(encoding="utf-8"))["dashboards"]
    assert len(drawn) == len(BOARDS)
    for board in drawn:
        # How long a query takes says more about the machine.
        findings = [finding for finding in board["findings"] if finding["kind"] != "slow-query"]
        assert not findings, board["file"]
        assert {panel["status"] for panel in board["panels"]} <= {"ok", "no data"}, board["file"]
        assert Path(board["png"]).stat().st_size > 20_000
