"""The dashboards' contents: each shows what it is for, found by the series that one panel reads together."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.build.boards import render

ROOT = Path(__file__).resolve().parent.parent
BOARDS: dict[str, Any] = {name.removesuffix(".json"): json.loads(text) for name, text in render().items()}
HOME = BOARDS["five-key-metrics"]

TTFT, ITL, TPOT = (
    f"vitals_{name}_seconds" for name in ("time_to_first_token", "inter_token_latency", "time_per_output_token")
)
GENERATED = "vitals_generation_tokens_total"
KV = "vitals_kv_cache_usage_ratio"

CONTENTS: dict[str, dict[str, set[str]]] = {
    "five-key-metrics": {
        "lines of TTFT": {f"{TTFT}_bucket", f"{TTFT}_sum"},
        "lines of ITL": {f"{ITL}_bucket", f"{ITL}_sum"},
        "running, waiting and KV usage": {"vitals_requests_running", "vitals_requests_waiting", KV},
        "prompt and generation tokens": {"vitals_prompt_tokens_total", GENERATED},
        "shares within the thresholds": {f"{TTFT}_bucket", f"{ITL}_bucket"},
    },
    "prefill-and-decode": {
        "parts of users' TTFT": {"vitals_request_queue_seconds_sum", "vitals_request_prefill_seconds_sum"},
        "parts of a probe's TTFT, with its load": {"vitals_probe_phase_seconds"},
        "prefill tokens a second": {"vitals_prompt_tokens_total", "vitals_request_prefill_seconds_sum"},
        "TTFT of the small and the large prompt": {"vitals_probe_time_to_first_token_seconds_sum"},
        "the slope between them": {"vitals_probe_prefill_seconds_per_token", "vitals_probe_prefill_fixed_seconds"},
        "what the prefix cache saves": {
            "vitals_probe_cached_saving_seconds",
            "vitals_cached_prompt_tokens_total",
            "vitals_prompt_tokens_total",
        },
        "a stream against its ceiling": {GENERATED, f"{ITL}_sum", "vitals_decode_ceiling_tokens_per_second"},
        "ITL against running": {f"{ITL}_bucket", "vitals_requests_running"},
        "TPOT against ITL": {f"{TPOT}_sum", f"{ITL}_sum"},
        "tokens a step": {GENERATED, f"{ITL}_count", "vitals_spec_decode_accepted_tokens_total"},
    },
    "capacity": {
        "KV usage by engine": {KV},
        "tokens in use and free": {"vitals_kv_cache_capacity_tokens", KV},
        "bytes in use and free": {"vitals_kv_cache_capacity_bytes", KV},
        "waiting by reason": {"vitals_requests_waiting_by_reason"},
        "preemptions": {"vitals_preemptions_total"},
        "exhaustion": {"vitals_requests_waiting", KV, "vitals_preemptions_total"},
        "prompt lengths": {"vitals_request_prompt_tokens_bucket"},
        "output lengths": {"vitals_request_generation_tokens_bucket"},
        "concurrency at which p99 broke": {
            "vitals_requests_running",
            "target_model:vitals_itl_seconds:p99_rate5m",
            "target_model:vitals_ttft_seconds:p99_rate5m",
        },
    },
    "probes": {
        "success and failures": {"vitals_probes_total", "vitals_probe_failures_total"},
        "phases of the last probe": {"vitals_probe_phase_seconds"},
        "cold loads": {"vitals_probe_load_seconds_sum", "vitals_probe_cold_total"},
        "client against server": {
            "vitals_probe_time_to_first_token_seconds_sum",
            "vitals_probe_phase_seconds",
            f"{TTFT}_sum",
        },
        "share of the server's time": {"vitals_probe_share_ratio"},
    },
    "exporter-and-targets": {
        "up": {"vitals_target_up"},
        "duration": {"vitals_scrape_duration_seconds"},
        "failures": {"vitals_scrape_failures_total"},
        "names in use": {"vitals_family_source_info"},
        "drift": {"vitals_unmapped_families"},
        "bad lines": {"vitals_scrape_bad_lines_total"},
        "CPU": {"process_cpu_seconds_total"},
        "memory": {"process_resident_memory_bytes"},
    },
}


def reads(panel: Any) -> set[str]:
    """The series of a panel's queries, without those that only choose servers."""
    found = set()
    for target in panel.get("targets", []):
        expr = re.split(r"\n(?:and|unless) on \((?:target|target, model)\) (?:topk|group)", target["expr"])[0]
        found |= set(re.findall(r"[\w:]+(?=\{)", re.sub(r'"[^"]*"', '""', expr)))
    return found


