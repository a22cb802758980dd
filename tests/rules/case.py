"""What a test case of an alert is, the series it feeds, and promtool, which runs it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROMTOOL = shutil.which("promtool")

RUNBOOKS = "http://127.0.0.1:9090/user/runbooks.md"
BOARD = "http://127.0.0.1:3000/d/llm-vitals-five"

Series = dict[str, str]

RESET = "reset"
"""In a counter's phases: the server starts again, counting from 0."""


@dataclass(frozen=True)
class Firing:
    """An alert that is expected, with all its labels and its texts as they come out."""

    labels: Mapping[str, str]
    summary: str
    description: str

    def expected(self, alert: str) -> dict[str, Any]:
        target = self.labels.get("target")
        return {
            "exp_labels": dict(self.labels),
            "exp_annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": f"{RUNBOOKS}#{alert.lower()}",
                "dashboard_url": f"{BOARD}?var-target={target}" if target else BOARD,
            },
        }


@dataclass(frozen=True)
class Case:
    """Series, and what one alert is to be at some minutes; `interval` is that of the series' samples."""

    alert: str
    name: str
    series: Series
    at: Sequence[tuple[int, Sequence[Firing]]]
    interval: str = "1m"

    def test(self) -> dict[str, Any]:
        return {
            "name": f"{self.alert}: {self.name}",
            "interval": self.interval,
            "input_series": [{"series": name, "values": values} for name, values in self.series.items()],
            "alert_rule_test": [
                {
                    "eval_time": f"{minute}m",
                    "alertname": self.alert,
                    "exp_alerts": [firing.expected(self.alert) for firing in firings],
                }
                for minute, firings in self.at
            ],
        }


def fires(alert: str, name: str, series: Series, minute: int, firing: Firing, interval: str = "1m") -> Case:
    """The alert is silent a minute before `minute`, and at it fires once, for one target of those in `series`."""
    return Case(alert, name, series, [(minute - 1, []), (minute, [firing])], interval)


def silent(alert: str, name: str, series: Series, *minutes: int, interval: str = "1m") -> Case:
    return Case(alert, name, series, [(minute, []) for minute in minutes], interval)


def counter(*phases: tuple[int, float] | str) -> str:
    """Values of a counter: 0, then for each phase (steps, growth per step); RESET puts it back to 0."""
    parts, value = ["0"], 0.0
    for phase in phases:
        if isinstance(phase, str):
            value = 0.0
            parts.append("0")
            continue
        steps, growth = phase
        if steps:
            parts.append(f"{value + growth:.10g}{growth:+.10g}x{steps - 1}")
            value += steps * growth
    return " ".join(parts)


def histogram(family: str, labels: str, *phases: tuple[int, dict[str, float], float] | str) -> Series:
    """Series of a histogram: phases are (steps, growth of each cumulative bucket per step, growth of the sum)."""
    bounds = next(list(phase[1]) for phase in phases if not isinstance(phase, str))

    def of(what: str) -> str:
        return counter(
            *(
                phase if isinstance(phase, str) else (phase[0], phase[2] if what == "sum" else phase[1][what])
                for phase in phases
            )
        )

    found = {f'{family}_bucket{{{labels},le="{bound}"}}': of(bound) for bound in bounds}
    return found | {f"{family}_count{{{labels}}}": of("+Inf"), f"{family}_sum{{{labels}}}": of("sum")}


def values(*numbers: float) -> str:
    return " ".join(f"{number:g}" for number in numbers)


def promtool(*files: Path) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None
    return subprocess.run(
        [PROMTOOL, "test", "rules", *map(str, files)], capture_output=True, text=True, timeout=100, check=False
    )
