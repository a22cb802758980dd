"""Alertmanager as Compose runs it: its configuration, and that Prometheus finds it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from prometheus.build.files import alerts
from prometheus.build.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "prometheus/alertmanager.yml").read_text(encoding="utf-8")
CONFIG: Any = yaml.safe_load(TEXT)
COMPOSE: Any = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
NAMES = [alert.name for alert in alerts(Settings())]


def check(text: str, folder: Path) -> None:
    amtool = shutil.which("amtool")
    if amtool is None:
        pytest.skip("amtool is not on PATH")
    file = folder / "alertmanager.yml"
    file.write_text(text, encoding="utf-8")
    done = subprocess.run([amtool, "check-config", str(file)], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_amtool_accepts_it(tmp_path: Path) -> None:
    check(TEXT, tmp_path)


@pytest.mark.parametrize("receiver", ["webhook", "email", "slack"])
def test_a_receiver_works_when_its_comment_marks_are_removed_and_routes_name_it(receiver: str, tmp_path: Path) -> None:
    commented = re.search(rf"(?:^  # .*\n)*^  # - name: {receiver}\n(?:^  # .*\n?)*", TEXT, re.MULTILINE)
    assert commented
    text = TEXT.replace(commented[0], re.sub(r"^  # ", "  ", commented[0], flags=re.MULTILINE))
    text = text.replace("      receiver: nobody", f"      receiver: {receiver}")
    names = [found["name"] for found in yaml.safe_load(text)["receivers"]]
    assert names == ["nobody", receiver]
    check(text, tmp_path)


def test_messages_are_grouped_by_target() -> None:
    assert CONFIG["route"]["group_by"] == ["target"]


def test_an_inhibition_names_alerts_that_there_are() -> None:
    for rule in CONFIG["inhibit_rules"]:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            pattern = re.fullmatch(r"alertname (?:=|!=|=~) (.+)", matcher)
            assert pattern, matcher
            assert any(re.fullmatch(pattern[1], name) for name in NAMES), matcher
    down = CONFIG["inhibit_rules"][0]
    assert (down["source_matchers"], down["equal"]) == (["alertname = LLMTargetDown"], ["target"])


def inhibited() -> set[tuple[str, str]]:
    """Pairs of alerts of which the first keeps the second quiet."""
    pairs = set()
    for rule in CONFIG["inhibit_rules"]:
        source, target = ([name for name in NAMES if matches(rule[f"{which}_matchers"], name)]
                          for which in ("source", "target"))  # fmt: skip
        pairs |= {(first, second) for first in source for second in target if first != second}
    return pairs


def matches(matchers: list[str], name: str) -> bool:
    for matcher in matchers:
        _, operator, text = matcher.split(" ")
        if bool(re.fullmatch(text, name)) == (operator == "!="):
            return False
    return True


def test_of_one_budget_only_the_fastest_burn_is_told() -> None:
    burns = [name for name in NAMES if "BudgetBurn" in name]
    speeds = ("Fast", "Steady", "Slow")
    expected = {
        (f"{budget}{fast}", f"{budget}{slow}")
        for budget in {re.sub(r"(Fast|Steady|Slow)$", "", name) for name in burns}
        for index, fast in enumerate(speeds)
        for slow in speeds[index + 1 :]
    }
    assert {(first, second) for first, second in inhibited() if first in burns} == expected


def test_no_secret_stands_in_it() -> None:
    for line in TEXT.splitlines():
        assert not re.search(r"\b\w*(password|token|credentials|api_url)\s*:", line), line


def test_it_runs_only_when_asked_for_and_prometheus_finds_it_by_its_name() -> None:
    assert COMPOSE["services"]["alertmanager"]["profiles"] == ["alerts"]
    prometheus = yaml.safe_load((ROOT / "prometheus/prometheus.yml").read_text(encoding="utf-8"))
    (manager,) = prometheus["alerting"]["alertmanagers"]
    assert manager["dns_sd_configs"] == [{"names": ["alertmanager"], "type": "A", "port": 9093}]


def test_the_default_links_to_the_runbooks_lead_to_a_file_that_prometheus_serves() -> None:
    service = COMPOSE["services"]["prometheus"]
    (assets,) = (word.split("=")[1] for word in service["command"] if word.startswith("--web.user-assets="))
    assert f"./docs:{assets}:ro" in service["volumes"]
    assert Settings().runbooks_url == "http://127.0.0.1:9090/user/runbooks.md"


def test_grafana_reads_its_copies_of_the_alerts() -> None:
    mount = "./dashboards/provisioning/alerting:/etc/grafana/provisioning/alerting:ro"
    assert mount in COMPOSE["services"]["grafana"]["volumes"]
