"""Cases of the latency alerts."""

from __future__ import annotations

from tests.rules.case import RESET, Case, Firing, Series, fires, histogram, silent

ITL, PROBE_ITL = "vitals_inter_token_latency_seconds", "vitals_probe_inter_token_latency_seconds"
TTFT, PROBE_TTFT = "vitals_time_to_first_token_seconds", "vitals_probe_time_to_first_token_seconds"
QUEUEING, PREFILL, LOAD = (f"LLMTimeToFirstTokenHigh{cause}" for cause in ("Queueing", "Prefill", "Load"))


def vllm(target: str, engine: str = "0") -> str:
    return f'target="{target}",backend="vllm",model="m",engine="{engine}"'


def ollama(target: str) -> str:
    return f'target="{target}",backend="ollama",model="q"'


def itl(labels: str, family: str, *phases: tuple[int, float, float] | str) -> Series:
    """Phases are (minutes, tokens a minute, those of them between 0.1 and 0.15 s); the others take 0.02 to 0.05 s."""
    return histogram(
        family,
        labels,
        *(
            phase
            if isinstance(phase, str)
            else (
                phase[0],
                {
                    "0.02": 0,
                    "0.05": phase[1] - phase[2],
                    "0.1": phase[1] - phase[2],
                    "0.15": phase[1],
                    "+Inf": phase[1],
                },
                0,
            )
            for phase in phases
        ),
    )


def ttft(labels: str, family: str, *phases: tuple[int, float, float, float] | str) -> Series:
    """Phases are (minutes, requests a minute, those of them above 1 s, those above 10 s and within 20 s)."""
    return histogram(
        family,
        labels,
        *(
            phase
            if isinstance(phase, str)
            else (
                phase[0],
                {"1.0": phase[1] - phase[2], "10.0": phase[1] - phase[3], "20.0": phase[1], "+Inf": phase[1]},
                0,
            )
            for phase in phases
        ),
    )


def waiting(labels: str, text: str) -> Series:
    return {f"vitals_requests_waiting{{{labels}}}": text}


def phases(labels: str, queue: str, prefill: str) -> Series:
    return {
        f'vitals_probe_phase_seconds{{{labels},phase="queue"}}': queue,
        f'vitals_probe_phase_seconds{{{labels},phase="prefill"}}': prefill,
    }


def cold(labels: str, text: str) -> Series:
    return {f"vitals_probe_cold_total{{{labels}}}": text}


A = {"severity": "warning", "target": "a", "backend": "vllm", "model": "m", "source": "traffic"}
O = {"severity": "warning", "target": "o", "backend": "ollama", "model": "q", "source": "probe"}  # noqa: E741

HEALTHY_ITL = itl(vllm("b"), ITL, (25, 100, 0.5), RESET, (60, 100, 0.5))
# From minute 21 on three of a hundred are slow, which at 22 makes six of the window's four hundred.
SLOW_ITL = itl(vllm("a"), ITL, (20, 100, 0), (60, 100, 3))
SLOW_PROBE_ITL = itl(ollama("o"), PROBE_ITL, (20, 31, 0), (60, 31, 31))

ITL_CASES = [
    fires(
        "LLMInterTokenLatencyHigh",
        "ten minutes with three of a hundred tokens slow",
        SLOW_ITL | HEALTHY_ITL,
        32,
        Firing(
            A,
            "a: p99 inter-token latency is high",
            "p99 ITL of model m on a is 133.3ms by its traffic, above 0.1s for 10m: answers stutter.",
        ),
    ),
    fires(
        "LLMInterTokenLatencyHigh",
        "by probes, where there is no traffic to judge by",
        SLOW_PROBE_ITL | HEALTHY_ITL,
        31,
        Firing(
            O,
            "o: p99 inter-token latency is high",
            "p99 ITL of model q on o is 149.5ms by its probe, above 0.1s for 10m: answers stutter.",
        ),
    ),
    silent("LLMInterTokenLatencyHigh", "healthy, and after a reset", HEALTHY_ITL, 20, 26, 27, 40),
    silent("LLMInterTokenLatencyHigh", "three slow tokens at night", itl(vllm("a"), ITL, (60, 6, 3)), 20, 40),
    silent("LLMInterTokenLatencyHigh", "too few probes to judge by", itl(ollama("o"), PROBE_ITL, (60, 2, 2)), 20, 40),
    silent(
        "LLMInterTokenLatencyHigh",
        "traffic is fast and only the probes are slow",
        itl(vllm("o"), ITL, (60, 100, 0)) | itl(vllm("o").replace(',engine="0"', ""), PROBE_ITL, (60, 31, 31)),
        30,
        45,
    ),
]

