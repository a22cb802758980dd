"""Each alert's tests notice a comparison turned round, a number ten times off, and a wait that is a minute off."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from prometheus.build.files import alerts, dump, groups
from prometheus.build.rule import Alert, Record
from prometheus.build.settings import Settings
from tests.rules.case import PROMTOOL, promtool
from tests.rules.suite import CASES

pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not on PATH")

SETTINGS = Settings()
ALERTS = alerts(SETTINGS)
RECORDS = [record for group in groups(SETTINGS) for record in group.records]
TURNED = {">": "<", "<": ">", ">=": "<", "<=": ">", "==": "!=", "!=": "=="}
COMPARISON = re.compile(r" (>=|<=|==|!=|>|<) (\d[\d.]*)?")
RECORDED = re.compile(r"\w+:\w+:\w+")


def mutants(alert: Alert) -> Iterator[tuple[str, Alert]]:
    for match in COMPARISON.finditer(alert.expr):
        operator, number = match.groups()
        where = f"{match.group().strip()} at {match.start()}"
        changes = {f"{where} turned round": f" {TURNED[operator]} {number or ''}"}
        if number and float(number):
            changes |= {f"{where} times {by:g}": f" {operator} {float(number) * by:.10g}" for by in (10, 0.1)}
        for name, text in changes.items():
            yield name, replace(alert, expr=alert.expr[: match.start()] + text + alert.expr[match.end() :])
    minutes = {"h": 60, "m": 1}[alert.wait[-1]] * int(alert.wait[:-1])
    for longer in (minutes - 1, minutes + 1):
        if longer >= 0:
            yield f"for {longer}m", replace(alert, wait=f"{longer}m")


def needed(expr: str) -> list[Record]:
    """The records that an expression reads, and those that they read, in the order of their evaluation."""
    names = set(RECORDED.findall(expr))
    while (
        more := {name for record in RECORDS if record.name in names for name in RECORDED.findall(record.expr)} - names
    ):
        names |= more
    return [record for record in RECORDS if record.name in names]


def failing(variants: dict[str, Alert], folder: Path) -> set[str]:
    """Run the alert's own cases on variants of it, side by side; return the names of those that fail one."""
    alert = next(iter(variants.values()))
    cases = [case for _, cases in CASES.values() for case in cases if case.alert == alert.name]
    tests = []
    for case in cases:
        test = case.test()
        checks = test["alert_rule_test"]
        test["alert_rule_test"] = [check | {"alertname": name} for name in variants for check in checks]
        tests.append(test)
    rules = [record.rule() for record in needed(alert.expr)]
    rules += [variant.rule(SETTINGS) | {"alert": name} for name, variant in variants.items()]
    (folder / "rules.yml").write_text(dump({"groups": [{"name": "g", "rules": rules}]}), encoding="utf-8")
    content = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (folder / "test.yml").write_text(dump(content), encoding="utf-8")
    done = promtool(folder / "test.yml")
    output = done.stdout + done.stderr
    assert done.returncode == 0 or "FAILED" in output, output
    return set(re.findall(r"alertname: (\w+), time", output))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_every_change_to_an_alert_fails_one_of_its_tests(alert: Alert, tmp_path: Path) -> None:
    changed = dict(mutants(alert))
    names = {f"m{index}": name for index, name in enumerate(changed)}
    variants = {"unchanged": alert} | dict(zip(names, changed.values(), strict=True))
    found = failing(variants, tmp_path)
    assert "unchanged" not in found
    assert [name for index, name in names.items() if index not in found] == []
