"""The rules as they are shipped: what promtool says of them, and what holds for all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter.catalogue import BY_NAME, FAMILIES
from exporter.probe.instruments import BUCKETS
from prometheus.build import grafana
from prometheus.build.files import GRAFANA, RULES, alerts, groups, render
from prometheus.build.rule import DASHBOARD, Alert, Record
from prometheus.build.settings import SEVERITIES, Settings, override
from tests.rules.case import PROMTOOL, promtool
from tests.rules.suite import CASES, FOLDER, files

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = Settings()
ALERTS = alerts(SETTINGS)
RECORDS = [record for group in groups(SETTINGS) for record in group.records]
RUNBOOKS = (ROOT / "docs/runbooks.md").read_text(encoding="utf-8")
SAMPLES = {name for family in FAMILIES for name in family.sample_names}


def each(rules: Sequence[Record | Alert]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("rule", rules, ids=lambda rule: rule.name)


def test_the_files_are_what_is_generated() -> None:
    generated = render(SETTINGS)
    assert {path: (ROOT / path).read_text(encoding="utf-8") for path in generated} == generated, "run `make rules`"
    assert {f"{RULES}/{path.name}" for path in (ROOT / RULES).iterdir()} | {GRAFANA} == set(generated)


def test_the_files_of_tests_are_what_is_generated() -> None:
    assert {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()} == files(), "run `make rules`"


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not on PATH")
@pytest.mark.parametrize("name", list(files()))
def test_promtool_passes(name: str) -> None:
    done = promtool(FOLDER / name)
    assert done.returncode == 0, done.stdout + done.stderr


@each(ALERTS)
def test_an_alert_is_tested_at_its_minute_beside_a_target_that_is_well(rule: Alert) -> None:
    cases = [case for _, cases in CASES.values() for case in cases if case.alert == rule.name]
    boundaries = [
        case
        for case in cases
        for (before, silent), (minute, firing) in pairwise(case.at)
        if minute == before + 1 and not silent and len(firing) == 1
    ]
    assert boundaries
    label = "instance" if rule.name == "LLMExporterDown" else "target"
    for case in boundaries:
        assert len({found for name in case.series for found in re.findall(rf'{label}="([^"]*)"', name)}) > 1


@each([alert for alert in ALERTS if re.search(r"rate|increase", alert.expr)])
def test_an_alert_on_counters_is_tested_through_a_reset(rule: Alert) -> None:
    series = [case.series for _, cases in CASES.values() for case in cases if case.alert == rule.name]
    assert any(falls(text) for found in series for text in found.values())


def falls(values: str) -> bool:
    """Whether values in promtool's notation go back to 0 after something else."""
    starts = [float(re.match(r"-?[\d.]+", part)[0]) for part in values.split() if re.match(r"-?\d", part)]  # type: ignore[index]
    return any(later == 0 and earlier > 0 for earlier, later in pairwise(starts))


@each(RECORDS)
def test_a_recorded_series_is_named_level_metric_operation(rule: Any) -> None:
    assert re.fullmatch(r"target_model(_prompt)?:vitals_[a-z_]+:[a-z0-9_]+", rule.name)


@each([*RECORDS, *ALERTS])
def test_rules_read_only_what_is_exported_or_recorded(rule: Any) -> None:
    recorded = {record.name for record in RECORDS}
    text = re.sub(r'"[^"]*"|\[[^]]*\]', "", rule.expr)
    for name in re.findall(r"[\w:]*(?:vitals_|:)[\w:]*", text):
        assert name in recorded | SAMPLES, name


@each(ALERTS)
def test_an_alert_has_a_severity_a_dashboard_and_a_runbook_section(rule: Alert) -> None:
    assert rule.severity in SEVERITIES
    annotations = rule.annotations(SETTINGS)
    page, anchor = annotations["runbook_url"].split("#")
    assert Path(page).name == "runbooks.md"
    assert f"## {rule.name}\n" in RUNBOOKS
    assert anchor == rule.name.lower()
    assert f"/d/{DASHBOARD}" in annotations["dashboard_url"]
    assert ".Value" in rule.description
    assert ".Labels.target" in rule.summary + rule.description or rule.name == "LLMExporterDown"


def test_the_runbooks_have_no_section_for_an_alert_that_is_none() -> None:
    sections = re.findall(r"^## (LLM\w+)$", RUNBOOKS, re.MULTILINE)
    assert sorted(sections) == sorted(alert.name for alert in ALERTS)


@each(ALERTS)
def test_a_runbook_section_answers_every_question(rule: Alert) -> None:
    section = RUNBOOKS.split(f"## {rule.name}\n")[1].split("\n## ")[0]
    parts = ("Felt", "Means", "Tell", "vLLM", "Ollama", "Helped")
    missing = [part for part in parts if f"**{part}.**" not in section]
    assert not missing or (missing == ["vLLM", "Ollama"] and "**Do.**" in section)


