"""Tests of the recording rules against values computed by hand."""

from __future__ import annotations

from typing import Any

from tests.rules.case import RESET, Series, counter, histogram
from tests.rules.latency import ITL, PROBE_ITL, TTFT, ollama, vllm, waiting
from tests.rules.load import generated, preempted, running, usage

Samples = dict[str, float]

A = '{target="a",backend="vllm",model="m"}'
LEVEL = "target_model:"


def test(name: str, series: Series, *expected: tuple[str, int, Samples], interval: str = "1m") -> dict[str, Any]:
    """`expected`: a recorded series' name or another expression, the minute, and all its samples by their labels."""
    return {
        "name": name,
        "interval": interval,
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "promql_expr_test": [
            {
                "expr": expr,
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in samples.items()],
            }
            for expr, minute, samples in expected
        ],
    }


def expect(minute: int, record: str, value: float, target: str = A, **labels: str) -> tuple[str, int, Samples]:
    """The one sample of a recorded series; with a threshold, of those at that threshold."""
    chosen = f'{{threshold="{labels["threshold"]}"}}' if "threshold" in labels else ""
    extra = "".join(f',{name}="{text}"' for name, text in labels.items())
    return f"abs({record}{chosen} - {value}) < bool 1e-9", minute, {f"{target[:-1]}{extra}}}": 1}


# Each minute: engine 0 has 10 tokens of 0.04 s, engine 1 has 10 of 0.08 s; the probes' tokens take 0.02 s.
TWO_ENGINES = histogram(ITL, vllm("a"), (30, {"0.025": 0, "0.05": 10, "0.1": 10, "+Inf": 10}, 0.4)) | histogram(
    ITL, vllm("a", "1"), (30, {"0.025": 0, "0.05": 0, "0.1": 10, "+Inf": 10}, 0.8)
)
PROBED = histogram(PROBE_ITL, vllm("a").replace(',engine="0"', ""), (30, {"0.01": 0, "0.1": 30, "+Inf": 30}, 0.6))

# Real requests for ten minutes, then none; a probe with one token of 0.02 s a minute goes on.
ENDING = histogram(ITL, vllm("a"), (10, {"0.1": 50, "+Inf": 100}, 50), (30, {"0.1": 0, "+Inf": 0}, 0)) | histogram(
    PROBE_ITL, vllm("a").replace(',engine="0"', ""), (40, {"0.1": 1, "+Inf": 1}, 0.02)
)

P = "vitals_itl_seconds:"

TESTS: list[dict[str, Any]] = [
    test(
        "engines of a server are one distribution, and traffic goes before probes",
        TWO_ENGINES | PROBED,
        # Of 20 tokens 10 are up to 0.05 s: rank 10 is the bound, 19 and 19.8 lie 9/10 and 9.8/10 of the way to 0.1.
        expect(20, f"{LEVEL}{ITL}:p50_rate5m", 0.05),
        expect(20, f"{LEVEL}{ITL}:p95_rate5m", 0.095),
        expect(20, f"{LEVEL}{ITL}:p99_rate5m", 0.099),
        expect(20, f"{LEVEL}{ITL}:mean_rate5m", 0.06),
        expect(20, f"{LEVEL}{P}p99_rate5m", 0.099, source="traffic"),
        expect(20, f"{LEVEL}{P}mean_rate5m", 0.06, source="traffic"),
        expect(20, f"{LEVEL}{P}count_increase5m", 100, source="traffic"),
        expect(20, f"{LEVEL}{PROBE_ITL}:mean_rate5m", 0.02),
    ),
    test(
        "without traffic in the window the headline is the probes'",
        ENDING,
        expect(13, f"{LEVEL}{P}mean_rate5m", 0.5, source="traffic"),
        expect(14, f"{LEVEL}{P}mean_rate5m", 0.02, source="probe"),
        expect(15, f"{LEVEL}{P}count_increase5m", 5, source="probe"),
        (f"{LEVEL}{ITL}:p99_rate5m", 15, {}),
        expect(15, f"{LEVEL}{P}share_above_rate5m", 0, source="probe", threshold="0.1"),
        expect(15, f"{LEVEL}{P}share_above_rate30m", 0.5, source="traffic", threshold="0.1"),
    ),
    test(
        "running, waiting and tokens are added up over engines, and KV usage is the fullest one's",
        running(vllm("a"), "3x20")
        | running(vllm("a", "1"), "4x20")
        | waiting(vllm("a"), "0x20")
        | waiting(vllm("a", "1"), "2x20")
        | usage(vllm("a"), "0.25x20")
        | usage(vllm("a", "1"), "0.75x20")
        | generated(vllm("a"), (20, 600))
        | generated(vllm("a", "1"), (20, 300))
        | preempted(vllm("a"), (20, 3))
        | {f"vitals_prompt_tokens_total{{{vllm('a')}}}": counter((20, 1200))}
        | {f"vitals_prefix_cache_queries_tokens_total{{{vllm('a', engine)}}}": counter((20, 1000)) for engine in "01"}
        | {f"vitals_prefix_cache_hits_tokens_total{{{vllm('a')}}}": counter((20, 500))}
        | {f"vitals_prefix_cache_hits_tokens_total{{{vllm('a', '1')}}}": counter((20, 1000))},
        expect(15, f"{LEVEL}vitals_requests_running:sum", 7),
        expect(15, f"{LEVEL}vitals_requests_waiting:sum", 2),
        expect(15, f"{LEVEL}vitals_requests_waiting:avg5m", 2),
        expect(15, f"{LEVEL}vitals_kv_cache_usage_ratio:max", 0.75),
        expect(15, f"{LEVEL}vitals_kv_cache_usage_ratio:max5m", 0.75),
        expect(15, f"{LEVEL}vitals_generation_tokens:rate5m", 15),
        expect(15, f"{LEVEL}vitals_prompt_tokens:rate5m", 20),
        expect(15, f"{LEVEL}vitals_preemptions:rate5m", 0.05),
        expect(15, f"{LEVEL}vitals_prefix_cache_hit_ratio:rate5m", 0.75),
    ),
    test(
        "an exporter that moved to another address doubles nothing",
        {
            f'vitals_requests_waiting{{{vllm("a")},instance="x:10434"}}': "4x10 stale",
            f'vitals_requests_waiting{{{vllm("a")},instance="y:10434"}}': "_x11 4x20",
        },
        expect(13, f"{LEVEL}vitals_requests_waiting:avg5m", 4),
    ),
    test(
        "an engine that sleeps has no KV usage, and a quiet one no quantile and no ratio",
        usage(vllm("a"), "0x20")
        | {f"vitals_engine_asleep{{{vllm('a')}}}": "1x20"}
        | histogram(ITL, vllm("a"), (20, {"0.1": 0, "+Inf": 0}, 0))
        | {f"vitals_prefix_cache_{what}_tokens_total{{{vllm('a')}}}": "5x20" for what in ("queries", "hits")},
        (f"{LEVEL}vitals_kv_cache_usage_ratio:max", 15, {}),
        ('{__name__=~".+:vitals_(itl|inter_token|prefix).+:(p|mean|share|count|rate).+"}', 15, {}),
    ),
    test(
        "queue and prefill times have quantiles and a mean, and an Ollama's TTFT is that of its probes",
        histogram("vitals_request_queue_seconds", vllm("a"), (20, {"0.3": 5, "0.5": 10, "+Inf": 10}, 3))
        | histogram("vitals_request_prefill_seconds", vllm("a"), (20, {"0.3": 10, "0.5": 10, "+Inf": 10}, 1))
        | histogram(
            "vitals_probe_time_to_first_token_seconds",
            f'{ollama("o")},prompt="small"',
            (20, {"0.1": 0, "1.0": 1, "+Inf": 1}, 0.5),
        ),
        expect(15, f"{LEVEL}vitals_request_queue_seconds:p50_rate5m", 0.3),
        expect(15, f"{LEVEL}vitals_request_queue_seconds:mean_rate5m", 0.3),
        expect(15, f"{LEVEL}vitals_request_prefill_seconds:p95_rate5m", 0.285),
        expect(
            15,
            f"{LEVEL}vitals_ttft_seconds:p50_rate5m",
            0.55,
            '{target="o",backend="ollama",model="q"}',
            source="probe",
        ),
    ),
]

