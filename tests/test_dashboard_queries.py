"""The dashboards' PromQL, evaluated by Prometheus's own engine on series whose answer is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboards.build import capacity
from dashboards.build import queries as q
from tests.promql import (
    A_OTHER_MODEL,
    BOARDS,
    HISTOGRAM,
    LABELS,
    OTHER_ENGINE,
    OTHER_MODEL,
    OTHER_TARGET,
    OTHER_UP,
    P50,
    P99,
    PROMTOOL,
    UP,
    A,
    B,
    check,
    check_all,
    check_tile,
    histogram,
    queries,
    shown,
)

pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not on PATH")


def test_a_quantile_between_two_bounds_is_interpolated(tmp_path: Path) -> None:
    series = histogram({"0.01": 0, "0.025": 10, "0.05": 10, "+Inf": 10})
    check(tmp_path, series, P50, {'{target="a",backend="vllm",model="m"}': 0.0175})


def test_a_quantile_below_the_lowest_bound_is_that_bound_and_says_so(tmp_path: Path) -> None:
    series = histogram({"0.01": 10, "0.025": 10, "+Inf": 10})
    check(tmp_path, series, P50, {'{target="a",backend="vllm",model="m",bound="≤"}': 0.01})
    check(tmp_path, series, P99, {'{target="a",backend="vllm",model="m",bound="≤"}': 0.01})


def test_a_quantile_above_the_highest_bound_is_that_bound_and_says_so(tmp_path: Path) -> None:
    series = histogram({"0.01": 0, "80.0": 8, "+Inf": 10})
    check(tmp_path, series, P50, {'{target="a",backend="vllm",model="m"}': 0.01 + (80 - 0.01) * 5 / 8})
    check(tmp_path, series, P99, {'{target="a",backend="vllm",model="m",bound="≥"}': 80})


def test_p50_can_lie_below_the_lowest_bound_while_p99_does_not(tmp_path: Path) -> None:
    series = histogram({"0.01": 60, "0.025": 100, "+Inf": 100})
    check(tmp_path, series, P50, {'{target="a",backend="vllm",model="m",bound="≤"}': 0.01})
    check(tmp_path, series, P99, {'{target="a",backend="vllm",model="m"}': 0.01 + 0.015 * 39 / 40})


def test_an_idle_server_has_no_quantile_and_no_mean(tmp_path: Path) -> None:
    series = histogram({"0.01": 0, "0.025": 0, "+Inf": 0})
    check(tmp_path, series, P99, {})
    check(tmp_path, series, q.mean(HISTOGRAM), {})


def test_engines_of_one_server_are_one_distribution_and_servers_are_not(tmp_path: Path) -> None:
    series = histogram({"0.01": 0, "0.025": 10, "0.05": 10, "+Inf": 10})
    series |= histogram({"0.01": 0, "0.025": 0, "0.05": 10, "+Inf": 10}, labels=OTHER_ENGINE)
    series |= histogram({"0.01": 0, "0.025": 10, "0.05": 10, "+Inf": 10}, labels=OTHER_TARGET)
    check(
        tmp_path,
        series,
        P50,
        {'{target="a",backend="vllm",model="m"}': 0.025, '{target="b",backend="vllm",model="m"}': 0.0175},
    )


def test_the_mean_is_exact_where_no_bucket_is_fine_enough(tmp_path: Path) -> None:
    series = histogram({"0.1": 10, "+Inf": 10}, total=0.625)
    check(tmp_path, series, q.mean(HISTOGRAM), {'{target="a",backend="vllm",model="m"}': 0.0625})


def test_the_share_within_a_threshold_is_exact_at_a_bucket_bound(tmp_path: Path) -> None:
    series = histogram({"0.05": 3, "0.1": 97, "+Inf": 100})
    check(tmp_path, series, q.within(HISTOGRAM, "$itl_slo", ""), {"{}": 0.97})


def test_there_is_no_share_within_what_is_no_bucket_bound(tmp_path: Path) -> None:
    check(tmp_path, histogram({"0.05": 3, "+Inf": 100}), q.within(HISTOGRAM, "$itl_slo", ""), {})


SLOW = histogram({"0.1": 0, "0.2": 100, "+Inf": 100})
QUICK = histogram({"0.025": 0, "0.05": 100, "+Inf": 100}, labels=OTHER_TARGET)


def test_a_tile_shows_the_slowest_server_in_red_and_names_it_and_its_source(tmp_path: Path) -> None:
    series = {**SLOW, **QUICK, UP: "1x60", OTHER_UP: "1x60"}
    check_tile(tmp_path, series, "ITL p99", shown(bad={f'{{{A},source="traffic"}}': 0.199}))


def test_a_tile_is_green_when_the_slowest_server_is_within_the_threshold(tmp_path: Path) -> None:
    check_tile(tmp_path, {**QUICK, OTHER_UP: "1x60"}, "ITL p99", shown(good={f'{{{B},source="traffic"}}': 0.04975}))


def test_a_tile_does_not_invent_a_quantile_below_the_first_bound(tmp_path: Path) -> None:
    series = {**histogram({"0.01": 10, "0.025": 10, "+Inf": 10}), UP: "1x60"}
    check_tile(tmp_path, series, "ITL p99", shown(good={f'{{{A},source="traffic",bound="≤"}}': 0.01}))


def test_a_tile_takes_the_probes_where_there_is_no_traffic_and_says_so(tmp_path: Path) -> None:
    probes = histogram({"0.1": 0, "0.2": 100, "+Inf": 100}, labels=A, family="vitals_probe_inter_token_latency_seconds")
    idle = histogram({"0.1": 0, "0.2": 0, "+Inf": 0})
    check_tile(
        tmp_path, {**probes, **idle, UP: "1x60"}, "ITL p99", shown(bad={f'{{{A},source="probe"}}': 0.199})
    )  # fmt: skip


def test_an_idle_server_has_no_traffic_and_not_0(tmp_path: Path) -> None:
    series = {**histogram({"0.01": 0, "+Inf": 0}), UP: "1x60"}
    check_tile(tmp_path, series, "ITL p99", shown(state={"{}": q.NONE}))


def test_a_server_that_is_down_is_down_at_once_although_its_rates_live_on(tmp_path: Path) -> None:
    series = {**SLOW, UP: "1x23 0x60"}
    check_tile(tmp_path, series, "ITL p99", shown(bad={f'{{{A},source="traffic"}}': 0.199}), at="115s")
    check_tile(tmp_path, series, "ITL p99", shown(state={"{}": q.DOWN}), at="120s")


def test_of_two_servers_the_one_that_is_up_is_shown_and_the_other_counted_as_down(tmp_path: Path) -> None:
    series = {**SLOW, **QUICK, UP: "0x60", OTHER_UP: "1x60"}
    check_tile(tmp_path, series, "ITL p99", shown(good={f'{{{B},source="traffic"}}': 0.04975}))
    check_tile(tmp_path, series, "Servers", [{"{}": 1}, {"{}": 1}, {}])


def test_no_data_is_said_when_nothing_is_scraped_any_more(tmp_path: Path) -> None:
    series = {f"vitals_requests_running{{{LABELS}}}": "3x12 stale", UP: "1x12 stale"}
    check_tile(tmp_path, series, "Running", shown(good={"{}": 3}), at="1m")
    check_tile(tmp_path, series, "Running", shown(state={"{}": q.GONE}), at="2m")
    check(tmp_path, series, q.target_state(), {'{target="a",backend="vllm"}': q.GONE}, at="2m")


def test_requests_are_added_over_engines_and_servers(tmp_path: Path) -> None:
    gauge = "vitals_requests_waiting"
    series = {f"{gauge}{{{labels}}}": "2x60" for labels in (LABELS, OTHER_ENGINE, OTHER_TARGET)}
    check_tile(tmp_path, {**series, UP: "1x60", OTHER_UP: "1x60"}, "Waiting", shown(bad={"{}": 6}))


def test_a_quantity_that_no_server_tells_is_not_0(tmp_path: Path) -> None:
    check_tile(tmp_path, {UP: "1x60"}, "Waiting", shown(state={"{}": q.NONE}))
    check_tile(tmp_path, {UP: "1x60"}, "KV cache", shown(state={"{}": q.NONE}))


def test_kv_usage_is_that_of_the_fullest_engine_of_all(tmp_path: Path) -> None:
    usage = {LABELS: 0.4, OTHER_ENGINE: 0.96, OTHER_TARGET: 0.6}
    series = {f"vitals_kv_cache_usage_ratio{{{labels}}}": f"{value}x60" for labels, value in usage.items()}
    check_tile(tmp_path, {**series, UP: "1x60", OTHER_UP: "1x60"}, "KV cache", shown(bad={f"{{{A}}}": 0.96}))


def test_the_kv_cache_of_a_sleeping_engine_is_not_an_empty_one(tmp_path: Path) -> None:
    series = {
        f"vitals_kv_cache_usage_ratio{{{LABELS}}}": "0x60",
        f"vitals_engine_asleep{{{LABELS}}}": "1x60",
        UP: "1x60",
    }
    check(tmp_path, series, q.fullest(), {})
    check_tile(tmp_path, series, "KV cache", shown(state={"{}": q.ASLEEP}))
    check(tmp_path, series, q.target_state(), {'{target="a",backend="vllm"}': 2})


@pytest.mark.parametrize(
    ("waiting", "usage", "preemptions", "expected"),
    [(0, 1.0, 0, 0), (3, 0.5, 0, 1), (3, 0.96, 0, 2), (3, 0.8, 1, 2)],
    ids=["nothing waits", "waits for the batch", "waits with a full cache", "waits while others are preempted"],
)
def test_exhaustion_is_waiting_with_a_full_cache_or_preemptions(
    waiting: int, usage: float, preemptions: int, expected: int, tmp_path: Path
) -> None:
    series = {
        f"vitals_requests_waiting{{{LABELS}}}": f"{waiting}x60",
        f"vitals_kv_cache_usage_ratio{{{LABELS}}}": f"{usage}x60",
        f"vitals_preemptions_total{{{LABELS}}}": f"0+{preemptions}x60",
    }
    check(tmp_path, series, capacity.exhausted(), {f"{{{A}}}": expected})


def test_a_context_does_not_fit_into_what_is_left_on_two_engines(tmp_path: Path) -> None:
    series = {}
    for labels in (LABELS, OTHER_ENGINE):
        series[f"vitals_kv_cache_capacity_tokens{{{labels}}}"] = "4000x60"
        series[f"vitals_kv_cache_usage_ratio{{{labels}}}"] = "0.3x60"
    # 2,800 tokens free on each: 2 contexts of 1,000 on each, and not 5 together.
    expr = queries("capacity.json", "More contexts fit", "stat")[0]
    check(tmp_path, series, expr, {"{}": 4})


def test_tokens_per_step_do_not_count_the_token_that_prefill_makes(tmp_path: Path) -> None:
    series = {
        **histogram({"0.1": 130, "+Inf": 130}),
        **histogram({"0.1": 3, "+Inf": 3}, family="vitals_time_to_first_token_seconds"),
        f"vitals_generation_tokens_total{{{LABELS}}}": "0+393x60",
    }
    expr = queries("prefill-and-decode.json", "Tokens per step (speculative decoding)", "timeseries")[0]
    check(tmp_path, series, expr, {f"{{{A}}}": 3.0})


def test_a_server_has_a_row_for_each_model_and_one_if_it_has_none(tmp_path: Path) -> None:
    series = {
        UP: "1x60",
        OTHER_UP: "0x60",
        f"vitals_requests_running{{{LABELS}}}": "1x60",
        f"vitals_requests_running{{{OTHER_MODEL}}}": "1x60",
    }
    state = queries("five-key-metrics.json", "Servers", "table")[0]
    expected = {f"{{{A}}}": 1.0, f"{{{A_OTHER_MODEL}}}": 1.0, '{target="b",backend="vllm"}': 0.0}
    check(tmp_path, series, state, expected)


def test_the_fleet_has_no_numbers_of_a_server_that_is_down(tmp_path: Path) -> None:
    series = {**SLOW, UP: "1x12 0x60", f"vitals_requests_running{{{LABELS}}}": "1x60"}
    exprs = queries("five-key-metrics.json", "Servers", "table")[1:]
    check_all(tmp_path, series, [(expr, {}, "2m") for expr in exprs])


def test_the_fleet_names_the_source_of_a_latency_and_its_bound(tmp_path: Path) -> None:
    series = {**histogram({"0.01": 10, "0.025": 10, "+Inf": 10}), UP: "1x60"}
    itl = queries("five-key-metrics.json", "Servers", "table")[2]
    check(tmp_path, series, itl, {f'{{{A},itl_by="traffic ≤"}}': 0.01})


def test_the_table_gives_the_reason_only_of_a_server_that_is_down(tmp_path: Path) -> None:
    series = {
        UP: "1x60",
        OTHER_UP: "0x60",
        'vitals_scrape_failures_total{target="a",backend="vllm",reason="timeout"}': "0+1x60",
        'vitals_scrape_failures_total{target="b",backend="vllm",reason="timeout"}': "1x60",
        'vitals_scrape_failures_total{target="b",backend="vllm",reason="connect"}': "0+1x60",
    }
    reason = queries("exporter-and-targets.json", "Servers and exporter", "table")[2]
    check(tmp_path, series, reason, {'{target="b",backend="vllm",reason="connect"}': 4.0})


def test_the_table_has_a_row_for_the_exporter_itself(tmp_path: Path) -> None:
    series = {f'up{{job="{q.JOB}",instance="exporter:10434"}}': "0x60"}
    state = queries("exporter-and-targets.json", "Servers and exporter", "table")[0]
    check(tmp_path, series, state, {f'{{target="{q.JOB}"}}': 0})


def test_graphs_of_many_servers_show_those_that_were_worst(tmp_path: Path) -> None:
    gauge = "vitals_scrape_duration_seconds"
    series = {f'{gauge}{{target="t{n}",backend="vllm"}}': f"{n}x60" for n in range(50)}
    expr = q.those_with_most(q.largest(gauge, "target"), gauge)
    check(tmp_path, series, expr, {f'{{target="t{n}"}}': n for n in (47, 48, 49)})


def test_a_restart_and_a_model_load_are_marked_when_they_happen(tmp_path: Path) -> None:
    series = {
        f"vitals_generation_tokens_total{{{LABELS}}}": "100+1x10 0+1x60",
        'vitals_model_loaded{target="o",backend="ollama",model="m"}': "_x10 1x60",
        'vitals_target_up{target="o",backend="ollama"}': "1x70",
    }
    marks = {mark["name"]: mark["expr"] for mark in BOARDS["five-key-metrics.json"]["annotations"]["list"]}
    restart, load = {'{target="a"}': 1.0}, {'{target="o",model="m"}': 1.0}
    cases = [(marks["Restarts"], restart, "1m"), (marks["Model loads"], load, "1m")]
    cases += [(marks["Restarts"], {}, "3m"), (marks["Model loads"], {}, "3m")]
    check_all(tmp_path, series, cases)


def test_prometheus_finds_no_mistake_in_any_query(tmp_path: Path) -> None:
    exprs = {
        target["expr"] for board in BOARDS.values() for panel in board["panels"] for target in panel.get("targets", [])
    }
    silent = [expr for expr in exprs if "absent(" not in expr]
    check_all(tmp_path, {}, [(expr, {}, "2m") for expr in sorted(silent)])
