"""The dashboards: what is committed is what the builders make, and no panel can mislead by its form."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.build.boards import FOLDER, render
from exporter.catalogue import BY_NAME, FAMILIES

ROOT = Path(__file__).resolve().parent.parent
BOARDS: dict[str, Any] = {name: json.loads(text) for name, text in render().items()}
SAMPLES = {sample: family for family in FAMILIES for sample in family.sample_names}
RECORDED = {
    rule["record"]: rule["expr"]
    for path in (ROOT / "prometheus/rules").glob("*.yml")
    for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
    if "record" in rule
}
NOT_OURS = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}
NOT_SCRAPED = "Prometheus hears nothing of the exporter"
WINDOWS = {
    "$__rate_interval",
    "$__range",
    "$__range:",
    "$probe_window",
    "15m",  # how long a server that is gone is still spoken of
    "5m",  # the window of the recorded p99 that the same query compares with
}
HOME = BOARDS["five-key-metrics.json"]

PANELS = [
    pytest.param(panel, id=f"{name}-{panel['id']}-{panel['title']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    if panel["type"] != "row"
]
QUERIES = [
    pytest.param(target["expr"], id=f"{name}-{panel['id']}{target['refId']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    for target in panel.get("targets", [])
]
MARKS = [
    pytest.param(mark, id=f"{name}-{mark['name']}")
    for name, board in BOARDS.items()
    for mark in board["annotations"]["list"]
]
each_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
each_panel = pytest.mark.parametrize("panel", PANELS)
each_query = pytest.mark.parametrize("expr", QUERIES)


def without_strings(promql: str) -> str:
    return re.sub(r'"[^"]*"', '""', promql)


def metrics(promql: str) -> set[str]:
    """The names of the series that a query reads."""
    ours = re.findall(r"(?:\btarget_model:)?\bvitals_\w+(?::\w+)?", without_strings(promql))
    return {*ours, *re.findall(r"\b(up|process_\w+)\{", promql)}


def family(name: str) -> str:
    return SAMPLES[name].name if name in SAMPLES else name


def sources(name: str) -> set[str]:
    """Whether a series is of users' traffic or of probes, or, being a headline, says so itself in a label."""
    if name in RECORDED:
        return set() if 'label_replace(' in RECORDED[name] and '"source"' in RECORDED[name] else {
            source for read in metrics(RECORDED[name]) for source in sources(read)
        }  # fmt: skip
    kind = SAMPLES[name].kind if name in SAMPLES else ""
    return {str(kind)} & {"relayed", "measured"}


def shown(expr: str) -> str:
    """A query without what chooses the servers to be shown."""
    return re.split(r"\n(?:and|unless) on \(", expr)[0]


def panels(title: str) -> list[Any]:
    return [panel for board in BOARDS.values() for panel in board["panels"] if panel["title"] == title]


def test_the_committed_files_are_what_the_builders_make() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    assert committed == render(), "run: make dashboards"


def test_the_set_is_complete() -> None:
    assert [board["title"].removeprefix("LLM vitals / ") for board in BOARDS.values()] == [
        "Five key metrics",
        "Prefill and decode",
        "Capacity",
        "Probes",
        "Exporter and targets",
    ]


@each_board
def test_a_dashboard_has_a_fixed_uid_and_no_number_of_another_grafana(board: Any) -> None:
    assert board["uid"].startswith("llm-vitals-")
    assert board["id"] is None
    assert "__inputs" not in board
    assert sum(other["uid"] == board["uid"] for other in BOARDS.values()) == 1


@each_board
def test_every_data_source_is_the_one_chosen_in_the_dashboard(board: Any) -> None:
    parts = board["panels"] + board["templating"]["list"] + board["annotations"]["list"]
    uids = re.findall(r'"uid": "([^"]*)"', json.dumps(parts))
    assert set(uids) == {"${datasource}"}
    assert "${DS_" not in json.dumps(board)


@each_board
def test_panels_have_ids_of_their_own_and_fill_24_columns_without_overlap(board: Any) -> None:
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        taken = set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
        assert not cells & taken, panel["title"]
        cells |= taken
    height = 1 + max(y for _, y in cells)
    assert cells == set(itertools.product(range(24), range(height)))