# a and b are as slow from minute 21 on, but only at a requests wait; at c requests wait and are quick enough.
TTFT_SERIES = (
    ttft(vllm("a"), TTFT, (20, 10, 0, 0), (60, 10, 3, 3))
    | waiting(vllm("a"), "0x20 5x60")
    | ttft(vllm("b"), TTFT, (20, 10, 0, 0), (60, 10, 3, 3))
    | waiting(vllm("b"), "0x80")
    | ttft(vllm("c"), TTFT, (20, 10, 5, 0), RESET, (60, 10, 5, 0))
    | waiting(vllm("c"), "5x80")
    | ttft(vllm("d"), TTFT, (20, 10, 5, 0), RESET, (60, 10, 5, 0))
)


def probed(queue: str, prefill: str) -> Series:
    series = ttft(f'{ollama("o")},prompt="small"', PROBE_TTFT, (20, 1, 0, 0), (60, 1, 1, 1))
    return series | phases(ollama("o"), queue, prefill)


# A vLLM before 0.8.4, whose last bound is the threshold: from minute 21 on three of ten are above it.
LAST_BOUND = (
    histogram(
        TTFT,
        vllm("a"),
        (20, {"7.5": 10, "10.0": 10, "+Inf": 10}, 0),
        (60, {"7.5": 7, "10.0": 7, "+Inf": 10}, 0),
    )
    | histogram(TTFT, vllm("b"), (80, {"7.5": 9, "10.0": 10, "+Inf": 10}, 0))
    | waiting(vllm("a"), "0x80")
    | waiting(vllm("b"), "0x80")
)

FEW = (
    ttft(vllm("a"), TTFT, (60, 2, 2, 2))
    | waiting(vllm("a"), "5x60")
    | ttft(vllm("b"), TTFT, (60, 2, 2, 2))
    # One probe in three minutes, thus one or two in the window.
    | ttft(f'{ollama("o")},prompt="small"', PROBE_TTFT, *((2, 0, 0, 0), (1, 1, 1, 1)) * 20)
    | phases(ollama("o"), "5x60", "1x60")
    | ttft(f'{ollama("p")},prompt="small"', PROBE_TTFT, *((2, 0, 0, 0), (1, 1, 1, 1)) * 20)
)

SLOW = "is 19.67s by its traffic, above 10s for 10m"
SLOW_PROBE = "p99 TTFT of model q on o is 19.9s by its probe, above 10s for 10m"

TTFT_CASES = [
    fires(
        QUEUEING,
        "only where requests wait",
        TTFT_SERIES,
        31,
        Firing(
            A,
            "a: first tokens are late because requests queue",
            f"p99 TTFT of model m on a {SLOW}, and requests wait before their prefill: capacity.",
        ),
    ),
    fires(
        QUEUEING,
        "an Ollama whose probes wait longer than their prefill takes",
        probed("5x80", "1x80") | ttft(vllm("b"), TTFT, (80, 10, 0, 0)),
        31,
        Firing(
            O,
            "o: first tokens are late because requests queue",
            f"{SLOW_PROBE}, and requests wait before their prefill: capacity.",
        ),
    ),
    fires(
        PREFILL,
        "only where nothing waits",
        TTFT_SERIES,
        31,
        Firing(
            A | {"target": "b"},
            "b: first tokens are late because prefill is slow",
            f"p99 TTFT of model m on b {SLOW}, and nothing waits: prefill itself takes long.",
        ),
    ),
    fires(
        PREFILL,
        "an Ollama whose probes' prefill takes longer than their wait",
        probed("1x80", "5x80") | ttft(vllm("b"), TTFT, (80, 10, 0, 0)),
        31,
        Firing(
            O,
            "o: first tokens are late because prefill is slow",
            f"{SLOW_PROBE}, and nothing waits: prefill itself takes long.",
        ),
    ),
    fires(
        PREFILL,
        "only where the quantile lies above the last bound, which is the threshold",
        LAST_BOUND,
        31,
        Firing(
            A,
            "a: first tokens are late because prefill is slow",
            "p99 TTFT of model m on a is 10s by its traffic, above 10s for 10m, and nothing waits: prefill itself takes"
            " long.",
        ),
    ),
    *(silent(cause, "too few requests to judge by", FEW, 20, 23, 40) for cause in (QUEUEING, PREFILL)),
    *(
        silent(
            cause,
            "healthy, and after a reset",
            {name: text for name, text in TTFT_SERIES.items() if '"c"' in name or '"d"' in name},
            21,
            22,
            40,
        )
        for cause in (QUEUEING, PREFILL)
    ),
    fires(
        LOAD,
        "the third cold start within an hour",
        cold(ollama("o"), "1x19 2x19 3x19 4x30") | cold(ollama("b"), "1x40 2x60"),
        60,
        Firing(
            {"severity": "warning", "target": "o", "backend": "ollama", "model": "q"},
            "o: first tokens are late because the model is loaded again and again",
            "Model q on o was found cold 3 times within 1h: whoever asked then waited for the load.",
        ),
    ),
    silent(LOAD, "one cold start an hour", cold(ollama("o"), "1x30 2x59"), 60, 89),
    silent(LOAD, "the exporter started again, after a reset", cold(ollama("o"), "7x30 0 1x60"), 31, 32, 60),
]

CASES: list[Case] = [*ITL_CASES, *TTFT_CASES]