def test_the_runbooks_say_what_each_severity_means() -> None:
    for name, meaning in SEVERITIES.items():
        assert f"**{name}**: {meaning}" in " ".join(RUNBOOKS.split())


def test_a_dashboard_has_the_uid_that_alerts_lead_to() -> None:
    boards = (ROOT / "dashboards/json").glob("*.json")
    assert DASHBOARD in {yaml.safe_load(path.read_text(encoding="utf-8"))["uid"] for path in boards}


@pytest.mark.parametrize("short", ["itl", "ttft"])
def test_a_latency_threshold_is_a_bucket_bound_of_vllm_and_of_the_probes(short: str) -> None:
    family = {"itl": "inter_token_latency_seconds", "ttft": "time_to_first_token_seconds"}[short]
    table = (ROOT / "tests/fixtures/vllm/vllm_metrics.csv").read_text(encoding="utf-8")
    row = next(line for line in table.splitlines() if line.startswith(f"vllm:{family},") and ",0.32.0," in line)
    bounds = {float(bound) for bound in row.split(",")[3].split()}
    thresholds = {getattr(SETTINGS, f"{short}_p99"), getattr(SETTINGS, f"{short}_slo")}
    assert thresholds <= bounds
    assert thresholds <= set(BUCKETS)
    assert BY_NAME[f"vitals_{family}"].type == "histogram"


def test_a_setting_can_be_changed_without_editing() -> None:
    changed = override(SETTINGS, ["itl_p99=1", "latency_for=1m"])
    high = next(alert for alert in alerts(changed) if alert.name == "LLMInterTokenLatencyHigh")
    assert "p99_rate5m >= 1\n" in high.expr
    assert high.wait == "1m"


@pytest.mark.parametrize("assignment", ["itl=1", "itl_p99=fast", "itl_p99"])
def test_a_setting_that_is_none_is_refused(assignment: str) -> None:
    with pytest.raises(ValueError, match=r"no setting is called 'itl'|could not convert"):
        override(SETTINGS, [assignment])


# Grafana's documentation, "Use configuration files to provision alerting resources": the fields of a rule.
RULE_FIELDS = {
    "uid": str, "title": str, "condition": str, "data": list, "for": str, "noDataState": str, "execErrState": str,
    "labels": dict, "annotations": dict,
}  # fmt: skip
QUERY_FIELDS = {"refId": str, "datasourceUid": str, "relativeTimeRange": dict, "model": dict}


def provisioned() -> Any:
    return yaml.safe_load((ROOT / GRAFANA).read_text(encoding="utf-8"))


def test_grafanas_copies_have_the_documented_fields() -> None:
    content = provisioned()
    assert content["apiVersion"] == 1
    (group,) = content["groups"]
    assert {name: type(value) for name, value in group.items()} == {
        "orgId": int, "name": str, "folder": str, "interval": str, "rules": list,
    }  # fmt: skip
    for rule in group["rules"]:
        assert {name: type(value) for name, value in rule.items()} == RULE_FIELDS
        assert re.fullmatch(r"[\w-]{1,40}", rule["uid"])
        assert re.fullmatch(r"\d+[mh]", rule["for"])
        assert (rule["noDataState"], rule["execErrState"]) == ("OK", "Error")
        for query in rule["data"]:
            assert {name: type(value) for name, value in query.items()} == QUERY_FIELDS
            assert query["model"]["refId"] == query["refId"]
        assert rule["condition"] in {query["refId"] for query in rule["data"]}
    assert len({rule["uid"] for rule in group["rules"]}) == len(group["rules"])


def test_grafanas_copies_are_the_main_alerts_with_the_same_words_and_queries() -> None:
    (group,) = provisioned()["groups"]
    main = [alert for alert in ALERTS if alert.main]
    assert [rule["title"] for rule in group["rules"]] == [alert.name for alert in main]
    for rule, alert in zip(group["rules"], main, strict=True):
        assert rule["data"][0]["model"]["expr"] == alert.expr
        assert rule["for"] == alert.wait
        assert rule["annotations"]["summary"] == alert.summary
        # Prometheus's .Value is a number, Grafana's a text; $ would be taken for an environment variable.
        assert not re.search(r"\.Value\b", rule["annotations"]["description"].replace(".Values.A.Value", ""))
        assert "$" not in str(rule)


def test_grafanas_copies_ask_the_data_source_that_is_provisioned() -> None:
    sources = yaml.safe_load((ROOT / "dashboards/provisioning/datasources/prometheus.yml").read_text(encoding="utf-8"))
    assert grafana.DATASOURCE in {source["uid"] for source in sources["datasources"]}