@each_panel
def test_a_panel_says_what_it_means_what_good_looks_like_and_which_series_it_reads(panel: Any) -> None:
    means, good, series = re.split(r"\n\nGood: |\n\nSeries: ", panel["description"])
    assert means
    assert good
    used = {family(name) for target in panel["targets"] for name in metrics(target["expr"])}
    assert set(re.findall(r"`([^`]*)`", series)) == used


@each_panel
def test_a_panel_has_a_unit(panel: Any) -> None:
    assert panel["fieldConfig"]["defaults"]["unit"]
    if panel["type"] == "heatmap":
        assert panel["options"]["yAxis"]["unit"]


@each_query
def test_a_query_reads_only_what_the_exporter_exports_or_a_rule_records(expr: str) -> None:
    assert metrics(expr)
    assert metrics(expr) <= SAMPLES.keys() | RECORDED.keys() | NOT_OURS


@pytest.mark.parametrize("mark", MARKS)
def test_a_mark_reads_only_what_there_is(mark: Any) -> None:
    assert metrics(mark["expr"]) <= SAMPLES.keys()
    assert metrics(mark["expr"]) or mark["expr"].startswith("ALERTS{")


@each_query
def test_counters_and_histograms_stand_only_under_rate_or_increase(expr: str) -> None:
    for before, name in re.findall(r"(\w*\(?)((?:\btarget_model:)?\bvitals_\w+(?::\w+)?)", without_strings(expr)):
        if name in SAMPLES and SAMPLES[name].type in {"counter", "histogram"}:
            # last_over_time and absent ask whether there is such a series at all.
            assert before in {"rate(", "increase(", "last_over_time(", "absent("}, name


@each_query
def test_a_window_is_made_for_the_scrape_interval_or_named_for_a_reason(expr: str) -> None:
    assert set(re.findall(r"\[([^\]]*)\]", expr)) <= WINDOWS


@each_query
def test_traffic_and_probes_never_meet_in_one_query_unless_to_choose_between_them(expr: str) -> None:
    read = metrics(shown(expr))
    found = {source for name in read for source in sources(name)}
    models = "vitals_probe_last_success_timestamp_seconds" in read
    assert len(found) <= 1 or models


@each_query
def test_a_quantile_is_taken_by_bucket_server_and_model(expr: str) -> None:
    for grouping in re.findall(r"histogram_quantile\([^,]+, sum by \(([^)]*)\)", expr):
        assert {"le", "target", "model"} <= set(grouping.split(", "))


@each_query
def test_a_ratio_is_never_added(expr: str) -> None:
    assert not re.search(r"\bsum\b[^()]*(\([^()]*\) )?\((rate\()?vitals_\w+_(ratio|per_gpu_total)\b", expr)


@each_panel
def test_a_quantile_says_when_it_is_only_a_bound(panel: Any) -> None:
    for target in panel["targets"]:
        if panel["type"] == "timeseries" and re.search(r"histogram_quantile|_bounded_", shown(target["expr"])):
            assert "{{bound}}" in target["legendFormat"]


@each_query
def test_kv_usage_is_never_added_nor_averaged(expr: str) -> None:
    assert not re.search(r"\b(sum|avg)\b[^()]*(\([^()]*\) )?\(vitals_kv_cache_usage_ratio", expr)


def test_headline_tiles_read_the_rule_that_picks_the_source_and_name_it() -> None:
    for short in ("ttft", "itl"):
        (tile,) = (panel for panel in panels(f"{short.upper()} p99") if panel["type"] == "stat")
        for target in tile["targets"][:2]:
            assert f"target_model:vitals_{short}_seconds:p99_bounded_rate5m" in target["expr"]
            assert "{{source}}" in target["legendFormat"]
            assert f"${short}_slo" in target["expr"]


