"""Has promtool evaluate a dashboard's PromQL, with the recording rules, on series whose answer is known."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from dashboards.build import queries as q
from dashboards.build.boards import render
from prometheus.build.files import rule_files
from prometheus.build.settings import Settings

PROMTOOL = shutil.which("promtool")

RULES = rule_files(Settings(interval="5s"))
NEEDED = ("load", "latency", "bounds")
"""The groups of rules that the dashboards read, in an order in which each finds what it reads already recorded."""

BOARDS = {name: json.loads(text) for name, text in render().items()}
HISTOGRAM = "vitals_inter_token_latency_seconds"
LABELS = 'target="a",backend="vllm",model="m",engine="0"'
OTHER_ENGINE, OTHER_TARGET = LABELS.replace('"0"', '"1"'), LABELS.replace('"a"', '"b"')
OTHER_MODEL = LABELS.replace('"m"', '"n"')
UP, OTHER_UP = (f'vitals_target_up{{target="{name}",backend="vllm"}}' for name in "ab")
A, B = 'target="a",backend="vllm",model="m"', 'target="b",backend="vllm",model="m"'
A_OTHER_MODEL = A.replace('"m"', '"n"')
VARIABLES = {
    **dict.fromkeys(("target", "backend", "model", "engine"), ".*"),
    "__rate_interval": "20s",
    "__range": "1h",
    "probe_window": "5m",
    "lines": "3",
    "quantile": "0.99",
    "ttft_slo": "1.0",
    "itl_slo": "0.1",
    "running_limit": "256",
    "waiting_limit": "1",
    "kv_limit": "0.95",
    "context": "1000",
}
P50, P99 = q.quantile("0.5", HISTOGRAM), q.quantile("0.99", HISTOGRAM)

Series = dict[str, str]
Expected = dict[str, float]


def histogram(cumulative: dict[str, int], total: float = 0.0, labels: str = LABELS, family: str = HISTOGRAM) -> Series:
    """Return the series of a histogram that grows by these cumulative buckets at each scrape."""
    series = {f'{family}_bucket{{{labels},le="{le}"}}': f"0+{count}x120" for le, count in cumulative.items()}
    series[f"{family}_count{{{labels}}}"] = f"0+{cumulative['+Inf']}x120"
    series[f"{family}_sum{{{labels}}}"] = f"0+{total}x120"
    return series


def check(folder: Path, series: Series, expr: str, expected: Expected, at: str = "2m") -> None:
    """Compare what `expr` gives at a time with what it should, on series scraped every 5 s and the recording rules."""
    check_all(folder, series, [(expr, expected, at)])


def check_all(folder: Path, series: Series, cases: list[tuple[str, Expected, str]]) -> None:
    """Have promtool do so for each case, with the dashboards' variables filled in."""
    for name in NEEDED:
        (folder / f"{name}.yml").write_text(RULES[f"{name}.yml"], encoding="utf-8")
    test: dict[str, Any] = {
        "interval": "5s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": filled_in(expr),
                "eval_time": at,
                "exp_samples": [{"labels": labels, "value": value} for labels, value in expected.items()],
            }
            for expr, expected, at in cases
        ],
    }
    file = folder / "test.yml"
    tests = {
        "rule_files": [f"{name}.yml" for name in NEEDED],
        "evaluation_interval": "5s",
        "group_eval_order": [f"llm-vitals-{name}" for name in NEEDED],
        "tests": [test],
    }
    file.write_text(yaml.safe_dump(tests), encoding="utf-8")
    assert PROMTOOL is not None
    command = [PROMTOOL, "test", "rules", file.name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def filled_in(expr: str) -> str:
    def value(match: re.Match[str]) -> str:
        return VARIABLES[match[1]]

    return re.sub(r"\$(\w+)", value, expr)


def queries(board: str, title: str, kind: str) -> list[str]:
    """The PromQL of one panel."""
    (panel,) = (p for p in BOARDS[board]["panels"] if p["title"] == title and p["type"] == kind)
    return [target["expr"] for target in panel["targets"]]


def shown(good: Expected | None = None, bad: Expected | None = None, state: Expected | None = None) -> list[Expected]:
    """What the three queries of a tile give."""
    return [good or {}, bad or {}, state or {}]


def check_tile(
    folder: Path,
    series: Series,
    title: str,
    expected: list[Expected],
    at: str = "2m",
    board: str = "five-key-metrics.json",
) -> None:
    exprs = queries(board, title, "stat")
    check_all(folder, series, [(expr, values, at) for expr, values in zip(exprs, expected, strict=True)])