def panel(title: str, kind: str) -> Any:
    (found,) = (panel for panel in HOME["panels"] if panel["title"] == title and panel["type"] == kind)
    return found


@pytest.mark.parametrize(
    ("board", "series"),
    [
        pytest.param(board, series, id=f"{board}-{what}")
        for board, contents in CONTENTS.items()
        for what, series in contents.items()
    ],
)
def test_a_dashboard_shows_what_it_is_for(board: str, series: set[str]) -> None:
    assert any(series <= reads(panel) for panel in BOARDS[board]["panels"])


def test_the_home_dashboard_begins_with_tiles_in_a_row_with_their_trends() -> None:
    tiles = [panel for panel in HOME["panels"] if panel["gridPos"]["y"] == 0]
    assert [tile["title"] for tile in tiles] == ["Servers", "TTFT p99", "ITL p99", "Running", "Waiting", "KV cache"]
    limits = ("", "$ttft_slo", "$itl_slo", "$running_limit", "$waiting_limit", "$kv_limit")
    for tile, limit in zip(tiles, limits, strict=True):
        assert (tile["type"], tile["options"]["graphMode"]) == ("stat", "area")
        assert limit in tile["targets"][0]["expr"]


def test_the_fleet_has_a_column_for_each_number_and_what_is_wrong_on_top() -> None:
    (organize,) = (step["options"] for step in panel("Servers", "table")["transformations"] if step["id"] == "organize")
    columns = sorted(organize["indexByName"], key=organize["indexByName"].__getitem__)
    assert [organize["renameByName"][name] for name in columns] == [
        "State", "Server", "Engine", "Model", "TTFT p99", "TTFT by", "ITL p99", "ITL by", "Running", "Waiting",
        "KV cache", "Tokens/s", "Verdict",
    ]  # fmt: skip
    assert panel("Servers", "table")["options"]["sortBy"] == [{"displayName": "State", "desc": False}]


def test_the_home_dashboard_has_heatmaps_of_both_latencies() -> None:
    heatmaps = [panel for panel in HOME["panels"] if panel["type"] == "heatmap"]
    assert [f"{name}_bucket" in reads(panel) for name, panel in zip((TTFT, ITL), heatmaps, strict=True)] == [True, True]
    assert all(panel["targets"][0]["format"] == "heatmap" for panel in heatmaps)


def test_running_and_waiting_are_stacked_and_kv_usage_is_not() -> None:
    load = panel("Requests running and waiting, KV cache", "timeseries")
    assert load["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"
    properties = {
        override["matcher"]["options"]: {item["id"]: item["value"] for item in override["properties"]}
        for override in load["fieldConfig"]["overrides"]
    }
    kv = properties["KV usage"]
    assert (kv["custom.stacking"]["mode"], kv["custom.axisPlacement"], kv["unit"]) == ("none", "right", "percentunit")
    assert "custom.stacking" not in properties["running"] | properties["waiting"]


def test_what_the_time_to_the_first_token_goes_into_is_stacked() -> None:
    for title in ("Where users' time to the first token goes", "Where a probe's time to the first token goes"):
        (found,) = (panel for panel in BOARDS["prefill-and-decode"]["panels"] if panel["title"] == title)
        assert found["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"


def test_all_that_can_be_chosen_is_a_variable() -> None:
    names = {variable["name"] for variable in HOME["templating"]["list"]}
    assert names >= {"datasource", "target", "backend", "model", "engine", "ttft_slo", "itl_slo", "quantile"}


def test_a_row_of_the_fleet_leads_to_the_servers_own_board_and_to_the_exporters_page() -> None:
    (table,) = (panel for panel in HOME["panels"] if panel["type"] == "table")
    (links,) = (
        item["value"]
        for override in table["fieldConfig"]["overrides"]
        for item in override["properties"]
        if item["id"] == "links"
    )
    urls = [link["url"] for link in links]
    assert urls[0].startswith(f"/d/{BOARDS['prefill-and-decode']['uid']}?")
    assert "var-target=${__value.raw}" in urls[0]
    assert "${__url_time_range}" in urls[0]
    for variable in HOME["templating"]["list"]:
        assert (variable["type"] != "query") == (f"${{{variable['name']}:queryparam}}" in urls[0])
    assert urls[1] == "${exporter}/debug/${__value.raw}"


def test_every_cause_of_the_verdict_has_its_words_in_the_fleet() -> None:
    causes = yaml.safe_load((ROOT / "exporter/physics/causes.yml").read_text(encoding="utf-8"))
    (table,) = (panel for panel in HOME["panels"] if panel["type"] == "table")
    texts = json.dumps(table["fieldConfig"]["overrides"])
    for cause in causes.values():
        assert json.dumps(cause["title"]) in texts
