"""The dashboards: what is committed is what the builders make, and no panel can mislead by its form."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from dashboards.build.boards import FOLDER, render
from dashboards.build.queries import PROBES, RATE, RECENT
from exporter.catalogue import FAMILIES

BOARDS = {name: json.loads(text) for name, text in render().items()}
SAMPLES = {sample: family for family in FAMILIES for sample in family.sample_names}
NOT_OURS = {"up"}
WINDOWS = {RATE, PROBES, RECENT}
FIVE = BOARDS["five-key-metrics.json"]

PANELS = [
    pytest.param(panel, id=f"{name}-{panel['id']}-{panel['title']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
]
QUERIES = [
    pytest.param(target["expr"], id=f"{name}-{panel['id']}{target['refId']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    for target in panel["targets"]
]


def without_strings(promql: str) -> str:
    return re.sub(r'"[^"]*"', '""', promql)


def metrics(promql: str) -> set[str]:
    return set(re.findall(r"\b(?:vitals_\w+|up)\b", without_strings(promql)))


def panel(title: str) -> Any:
    (found,) = (p for p in FIVE["panels"] if p["title"] == title and p["type"] == "timeseries")
    return found


def test_the_committed_files_are_what_the_builders_make() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    assert committed == render(), "run: python -m dashboards.build"


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_a_dashboard_has_a_fixed_uid_and_no_number_of_another_grafana(board: Any) -> None:
    assert board["uid"].startswith("llm-vitals-")
    assert board["id"] is None
    assert "__inputs" not in board


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_every_data_source_is_the_one_chosen_in_the_dashboard(board: Any) -> None:
    uids = re.findall(r'"uid": "([^"]*)"', json.dumps(board["panels"] + board["templating"]["list"]))
    assert set(uids) == {"${datasource}"}
    assert "${DS_" not in json.dumps(board)


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_panels_have_ids_of_their_own_and_do_not_overlap_within_24_columns(board: Any) -> None:
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        taken = set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
        assert not cells & taken, panel["title"]
        cells |= taken


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_says_what_good_looks_like_and_names_its_series_and_unit(panel: Any) -> None:
    description = panel["description"]
    assert "Good" in description
    assert panel["fieldConfig"]["defaults"]["unit"]
    used = {name for target in panel["targets"] for name in metrics(target["expr"])}
    for name in used:
        assert re.search(rf"`{re.sub('_(bucket|sum|count)$', '', name)}`", description), name


@pytest.mark.parametrize("expr", QUERIES)
def test_a_query_asks_only_for_what_the_exporter_exports(expr: str) -> None:
    assert metrics(expr)
    assert metrics(expr) <= SAMPLES.keys() | NOT_OURS


@pytest.mark.parametrize("expr", QUERIES)
def test_counters_and_histograms_stand_only_under_rate_or_increase(expr: str) -> None:
    for before, name in re.findall(r"(\w*\(?)\b(vitals_\w+)", without_strings(expr)):
        if SAMPLES[name].type in {"counter", "histogram"}:
            assert before in {"rate(", "increase("}, name


@pytest.mark.parametrize("expr", QUERIES)
def test_a_window_is_made_for_the_scrape_interval_or_named_for_a_reason(expr: str) -> None:
    assert set(re.findall(r"\[([^\]]*)\]", expr)) <= WINDOWS


@pytest.mark.parametrize("expr", QUERIES)
def test_traffic_and_probes_never_meet_in_one_query(expr: str) -> None:
    probed = [name for name in metrics(expr) if name.startswith("vitals_probe_")]
    relayed = [name for name in metrics(expr) if SAMPLES.get(name) and SAMPLES[name].kind == "relayed"]
    assert not (probed and relayed)


@pytest.mark.parametrize("expr", QUERIES)
def test_a_quantile_is_taken_by_bucket_and_target(expr: str) -> None:
    for grouping in re.findall(r"histogram_quantile\([\d.]+, sum by \(([^)]*)\)", expr):
        assert {"le", "target", "model"} <= set(grouping.split(", "))


def test_kv_usage_is_never_added_and_requests_are() -> None:
    for p in FIVE["panels"]:
        for target in p["targets"]:
            assert not re.search(r"\b(sum|avg)\b[^{]*\(vitals_kv_cache_usage_ratio", target["expr"])
    assert panel("KV-cache usage")["targets"][0]["expr"].startswith("max by (target, model)")
    for title in ("Requests running", "Requests waiting"):
        assert panel(title)["targets"][0]["expr"].startswith("sum by (target, model)")


@pytest.mark.parametrize("title", ["Time to first token (TTFT)", "Inter-token latency (ITL)"])
def test_latency_graphs_show_p50_p99_and_mean_of_traffic_and_of_probes(title: str) -> None:
    legends = [re.sub(r"\{\{.*?\}\} ?", "", target["legendFormat"]) for target in panel(title)["targets"]]
    assert [legend.strip() for legend in legends] == [
        f"{kind} {what}" for kind in ("traffic", "probe") for what in ("p50", "p99", "mean")
    ]


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_choices_start_with_all_servers_and_all_models(board: Any) -> None:
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert {"datasource", "backend", "target", "model"} <= variables.keys()
    for name in ("backend", "target", "model"):
        assert variables[name]["multi"]
        assert variables[name]["current"]["value"] == ["$__all"]
        assert set(re.findall(r"\bvitals_\w+", variables[name]["query"])) <= SAMPLES.keys()
