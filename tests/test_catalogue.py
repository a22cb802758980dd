"""The table of families keeps the rules of naming, and its page in docs/ is the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exporter.catalogue import BY_NAME, FAMILIES, Family, Kind, header, markdown, render_labels

DOCS = Path(__file__).parent.parent / "docs" / "metrics.md"

UNITS = ("_seconds", "_bytes", "_tokens", "_ratio", "_per_second", "_per_token")
WITHOUT_UNIT = {
    "vitals_target_up", "vitals_unmapped_families", "vitals_requests_running", "vitals_requests_waiting",
    "vitals_requests_waiting_by_reason", "vitals_engine_asleep", "vitals_models_installed", "vitals_model_loaded",
    "vitals_model_parameters", "vitals_config_last_reload_successful",
    "vitals_devices", "vitals_verdict",
}  # fmt: skip
"""Gauges of things that are counted, or 0 or 1, and so have no unit."""

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@each_family
def test_a_name_is_prefixed_without_colons_and_ends_as_its_type_demands(family: Family) -> None:
    assert re.fullmatch(r"vitals_[a-z][a-z0-9_]*[a-z0-9]", family.name)
    assert family.name.endswith("_total") is (family.type == "counter")
    assert family.name.endswith("_info") is (family.type == "info")
    assert not family.name.endswith(("_bucket", "_sum", "_count", "_created"))


@each_family
def test_a_measured_name_says_so_and_no_other_does(family: Family) -> None:
    assert family.name.startswith("vitals_probe") is (family.kind is Kind.MEASURED)


@each_family
def test_a_name_ends_in_a_base_unit_or_counts(family: Family) -> None:
    assert not re.search(r"milliseconds|_ms\b|percent|perc\b|kilobytes|_kb\b|_mb\b|minutes", family.name)
    if family.type == "histogram":
        assert family.name.endswith(("_seconds", "_tokens"))
    elif family.type == "gauge":
        assert family.name.endswith(UNITS) is (family.name not in WITHOUT_UNIT)


@each_family
def test_a_label_is_named_once_and_as_prometheus_allows(family: Family) -> None:
    assert len(set(family.all_labels)) == len(family.all_labels)
    for label in family.all_labels:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", label)
        assert label not in ("le", "quantile", "job", "instance")


@each_family
def test_help_is_one_sentence_line(family: Family) -> None:
    assert "\n" not in family.help
    assert family.help == family.help.strip()
    assert family.help.endswith(".")
    assert "  " not in family.help


def test_a_name_occurs_once_and_no_sample_of_one_family_is_named_as_another() -> None:
    assert len(BY_NAME) == len(FAMILIES)
    names = [name for family in FAMILIES for name in family.sample_names]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("name", "text", "openmetrics"),
    [
        ("vitals_preemptions_total", "vitals_preemptions_total counter", "vitals_preemptions counter"),
        ("vitals_build_info", "vitals_build_info gauge", "vitals_build info"),
        ("vitals_requests_running", "vitals_requests_running gauge", "vitals_requests_running gauge"),
    ],
)
def test_a_type_line_is_that_of_its_format(name: str, text: str, openmetrics: str) -> None:
    assert header(BY_NAME[name], False).splitlines()[1] == f"# TYPE {text}"
    assert header(BY_NAME[name], True).splitlines()[1] == f"# TYPE {openmetrics}"


def test_a_label_value_is_escaped_and_an_empty_one_left_out() -> None:
    assert render_labels((("a", 'q"b\\n\n'), ("b", ""), ("c", "é"))) == r'a="q\"b\\n\n",c="é"'


def test_the_page_in_docs_is_the_table() -> None:
    assert DOCS.read_text(encoding="utf-8") == markdown(), "run: python -m exporter.catalogue > docs/metrics.md"


def test_the_page_has_a_well_formed_row_for_each_family() -> None:
    rows = [line for line in markdown().splitlines() if line.startswith("| `")]
    assert len(rows) == len(FAMILIES)
    assert all(row.count("|") == 5 for row in rows)
