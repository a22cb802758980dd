"""A real vLLM under load: what Prometheus gets through the exporter is what it gets from vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.catalogue import FAMILIES, Kind
from tests.real.conftest import Vllm
from tests.real.servers import get, process, query, wait_until
from tests.real.tap import Tap

pytestmark = pytest.mark.timeout(1200)

HISTOGRAMS = {
    "vitals_time_to_first_token_seconds": "vllm:time_to_first_token_seconds",
    "vitals_inter_token_latency_seconds": "vllm:inter_token_latency_seconds",
    "vitals_time_per_output_token_seconds": "vllm:request_time_per_output_token_seconds",
    "vitals_request_duration_seconds": "vllm:e2e_request_latency_seconds",
    "vitals_request_queue_seconds": "vllm:request_queue_time_seconds",
    "vitals_request_prefill_seconds": "vllm:request_prefill_time_seconds",
    "vitals_request_decode_seconds": "vllm:request_decode_time_seconds",
    "vitals_request_prompt_tokens": "vllm:request_prompt_tokens",
    "vitals_request_generation_tokens": "vllm:request_generation_tokens",
}
SCALARS = {
    "vitals_requests_running": "vllm:num_requests_running",
    "vitals_requests_waiting": "vllm:num_requests_waiting",
    "vitals_requests_waiting_by_reason": "vllm:num_requests_waiting_by_reason",
    "vitals_kv_cache_usage_ratio": "vllm:kv_cache_usage_perc",
    "vitals_prompt_tokens_total": "vllm:prompt_tokens_total",
    "vitals_cached_prompt_tokens_total": "vllm:prompt_tokens_cached_total",
    "vitals_generation_tokens_total": "vllm:generation_tokens_total",
    "vitals_requests_finished_total": "vllm:request_success_total",
    "vitals_preemptions_total": "vllm:num_preemptions_total",
    "vitals_prefix_cache_queries_tokens_total": "vllm:prefix_cache_queries_total",
    "vitals_prefix_cache_hits_tokens_total": "vllm:prefix_cache_hits_total",
    "vitals_estimated_read_bytes_per_gpu_total": "vllm:estimated_read_bytes_per_gpu_total",
}
PAIRS = SCALARS | {
    ours + suffix: theirs + suffix for ours, theirs in HISTOGRAMS.items() for suffix in ("_bucket", "_sum", "_count")
}
RENAMED = {"model_name": "model", "finished_reason": "reason"}
WORKED_OUT = {"vitals_engine_asleep", "vitals_kv_cache_capacity_tokens"} | {
    name for family in FAMILIES if family.kind in (Kind.ARITHMETIC, Kind.MEASURED) for name in family.sample_names
}

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def direct(prometheus: str, job: str) -> Series:
    """Return vLLM's series that have a counterpart, under our names and labels."""
    ours = {theirs: ours for ours, theirs in PAIRS.items()}
    return {
        (ours[(labels := dict(key))["__name__"]], _labels(labels)): value
        for key, value in query(prometheus, f'{{__name__=~"vllm:.+",job="{job}"}}').items()
        if dict(key)["__name__"] in ours
    }


def relayed(prometheus: str, target: str) -> Series:
    """Return the series that came through the exporter."""
    found = query(prometheus, f'{{__name__=~"vitals_.+",job="vitals",target="{target}",model!=""}}')
    return {
        ((labels := dict(key))["__name__"], _labels(labels)): value
        for key, value in found.items()
        if dict(key)["__name__"] not in WORKED_OUT
    }


def _labels(labels: dict[str, str]) -> frozenset[tuple[str, str]]:
    left_out = ("__name__", "job", "instance", "target", "backend")
    return frozenset((RENAMED.get(name, name), value) for name, value in labels.items() if name not in left_out)


