"""Single panels' and marks' PromQL, evaluated by Prometheus's own engine on what could lead it to a wrong number."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboards.build import queries as q
from tests.promql import (
    BOARDS,
    HISTOGRAM,
    LABELS,
    OTHER_ENGINE,
    OTHER_TARGET,
    PROMTOOL,
    UP,
    A,
    check,
    check_all,
    check_tile,
    histogram,
    queries,
    shown,
)

pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not on PATH")

TTFT, PROBE_TTFT = "vitals_time_to_first_token_seconds", "vitals_probe_time_to_first_token_seconds"
GENERATED = "vitals_generation_tokens_total"
FIVE, PHASES, CAPACITY = "five-key-metrics.json", "prefill-and-decode.json", "capacity.json"
MARKS = {mark["name"]: mark["expr"] for mark in BOARDS[FIVE]["annotations"]["list"]}


def test_a_server_without_the_bound_has_no_part_in_the_share_within_it(tmp_path: Path) -> None:
    series = histogram({"0.05": 3, "0.1": 97, "+Inf": 100})
    series |= histogram({"0.075": 50, "0.133": 100, "+Inf": 100}, labels=OTHER_TARGET)
    check(tmp_path, series, q.within(HISTOGRAM, "$itl_slo", ""), {"{}": 0.97})


def test_a_streams_rate_does_not_count_the_token_that_prefill_makes(tmp_path: Path) -> None:
    # 50 requests of two tokens each: one pause of 0.02 s each, 50 tokens a second.
    series = {
        **histogram({"0.1": 50, "+Inf": 50}, total=1.0),
        **histogram({"0.1": 50, "+Inf": 50}, family=TTFT),
        f"{GENERATED}{{{LABELS}}}": "0+100x120",
    }
    stream = queries(PHASES, "Decode: tokens per second of one stream", "timeseries")[0]
    check(tmp_path, series, stream, {f"{{{A}}}": 50})
    token = queries(PHASES, "TPOT against ITL", "timeseries")[2]
    check(tmp_path, series, token, {"{}": 0.02})


def test_what_each_gpu_reads_is_not_added_over_engines(tmp_path: Path) -> None:
    read = "vitals_estimated_read_bytes_per_gpu_total"
    series = {
        f"{read}{{{LABELS}}}": "0+3000x120",
        f"{read}{{{OTHER_ENGINE}}}": "0+2000x120",
        'vitals_memory_bandwidth_bytes_per_second{target="a",backend="vllm",memory="device"}': "2000x120",
        'vitals_memory_bandwidth_bytes_per_second{target="a",backend="vllm",memory="ram"}': "9000x120",
        'vitals_devices{target="a",backend="vllm"}': "2x120",
        **histogram({"0.1": 1, "+Inf": 1}),
    }
    used = queries(PHASES, "Share of the memory bandwidth used", "timeseries")[1]
    check(tmp_path, series, used, {f"{{{A}}}": 0.6})


@pytest.mark.parametrize(
    ("slow", "expected"),
    [
        ({"0.01": 10, "0.025": 10, "+Inf": 10}, {'{bound="≤"}': 0.01}),
        ({"0.01": 0, "80.0": 8, "+Inf": 10}, {'{bound="≥"}': 80}),
        ({"0.01": 0, "0.1": 10, "+Inf": 10}, {"{}": 0.09910000000000001}),
    ],
    ids=["in the first bucket", "above the last bound", "between"],
)
def test_the_slowest_servers_quantile_says_when_it_is_only_a_bound(
    slow: dict[str, int], expected: dict[str, float], tmp_path: Path
) -> None:
    series = histogram(slow) | histogram({"0.005": 0, "0.01": 10, "+Inf": 10}, labels=OTHER_TARGET)
    quantile = queries(PHASES, "ITL against running requests", "timeseries")[1]
    check(tmp_path, series, quantile, expected)


def test_a_tile_is_red_when_the_quantile_lies_above_a_last_bound_that_is_the_threshold(tmp_path: Path) -> None:
    series = {**histogram({"0.05": 9, "0.1": 9, "+Inf": 10}), UP: "1x60"}
    labels = f'{{{A},source="traffic",bound="≥"}}'
    check_tile(tmp_path, series, "ITL p99", shown(bad={labels: 0.1}))


def test_a_tile_is_green_when_the_quantile_lies_below_a_first_bound_that_is_the_threshold(tmp_path: Path) -> None:
    series = {**histogram({"0.1": 10, "0.2": 10, "+Inf": 10}), UP: "1x60"}
    labels = f'{{{A},source="traffic",bound="≤"}}'
    check_tile(tmp_path, series, "ITL p99", shown(good={labels: 0.1}))


def test_the_probes_mean_is_of_the_same_prompts_as_their_quantiles(tmp_path: Path) -> None:
    small, cached = (f'{A},prompt="{prompt}"' for prompt in ("small", "cached"))
    series = histogram({"0.1": 0, "1.0": 5, "+Inf": 5}, 2.5, small, PROBE_TTFT)
    series |= histogram({"0.1": 5, "1.0": 5, "+Inf": 5}, 0.05, cached, PROBE_TTFT)
    for board, title, index in ((FIVE, "Time to first token (TTFT)", 7), ("probes.json", "Probe's TTFT", 3)):
        mean = queries(board, title, "timeseries")[index]
        check(tmp_path, series, f"sum by (target, backend, model) ({mean})", {f"{{{A}}}": 0.5})


def test_the_parts_of_ttft_are_those_of_the_server_whose_users_wait_longest(tmp_path: Path) -> None:
    series = histogram({"0.1": 0, "1.0": 5, "+Inf": 5}, 2.5, family=TTFT)
    series |= histogram({"0.1": 5, "1.0": 5, "+Inf": 5}, 0.25, OTHER_TARGET, family=TTFT)
    series |= histogram({"1.0": 0, "10.0": 5, "+Inf": 5}, 10, 'target="o",backend="ollama",model="q"', PROBE_TTFT)
    mean = queries(PHASES, "TTFT, queue and prefill at the chosen quantile", "timeseries")[1]
    check(tmp_path, series, mean, {f"{{{A}}}": 0.5})


def test_a_restart_is_marked_however_long_the_server_was_away(tmp_path: Path) -> None:
    series = {f"{GENERATED}{{{LABELS}}}": "100+1x12 stale _x120 0+1x120"}
    cases = [(MARKS["Restarts"], {'{target="a"}': 1.0}, "11m15s"), (MARKS["Restarts"], {}, "11m45s")]
    check_all(tmp_path, series, cases)


def test_a_model_is_not_marked_as_loaded_when_it_was_only_not_seen(tmp_path: Path) -> None:
    # Not scraped for half a minute, and then the server was out of reach for as long.
    loaded = 'vitals_model_loaded{target="o",backend="ollama",model="m"}'
    up = 'vitals_target_up{target="o",backend="ollama"}'
    gap = {loaded: "1x12 stale _x6 1x12 stale _x6 1x30", up: "1x12 stale _x6 1x12 0x6 1x30"}
    check_all(tmp_path, gap, [(MARKS["Model loads"], {}, f"{second}s") for second in range(95, 270, 5)])


def test_a_load_between_two_readings_is_marked_for_as_long_as_any_other(tmp_path: Path) -> None:
    loaded = 'vitals_model_loaded{target="o",backend="ollama",model="m"}'
    series = {loaded: "1x12 stale 1x30", 'vitals_target_up{target="o",backend="ollama"}': "1x60"}
    marked = {'{target="o",model="m"}': 1.0}
    cases = [(MARKS["Model loads"], marked, f"{second}s") for second in (70, 75, 80)]
    check_all(tmp_path, series, [*cases, (MARKS["Model loads"], {}, "60s"), (MARKS["Model loads"], {}, "85s")])


def test_the_batch_at_which_p99_broke_is_not_that_of_a_lone_slow_request(tmp_path: Path) -> None:
    ttft = queries(CAPACITY, "Concurrency now, and where p99 broke", "timeseries")[2]
    running = {f"vitals_requests_running{{{LABELS}}}": "1x120"}
    many = histogram({"1.0": 0, "10.0": 1, "+Inf": 1}, family=TTFT)
    alone = {name: values.replace("0+1x120", "0x70 1x50") for name, values in many.items()}
    for series, expected in ((alone, {}), (many, {f"{{{A}}}": 1.0})):
        check(tmp_path, running | series, ttft, expected, at="8m")


def test_a_server_whose_engine_was_found_out_has_one_row(tmp_path: Path) -> None:
    series = {'vitals_target_up{target="a",backend="unknown"}': "0x12 stale", UP: "_x12 1x60"}
    state = queries(FIVE, "Servers", "table")[0]
    check(tmp_path, series, state, {'{target="a",backend="vllm"}': 1})


def test_an_idle_server_makes_no_traffic_rather_than_no_statement(tmp_path: Path) -> None:
    tokens = queries(FIVE, "Servers", "table")[6]
    series = {UP: "1x120", f"{GENERATED}{{{LABELS}}}": "7x60"}
    check(tmp_path, series, f"({tokens}) != bool ({tokens})", {f"{{{A}}}": 1})
    check(tmp_path, series | {f"{GENERATED}{{{LABELS}}}": "0+10x120"}, tokens, {f"{{{A}}}": 2}, at="8m")


def test_how_many_contexts_fit_is_not_known_of_a_server_that_is_down_or_asleep(tmp_path: Path) -> None:
    told = {
        f"vitals_kv_cache_capacity_tokens{{{LABELS}}}": "4000x60",
        f"vitals_kv_cache_usage_ratio{{{LABELS}}}": "0.3x60",
    }
    asleep = {f"vitals_engine_asleep{{{LABELS}}}": "1x60"}

    def tile(series: dict[str, str], expected: list[dict[str, float]]) -> None:
        check_tile(tmp_path, series, "More contexts fit", expected, board=CAPACITY)

    tile({UP: "1x60"} | told, shown(good={"{}": 2}))
    tile({UP: "1x60"} | told | {f"vitals_kv_cache_usage_ratio{{{LABELS}}}": "0.9x60"}, shown(bad={"{}": 0}))
    tile({UP: "0x60"}, shown(state={"{}": q.DOWN}))
    tile({UP: "1x60"} | told | asleep, shown(state={"{}": q.ASLEEP}))
    tile({UP: "1x60"}, shown(state={"{}": q.NONE}))


@pytest.mark.parametrize(
    ("title", "series", "values", "number"),
    [
        ("Oldest last good probe", f"vitals_probe_last_success_timestamp_seconds{{{A}}}", "50x12", 10),
        ("Share of a server's time", 'vitals_probe_share_ratio{target="a",backend="vllm"}', "0.01x12", 0.01),
        ("Cold starts in the time range", f"vitals_probe_cold_total{{{A}}}", "3x12", 0),
    ],
)
def test_a_tile_of_the_probes_shows_a_number_or_a_state_and_never_both(
    title: str, series: str, values: str, number: float, tmp_path: Path
) -> None:
    def tile(series: dict[str, str], expected: list[dict[str, float]], at: str) -> None:
        check_tile(tmp_path, series, title, expected, at, "probes.json")

    gone = {UP: "1x12 stale", series: f"{values} stale"}
    tile(gone, [{"{}": number}, {}], "1m")
    tile(gone, [{}, {"{}": q.GONE}], "2m")
    tile({UP: "1x60"}, [{}, {"{}": q.NONE}], "1m")


def test_cold_loads_of_many_servers_are_of_those_with_most(tmp_path: Path) -> None:
    series = {f'vitals_probe_cold_total{{target="t{n}",backend="ollama",model="m"}}': f"0+{n}x120" for n in range(20)}
    cold = queries("probes.json", "Cold loads", "timeseries")[1]
    check(tmp_path, series, f"count({cold})", {"{}": 3})