@pytest.mark.parametrize("title", ["Time to first token (TTFT)", "Inter-token latency (ITL)"])
def test_latency_graphs_show_quantiles_and_mean_of_traffic_and_of_probes(title: str) -> None:
    (panel,) = panels(title)
    legends = [re.sub(r"\{\{.*?\}\} ?", "", target["legendFormat"]).strip() for target in panel["targets"]]
    assert legends == [f"{kind}{what}" for kind in ("", "probe ") for what in ("p50", "p95", "p99", "mean")]


@each_panel
def test_a_mean_stands_beside_every_quantile(panel: Any) -> None:
    exprs = [shown(target["expr"]) for target in panel["targets"]]
    # That of the concurrency compares with a quantile and shows none.
    if panel["type"] == "timeseries" and not panel["title"].startswith("Concurrency now"):
        quantiles = any("histogram_quantile" in expr or re.search(r":p\d\d_", expr) for expr in exprs)
        assert not quantiles or any(("_sum" in expr and "_count" in expr) or ":mean_" in expr for expr in exprs)


@each_panel
def test_a_panel_without_a_value_does_not_blame_the_source_for_what_did_not_happen(panel: Any) -> None:
    no_value = panel["fieldConfig"]["defaults"].get("noValue")
    if panel["type"] == "timeseries" and no_value in {"not told by these servers", NOT_SCRAPED}:
        assert any(not re.search(r"> 0\b", shown(target["expr"])) for target in panel["targets"])


@each_board
def test_a_server_that_is_down_is_red_on_every_dashboard(board: Any) -> None:
    texts = [json.dumps(panel) for panel in board["panels"] if panel["type"] in {"stat", "table", "state-timeline"}]
    assert any(text.count("vitals_target_up") and '"text": "DOWN"' in text and '"red"' in text for text in texts)


@each_board
def test_choices_start_with_all_servers_and_all_models(board: Any) -> None:
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    for name in ("backend", "target", "model", "engine"):
        assert variables[name]["multi"]
        assert variables[name]["includeAll"]
        assert variables[name]["current"]["value"] == ["$__all"]
        assert set(re.findall(r"\bvitals_\w+", variables[name]["query"])) <= SAMPLES.keys()


@each_board
def test_every_dashboard_has_the_same_variables_so_that_links_carry_them_all(board: Any) -> None:
    def settings(of: Any) -> list[Any]:
        return [{**variable, "hide": 0} for variable in of["templating"]["list"]]

    assert settings(board) == settings(HOME)
    (link,) = board["links"]
    assert link["type"] == "dashboards"
    assert link["tags"] == board["tags"]
    assert link["keepTime"]
    assert link["includeVars"]


@each_board
def test_a_variable_is_shown_where_it_makes_a_difference(board: Any) -> None:
    panels = re.sub(r"\$\{\w+:queryparam\}", "", json.dumps(board["panels"]))
    for variable in board["templating"]["list"]:
        used = re.search(rf"\$\{{?{variable['name']}\b", panels)
        assert (variable["hide"] == 0) == bool(used or variable["name"] in {"datasource", "backend", "target", "model"})


def test_slo_thresholds_are_bucket_bounds_as_vllm_writes_them() -> None:
    page = (ROOT / "tests/fixtures/vllm/0.32.0-real-after-bench.prom").read_text(encoding="utf-8")
    variables = {variable["name"]: variable for variable in HOME["templating"]["list"]}
    for name, vllm in (("ttft_slo", "time_to_first_token"), ("itl_slo", "inter_token_latency")):
        bounds = set(re.findall(rf'vllm:{vllm}_seconds_bucket{{[^}}]*le="([^"]*)"', page))
        options = [option.partition(" : ")[2] for option in variables[name]["query"].split(",")]
        assert set(options) <= bounds
        assert variables[name]["current"]["value"] in options


@each_board
def test_alerts_restarts_and_model_loads_are_marked(board: Any) -> None:
    assert [mark["name"] for mark in board["annotations"]["list"]] == ["Alerts firing", "Restarts", "Model loads"]


def test_the_catalogue_has_no_family_that_a_dashboard_could_confuse_with_a_recorded_one() -> None:
    assert not BY_NAME.keys() & RECORDED.keys()