def hold(tap: Tap, prometheus: str) -> None:
    """Capture a page and wait until both jobs have read it: their last scrape began since then and was good."""
    at = tap.capture()

    def scraped() -> bool:
        jobs = 'up{job=~"held|vitals"}'  # timestamp() of anything but a selector would be the time of the query
        times = query(prometheus, f"timestamp({jobs}) and ({jobs} == 1)")
        return len(times) == 2 and min(times.values()) > at + 0.2

    wait_until("both jobs have scraped", scraped, 60)


def running(vllm: Vllm) -> bool:
    return any(
        line.startswith("vllm:num_requests_running") and not line.endswith(" 0.0")
        for line in get(f"{vllm.url}/metrics").splitlines()
    )


def test_under_load_every_relayed_series_equals_the_direct_one(
    vllm: Vllm, tap: Tap, exporter: str, prometheus: str, logs: Path
) -> None:
    hold(tap, prometheus)
    # All at once, so that some have to wait however fast the machine is.
    shape = ["--num-prompts", "80", "--request-rate", "inf", "--random-input-len", "250", "--random-output-len", "96"]
    five = ["vitals_requests_running", "vitals_requests_waiting", "vitals_kv_cache_usage_ratio",
            "vitals_time_to_first_token_seconds_count", "vitals_inter_token_latency_seconds_count"]  # fmt: skip
    seen: dict[str, float] = {}
    compared = 0
    with process([*vllm.bench, *shape], logs / "bench.log") as load:
        wait_until("the load has begun", lambda: running(vllm), 180, load)
        while load.poll() is None and (compared < 4 or not all(seen[name] for name in five)):
            hold(tap, prometheus)
            theirs, ours = direct(prometheus, "held"), relayed(prometheus, "held")
            assert ours == theirs
            assert {name for name, _ in ours} == set(PAIRS)
            for (name, _), value in ours.items():
                seen[name] = max(value, seen.get(name, 0.0))
            compared += 1
        assert load.wait(timeout=300) == 0, (logs / "bench.log").read_text()[-2000:]
    assert all(seen[name] > 0 for name in five), seen

    hold(tap, prometheus)
    for ours_name, theirs_name in HISTOGRAMS.items():
        for q in (0.5, 0.99):
            shape_of = "histogram_quantile({q}, sum by (le) (increase({name}_bucket{{{labels}}}[10m])))"
            [ours_q] = query(prometheus, shape_of.format(q=q, name=ours_name, labels='target="held"')).values()
            [theirs_q] = query(prometheus, shape_of.format(q=q, name=theirs_name, labels='job="held"')).values()
            assert ours_q == pytest.approx(theirs_q, rel=1e-6), (ours_name, q)


def test_a_server_at_rest_is_the_same_directly_and_relayed(vllm: Vllm, exporter: str, prometheus: str) -> None:
    wait_until("vLLM is at rest", lambda: not running(vllm), 120)
    wait_until("both were scraped", lambda: relayed(prometheus, "live") == direct(prometheus, "live") != {}, 30)
    names = {name for name, _ in relayed(prometheus, "live")}
    assert names == set(PAIRS)


def test_what_is_worked_out_agrees_with_how_the_server_was_started(vllm: Vllm, exporter: str, prometheus: str) -> None:
    [capacity] = query(prometheus, 'vitals_kv_cache_capacity_tokens{target="live"}').values()
    assert capacity == 20 * 128  # blocks as started, block size of vLLM on a CPU
    assert list(query(prometheus, 'vitals_engine_asleep{target="live"}').values()) == [0.0]
    [info] = query(prometheus, 'vitals_target_info{target="live"}')
    assert dict(info)["backend"] == "vllm"
    assert dict(info)["version"].startswith("0.")
    assert list(query(prometheus, 'vitals_unmapped_families{target="live"}').values()) == [0.0]


def test_the_landing_page_shows_the_five_numbers(vllm: Vllm, exporter: str) -> None:
    page = get(f"{exporter}/")
    for word in (
        "live",
        "Time to first token",
        "Inter-token latency",
        "Requests running",
        "KV cache in use",
        "p99; median",
    ):
        assert word in page
