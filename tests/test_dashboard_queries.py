"""The dashboards' PromQL, evaluated by Prometheus's own engine on series whose answer is known."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.build import queries as q
from dashboards.build.boards import render

PROMTOOL = shutil.which("promtool")
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not on PATH")

HISTOGRAM = "vitals_inter_token_latency_seconds"
LABELS = 'target="a",backend="vllm",model="m",engine="0"'
OTHER_ENGINE, OTHER_TARGET = LABELS.replace('"0"', '"1"'), LABELS.replace('"a"', '"b"')
VARIABLES = {"$target": ".*", "$backend": ".*", "$model": ".*", q.RATE: "20s", q.PROBES: "5m"}
P50 = q.quantile(0.5, HISTOGRAM, "target, model", q.RATE)
P99 = q.quantile(0.99, HISTOGRAM, "target, model", q.RATE)

Series = dict[str, str]
Expected = dict[str, float]


def histogram(cumulative: dict[str, int], total: float = 0.0, labels: str = LABELS) -> Series:
    """Return the series of a histogram that grows by these cumulative buckets at each scrape."""
    series = {f'{HISTOGRAM}_bucket{{{labels},le="{le}"}}': f"0+{count}x60" for le, count in cumulative.items()}
    series[f"{HISTOGRAM}_count{{{labels}}}"] = f"0+{cumulative['+Inf']}x60"
    series[f"{HISTOGRAM}_sum{{{labels}}}"] = f"0+{total}x60"
    return series


def check(folder: Path, series: Series, expr: str, expected: Expected, at: str = "2m") -> None:
    """Compare what `expr` gives at a time with what it should, on series scraped every 5 s."""
    check_all(folder, series, [(expr, expected, at)])


def check_all(folder: Path, series: Series, cases: list[tuple[str, Expected, str]]) -> None:
    """Have promtool do so for each case, with the dashboards' variables filled in."""
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
    file.write_text(yaml.safe_dump({"evaluation_interval": "5s", "tests": [test]}), encoding="utf-8")
    assert PROMTOOL is not None
    command = [PROMTOOL, "test", "rules", file.name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def filled_in(expr: str) -> str:
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return expr


def test_a_quantile_between_two_bounds_is_interpolated(tmp_path: Path) -> None:
    series = histogram({"0.01": 0, "0.025": 10, "0.05": 10, "+Inf": 10})
    check(tmp_path, series, P50, {'{target="a",model="m"}': 0.0175})


def test_a_quantile_below_the_lowest_bound_is_that_bound_and_says_so(tmp_path: Path) -> None:
    series = histogram({"0.01": 10, "0.025": 10, "+Inf": 10})
    check(tmp_path, series, P50, {'{target="a",model="m",bound="≤"}': 0.01})
    check(tmp_path, series, P99, {'{target="a",model="m",bound="≤"}': 0.01})


def test_a_quantile_above_the_highest_bound_is_that_bound_and_says_so(tmp_path: Path) -> None:
    series = histogram({"0.01": 0, "80.0": 8, "+Inf": 10})
    check(tmp_path, series, P50, {'{target="a",model="m"}': 0.01 + (80 - 0.01) * 5 / 8})
    check(tmp_path, series, P99, {'{target="a",model="m",bound="≥"}': 80})


def test_p50_can_lie_below_the_lowest_bound_while_p99_does_not(tmp_path: Path) -> None:
    series = histogram({"0.01": 60, "0.025": 100, "+Inf": 100})
    check(tmp_path, series, P50, {'{target="a",model="m",bound="≤"}': 0.01})
    check(tmp_path, series, P99, {'{target="a",model="m"}': 0.01 + 0.015 * 39 / 40})


def test_an_idle_server_has_no_quantile_and_no_mean(tmp_path: Path) -> None:
    series = histogram({"0.01": 0, "0.025": 0, "+Inf": 0})
    check(tmp_path, series, P99, {})
    check(tmp_path, series, q.observed(q.mean(HISTOGRAM, "target, model", q.RATE)), {})


def test_engines_of_one_server_are_one_distribution_and_servers_are_not(tmp_path: Path) -> None:
    series = histogram({"0.01": 0, "0.025": 10, "0.05": 10, "+Inf": 10})
    series |= histogram({"0.01": 0, "0.025": 0, "0.05": 10, "+Inf": 10}, labels=OTHER_ENGINE)
    series |= histogram({"0.01": 0, "0.025": 10, "0.05": 10, "+Inf": 10}, labels=OTHER_TARGET)
    check(tmp_path, series, P50, {'{target="a",model="m"}': 0.025, '{target="b",model="m"}': 0.0175})


def test_the_mean_is_exact_where_no_bucket_is_fine_enough(tmp_path: Path) -> None:
    series = histogram({"0.1": 10, "+Inf": 10}, total=0.625)
    check(tmp_path, series, q.mean(HISTOGRAM, "target, model", q.RATE), {'{target="a",model="m"}': 0.0625})


def test_a_tile_shows_an_idle_server_as_not_a_number(tmp_path: Path) -> None:
    series = histogram({"0.01": 0, "+Inf": 0}) | {'vitals_target_up{target="a",backend="vllm"}': "1x60"}
    tile = q.with_state(q.mean(HISTOGRAM, "target", q.RATE), q.histogram_seen(HISTOGRAM))
    check(tmp_path, series, f"count by (target) (({tile}) != ({tile}))", {'{target="a"}': 1})


def test_a_tile_shows_a_server_that_is_down_at_once_although_its_rates_live_on(tmp_path: Path) -> None:
    series = histogram({"0.1": 10, "+Inf": 10}, total=0.625)
    series |= {'vitals_target_up{target="a",backend="vllm"}': "1x23 0x30"}
    tile = q.with_state(q.mean(HISTOGRAM, "target", q.RATE), q.histogram_seen(HISTOGRAM))
    check(tmp_path, series, tile, {'{target="a"}': 0.0625}, at="115s")
    check(tmp_path, series, tile, {'{target="a"}': q.DOWN}, at="120s")


def test_a_tile_says_that_a_server_is_gone_when_nothing_is_scraped_any_more(tmp_path: Path) -> None:
    gauge = f"vitals_requests_running{{{LABELS}}}"
    up = 'vitals_target_up{target="a",backend="vllm"}'
    series = {gauge: "3x12 stale", up: "1x12 stale"}
    tile = q.with_state(q.summed("vitals_requests_running", "target"), q.gauge_seen("vitals_requests_running"))
    check(tmp_path, series, tile, {'{target="a"}': 3}, at="1m")
    check(tmp_path, series, tile, {'{target="a"}': q.GONE}, at="2m")
    check(tmp_path, series, q.target_state(), {'{target="a",backend="vllm"}': q.GONE}, at="2m")


def test_a_server_that_never_reported_a_quantity_has_no_value_for_it(tmp_path: Path) -> None:
    series = {'vitals_target_up{target="o",backend="ollama"}': "1x60"}
    tile = q.with_state(q.summed("vitals_requests_running", "target"), q.gauge_seen("vitals_requests_running"))
    check(tmp_path, series, tile, {})


def test_kv_usage_is_that_of_the_fullest_engine(tmp_path: Path) -> None:
    series = {
        f"vitals_kv_cache_usage_ratio{{{LABELS}}}": "0.4x60",
        f"vitals_kv_cache_usage_ratio{{{OTHER_ENGINE}}}": "0.6x60",
    }
    check(tmp_path, series, q.kv_usage("target"), {'{target="a"}': 0.6})


def test_the_kv_cache_of_a_sleeping_engine_is_not_an_empty_one(tmp_path: Path) -> None:
    series = {
        f"vitals_kv_cache_usage_ratio{{{LABELS}}}": "0x60",
        f"vitals_engine_asleep{{{LABELS}}}": "1x60",
        'vitals_target_up{target="a",backend="vllm"}': "1x60",
    }
    check(tmp_path, series, q.kv_usage("target, model"), {})
    check(tmp_path, series, q.kv_usage_or_asleep(), {'{target="a"}': q.ASLEEP})
    check(tmp_path, series, q.target_state(), {'{target="a",backend="vllm"}': 2})


def test_the_table_gives_the_reason_only_of_a_server_that_is_down(tmp_path: Path) -> None:
    series = {
        'vitals_target_up{target="a",backend="vllm"}': "1x60",
        'vitals_target_up{target="b",backend="vllm"}': "0x60",
        'vitals_scrape_failures_total{target="a",backend="vllm",reason="timeout"}': "0+1x60",
        'vitals_scrape_failures_total{target="b",backend="vllm",reason="timeout"}': "1x60",
        'vitals_scrape_failures_total{target="b",backend="vllm",reason="connect"}': "0+1x60",
    }
    expected = {'{target="b",backend="vllm",reason="connect"}': 4.0}
    check(tmp_path, series, q.failure_reason(), expected)


def test_the_table_has_a_row_for_the_exporter_itself(tmp_path: Path) -> None:
    series = {f'up{{job="{q.JOB}",instance="exporter:10434"}}': "0x60"}
    check(tmp_path, series, q.target_state(), {f'{{target="{q.JOB}"}}': 0})


@pytest.mark.parametrize("board", [pytest.param(json.loads(text), id=name) for name, text in render().items()])
def test_prometheus_finds_no_mistake_in_any_query_and_nothing_in_an_empty_store(board: Any, tmp_path: Path) -> None:
    exprs = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    check_all(tmp_path, {}, [(expr, {}, "2m") for expr in exprs])
