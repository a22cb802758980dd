"""Cases of the alerts on load and capacity."""

from __future__ import annotations

from tests.rules.case import RESET, Case, Firing, Series, counter, fires, silent, values
from tests.rules.latency import vllm, waiting

WAITING, KV, PREEMPTIONS = "LLMRequestsWaiting", "LLMKVCacheExhausted", "LLMPreemptionsHigh"
STUCK, FROZEN = "LLMEngineStuck", "LLMMetricsFrozen"

A = {"severity": "warning", "target": "a", "backend": "vllm", "model": "m"}


def running(labels: str, text: str) -> Series:
    return {f"vitals_requests_running{{{labels}}}": text}


def usage(labels: str, text: str) -> Series:
    return {f"vitals_kv_cache_usage_ratio{{{labels}}}": text}


def preempted(labels: str, *phases: tuple[int, float] | str) -> Series:
    return {f"vitals_preemptions_total{{{labels}}}": counter(*phases)}


def asleep(labels: str, text: str) -> Series:
    return {f"vitals_engine_asleep{{{labels}}}": text}


def generated(labels: str, *phases: tuple[int, float] | str) -> Series:
    return {f"vitals_generation_tokens_total{{{labels}}}": counter(*phases)}


SWINGS = values(*[0.5] * 11, *[0.79, 0.96] * 15)
"""As recorded from a real vLLM that ran out of blocks: never above 0.95 for long."""

NEVER_BUSY = waiting(vllm("b"), values(*[1, 0, 0, 0, 0] * 10)) | usage(vllm("b"), "0.97x60")

WAITING_CASES = [
    fires(
        WAITING,
        "two engines' queues are added up",
        waiting(vllm("a"), "0x10 2x40") | waiting(vllm("a", "1"), "0x10 1x40") | NEVER_BUSY,
        22,
        Firing(
            A,
            "a: requests keep waiting for a place",
            "On average over 5m 3.0 requests of model m on a waited to be scheduled, and have for 10m.",
        ),
    ),
    silent(WAITING, "a request waits now and then", NEVER_BUSY, 20, 40),
]

KV_CASES = [
    fires(
        KV,
        "usage swings and touches the top while requests wait",
        usage(vllm("a"), SWINGS) | waiting(vllm("a"), "0x10 6x30") | NEVER_BUSY,
        17,
        Firing(
            A,
            "a: the KV cache is full and requests wait for it",
            "The KV cache of model m on a was full, or requests were preempted, within the last 5m while requests"
            " waited (value 0.96: the highest usage, 0 to 1, or preemptions per second).",
        ),
    ),
    fires(
        KV,
        "preemptions while requests wait, though no scrape saw it full",
        usage(vllm("a"), "0.9x40")
        | preempted(vllm("a"), (11, 0), (30, 6))
        | waiting(vllm("a"), "0x10 6x30")
        | NEVER_BUSY,
        17,
        Firing(
            A,
            "a: the KV cache is full and requests wait for it",
            "The KV cache of model m on a was full, or requests were preempted, within the last 5m while requests"
            " waited (value 0.1: the highest usage, 0 to 1, or preemptions per second).",
        ),
    ),
    silent(
        KV,
        "requests wait for the batch limit with the cache half empty, also after a reset",
        usage(vllm("a"), "0.5x40") | waiting(vllm("a"), "6x40") | preempted(vllm("a"), (1, 9), RESET, (39, 0)),
        10,
        20,
        40,
    ),
    silent(KV, "a full cache that nobody waits for", NEVER_BUSY, 10, 20, 40),
]

PREEMPTION_CASES = [
    fires(
        PREEMPTIONS,
        "nine a minute",
        preempted(vllm("a"), (10, 0), (40, 9)) | preempted(vllm("b"), (20, 1), RESET, (30, 1)),
        22,
        Firing(
            A | {"severity": "info"},
            "a: requests are preempted",
            "Model m on a preempts 0.15 requests per second; each computes its tokens again and its stream pauses"
            " meanwhile.",
        ),
    ),
    silent(
        PREEMPTIONS, "one a minute, and after a reset", preempted(vllm("b"), (20, 1), RESET, (30, 1)), 15, 21, 22, 40
    ),
]

BUSY = running(vllm("b"), "4x60") | waiting(vllm("b"), "3x60") | asleep(vllm("b"), "0x60")
IDLE = running(vllm("c"), "0x60") | waiting(vllm("c"), "0x60") | asleep(vllm("c"), "0x60")
SLEEPS = running(vllm("d"), "0x60") | waiting(vllm("d"), "2x60") | asleep(vllm("d"), "1x60")

STUCK_CASES = [
    fires(
        STUCK,
        "one of two engines",
        running(vllm("a"), "2x60")
        | waiting(vllm("a"), "1x60")
        | asleep(vllm("a"), "0x60")
        | running(vllm("a", "1"), "2x10 0x40")
        | waiting(vllm("a", "1"), "4x60")
        | asleep(vllm("a", "1"), "0x60")
        | BUSY
        | IDLE,
        13,
        Firing(
            A | {"severity": "critical", "engine": "1"},
            "a: requests wait and none runs",
            "Engine 1 of model m on a has 4 requests waiting and none running, for 2m.",
        ),
    ),
    silent(STUCK, "busy, idle or asleep", BUSY | IDLE | SLEEPS, 10, 40),
]

MOVING = values(*[105, 106] * 10)
LONG_PREFILL = (
    running(vllm("b"), "1x60")
    | waiting(vllm("b"), values(*[0, 1] * 30))
    | usage(vllm("b"), "0.3x60")
    | generated(vllm("b"), (60, 0))
)
STEADY = (
    running(vllm("c"), "4x60")
    | waiting(vllm("c"), "0x60")
    | usage(vllm("c"), "0.3x60")
    | generated(vllm("c"), (30, 50), RESET, (30, 50))
)
REST = (
    running(vllm("d"), "0x60") | waiting(vllm("d"), "0x60") | usage(vllm("d"), "0x60") | generated(vllm("d"), (60, 0))
)

FROZEN_CASES = [
    fires(
        FROZEN,
        "all requests were aborted and no step came after",
        running(vllm("a"), f"{MOVING} 106x40")
        | waiting(vllm("a"), "15x60")
        | usage(vllm("a"), "0.904x60")
        | generated(vllm("a"), (20, 900), (40, 0))
        | LONG_PREFILL
        | STEADY
        | REST,
        29,
        Firing(
            A | {"engine": "0"},
            "a: requests run but no token comes",
            "Engine 0 of model m on a reports 106 requests running, unchanged like its other gauges for 5m, and"
            " generates nothing.",
        ),
    ),
    silent(
        FROZEN, "a long prefill, a steady batch after a reset, and a rest", LONG_PREFILL | STEADY | REST, 20, 32, 33, 50
    ),
]

CASES: list[Case] = [*WAITING_CASES, *KV_CASES, *PREEMPTION_CASES, *STUCK_CASES, *FROZEN_CASES]