WINDOWS: list[dict[str, Any]] = [
    test(
        "shares above a threshold over each window, exact at the bound, through a restart",
        # A hundred minutes of 1 slow in 10, then a restart, then 4 in 10.
        histogram(
            TTFT,
            vllm("a"),
            (100, {"1.0": 9, "10.0": 10, "+Inf": 10}, 0),
            RESET,
            (110, {"1.0": 6, "10.0": 8, "+Inf": 10}, 0),
        ),
        *(
            expect(
                210,
                f"{LEVEL}vitals_ttft_seconds:share_above_rate{window}",
                share,
                source="traffic",
                threshold=threshold,
            )
            for window, threshold, share in (("5m", "1", 0.4), ("30m", "1", 0.4), ("1h", "1", 0.4), ("5m", "10", 0.2))
        ),
    ),
    test(
        "three days are three days: what came before has left the window",
        # One slow in five for a day, then none; half an hour between samples.
        histogram(ITL, vllm("a"), (48, {"0.1": 8, "+Inf": 10}, 0), (240, {"0.1": 10, "+Inf": 10}, 0)),
        # At 73 h the window has 143 intervals, 45 of them slow; at 90 h 11 are left; at 96 h none.
        expect(73 * 60, f"{LEVEL}{P}share_above_rate3d", 0.2 * 45 / 143, source="traffic", threshold="0.1"),
        expect(90 * 60, f"{LEVEL}{P}share_above_rate3d", 0.2 * 11 / 143, source="traffic", threshold="0.1"),
        expect(96 * 60, f"{LEVEL}{P}share_above_rate3d", 0, source="traffic", threshold="0.1"),
        expect(27 * 60, f"{LEVEL}{P}share_above_rate6h", 0.2 * 5 / 11, source="traffic", threshold="0.1"),
        interval="30m",
    ),
    test(
        "the probes' day before ended half an hour ago",
        histogram(
            "vitals_probe_time_per_output_token_seconds", ollama("o"), (24, {"+Inf": 1}, 0.1), (60, {"+Inf": 1}, 0.3)
        ),
        # At step 60 the day before has 47 intervals, 35 of them slow; at step 74 all are.
        *(
            expect(
                step * 30,
                f"{LEVEL}vitals_probe_time_per_output_token_seconds:mean_rate1d_before",
                mean,
                '{target="o",backend="ollama",model="q"}',
            )
            for step, mean in ((60, (12 * 0.1 + 35 * 0.3) / 47), (74, 0.3))
        ),
        interval="30m",
    ),
]
"""With rules evaluated every half hour."""
