"""What vLLM's /metrics holds, as a table: each family's versions, labels, buckets and the figure that feeds it.

`v1` and `v0` are the versions, of the engine core of that generation, that show the family without being asked
to (hidden ones are left out).  "0.9.2-" has no end yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Family:
    """One family without its prefix `vllm:`; `label` is its own label, if any, and `values` all it can be."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    source: str
    help: str
    v1: str | None = "0.7.3-"
    v0: str | None = None
    label: str | None = None
    values: tuple[str, ...] = ()
    bounds: str = ""
    engine: bool = True

    def shown_in(self, version: Version, v0: bool) -> bool:
        """Tell whether a version of vLLM shows this family."""
        span = self.v0 if v0 else self.v1
        if span is None:
            return False
        since, _, until = span.partition("-")
        return parse(since) <= version and (not until or version <= parse(until))


def parse(version: str) -> Version:
    """Read a version such as 0.10.2; ValueError if it is none."""
    try:
        return tuple(int(part) for part in version.split("."))
    except ValueError:
        raise ValueError(f"expected a version such as 0.32.0, got {version!r}") from None


_V0 = "0.3.3-0.11.0"
_LATE_V0 = "0.6.6-0.11.0"
_SECONDS = "seconds of a request"

FAMILIES: tuple[Family, ...] = (
    Family("spec_decode_num_drafts", "counter", "drafts", "Times a draft was made.", "0.8.5-"),
    Family("spec_decode_num_draft_tokens", "counter", "draft_tokens", "Tokens drafted.", "0.8.3-"),
    Family("spec_decode_num_accepted_tokens", "counter", "accepted", "Drafted tokens accepted.", "0.8.3-"),
    Family("spec_decode_num_accepted_tokens_per_pos", "counter", "accepted_at", "Accepted, by place in the draft.",
           "0.8.5-", label="position"),
    Family("estimated_flops_per_gpu", "counter", "flops", "FLOPs computed.", "0.17.0-"),
    Family("estimated_read_bytes_per_gpu", "counter", "read_bytes", "Bytes read from memory.", "0.17.0-"),
    Family("estimated_write_bytes_per_gpu", "counter", "write_bytes", "Bytes written to memory.", "0.17.0-"),
    Family("num_requests_running", "gauge", "running", "Requests in the batch.", v0=_V0),
    Family("num_requests_waiting", "gauge", "waiting", "Requests queued.", v0=_V0),
    Family("num_requests_swapped", "gauge", "never", "Requests swapped to the CPU.", None, "0.3.3-0.8.2"),
    Family("num_requests_waiting_by_reason", "gauge", "waiting_by_reason", "Requests queued, by reason.", "0.20.0-",
           label="reason", values=("capacity", "deferred")),
    Family("engine_sleep_state", "gauge", "sleep_state", "1 at the state the engine is in.", "0.11.1-",
           label="sleep_state", values=("awake", "weights_offloaded", "discard_all")),
    Family("kv_cache_usage_perc", "gauge", "usage", "Share of the KV cache in use.", "0.9.2-"),
    Family("gpu_cache_usage_perc", "gauge", "usage", "Share of the KV cache in use.", "0.7.3-0.10.2", _V0),
    Family("cpu_cache_usage_perc", "gauge", "never", "Share of the swap space in use.", None, "0.3.3-0.8.2"),
    Family("gpu_prefix_cache_hit_rate", "gauge", "hit_rate", "Share of blocks found.", None, "0.5.5-0.8.2"),
    Family("cpu_prefix_cache_hit_rate", "gauge", "off", "Share of blocks found.", None, "0.5.5-0.8.2"),
    Family("avg_prompt_throughput_toks_per_s", "gauge", "prompt_rate", "Of the last step.", None, "0.3.3-0.6.6"),
    Family("avg_generation_throughput_toks_per_s", "gauge", "output_rate", "Of the last step.", None, "0.3.3-0.6.6"),
    Family("gpu_prefix_cache_queries", "counter", "gpu_queries", "Looked up in the prefix cache.", "0.7.3-0.10.2"),
    Family("gpu_prefix_cache_hits", "counter", "gpu_hits", "Found in the prefix cache.", "0.7.3-0.10.2"),
    Family("prefix_cache_queries", "counter", "queries", "Tokens looked up in the prefix cache.", "0.9.2-"),
    Family("prefix_cache_hits", "counter", "hits", "Tokens found in the prefix cache.", "0.9.2-"),
    Family("external_prefix_cache_queries", "counter", "never", "Tokens asked of other instances.", "0.11.1-"),
    Family("external_prefix_cache_hits", "counter", "never", "Tokens found at other instances.", "0.11.1-"),
    Family("mm_cache_queries", "counter", "never", "Images looked up.", "0.11.1-"),
    Family("mm_cache_hits", "counter", "never", "Images found.", "0.11.1-"),
    Family("num_preemptions", "counter", "preempted", "Requests preempted.", "0.8.0-", "0.4.3-0.11.0"),
    Family("prompt_tokens", "counter", "prompt", "Prompt tokens, cached ones included.", v0=_V0),
    Family("prompt_tokens_by_source", "counter", "prompt_by_source", "Prompt tokens, by where from.", "0.16.0-",
           label="source", values=("local_compute", "local_cache_hit", "external_kv_transfer")),
    Family("prompt_tokens_cached", "counter", "cached", "Prompt tokens not computed.", "0.16.0-"),
    Family("prompt_tokens_cached_by_source", "counter", "cached_by_source", "Cached tokens, by tier.", "0.32.0-",
           label="source", values=("device", "host", "p2p", "disk", "external_unspecified")),
    Family("prompt_tokens_recomputed", "counter", "never", "Cached tokens computed again.", "0.16.0-0.19.99"),
    Family("generation_tokens", "counter", "generation", "Tokens generated.", v0=_V0),
    Family("tokens", "counter", "all_tokens", "Tokens of prompts and answers.", None, "0.6.6-0.7.3"),
    Family("request_success", "counter", "success", "Requests ended, by reason.", v0="0.4.3-0.11.0",
           label="finished_reason", values=("stop", "length", "abort", "error", "repetition")),
    Family("admission_rejections", "counter", "rejections", "Requests refused by a queue limit.", "0.32.0-",
           label="reason", values=("max_num_queued_reqs", "max_num_queued_tokens"), engine=False),
    Family("request_prompt_tokens", "histogram", "prompt_length", "Prompt tokens of a request.",
           v0="0.4.3-0.11.0", bounds="length"),
    Family("request_generation_tokens", "histogram", "output_length", "Output tokens of a request.",
           v0="0.4.3-0.11.0", bounds="length"),
    Family("iteration_tokens_total", "histogram", "iteration", "Tokens of an engine step.", v0=_LATE_V0,
           bounds="iteration"),
    Family("request_max_num_generation_tokens", "histogram", "max_tokens", "Most output tokens of a request.",
           "0.8.0-", _LATE_V0, bounds="length"),
    Family("request_params_n", "histogram", "n", "Answers asked for.", "0.8.0-", "0.4.3-0.11.0", bounds="n"),
    Family("request_params_best_of", "histogram", "n", "Answers to choose from.", None, "0.4.3-0.6.0", bounds="n"),
    Family("request_params_max_tokens", "histogram", "max_tokens", "max_tokens asked for.", "0.8.0-", _LATE_V0,
           bounds="length"),
    Family("time_to_first_token_seconds", "histogram", "ttft", "TTFT.", v0=_V0, bounds="ttft"),
    Family("time_per_output_token_seconds", "histogram", "itl", "Gap between steps' tokens.", "0.7.3-0.11.2", _V0,
           bounds="itl"),
    Family("inter_token_latency_seconds", "histogram", "itl", "Gap between steps' tokens.", "0.10.2-",
           "0.10.2-0.11.0", bounds="itl"),
    Family("request_time_per_output_token_seconds", "histogram", "tpot", "A request's mean gap.", "0.11.0-",
           bounds="itl"),
    Family("model_forward_time_milliseconds", "histogram", "inference_ms", "Running milliseconds of a request.", None,
           "0.6.6-0.8.2", bounds="milliseconds"),
    Family("model_execute_time_milliseconds", "histogram", "inference_ms", "Running milliseconds of a request.", None,
           "0.6.6-0.8.2", bounds="milliseconds"),
    Family("e2e_request_latency_seconds", "histogram", "e2e", f"All {_SECONDS}.", v0=_V0, bounds="request"),
    Family("request_queue_time_seconds", "histogram", "queue", f"Waiting {_SECONDS}.", v0=_LATE_V0, bounds="request"),
    Family("time_in_queue_requests", "histogram", "queue", f"Waiting {_SECONDS}.", None, "0.6.6-0.8.2",
           bounds="request"),
    Family("request_inference_time_seconds", "histogram", "inference", f"Running {_SECONDS}.", v0=_LATE_V0,
           bounds="request"),
    Family("request_prefill_time_seconds", "histogram", "prefill", f"Prefill {_SECONDS}.", v0=_LATE_V0,
           bounds="request"),
    Family("request_decode_time_seconds", "histogram", "decode", f"Decode {_SECONDS}.", v0=_LATE_V0,
           bounds="request"),
    Family("request_num_preemptions", "histogram", "preemptions", "Preemptions of a request.", "0.30.0-",
           bounds="preemptions"),
    Family("request_prefill_kv_computed_tokens", "histogram", "computed_length", "Prompt tokens computed.", "0.13.0-",
           bounds="length"),
)  # fmt: skip

_REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560
)  # fmt: skip
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_CUDA_GRAPHS = (1, 2, 4, *range(8, 513, 8))
_ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def bounds(kind: str, version: Version, v0: bool, max_model_len: int) -> tuple[float, ...]:
    """Return a kind's bucket bounds in a version; those of lengths reach up to `max_model_len`."""
    old = version < (0, 8, 4)
    match kind:
        case "ttft":
            return _TTFT[:16] if old else _TTFT
        case "itl":
            return _ITL[:13] if old else _ITL
        case "request":
            if version < (0, 6, 6):
                return (1, 2.5, *_REQUEST[7:15])
            return _REQUEST[:15] if old else _REQUEST
        case "iteration":
            if version < (0, 8, 5):
                return (*_ITERATION[:11], 8096) if v0 else _CUDA_GRAPHS
            return _ITERATION
        case "n":
            return (1, 2, 5, 10, 20)
        case "preemptions":
            return (1, 2, 3, 4, 5, 10, 20)
        case "milliseconds":
            return _series((1, 2, 3, 5, 8), 3000)
        case _:
            return _series((1, 2, 5), max_model_len)


def _series(mantissas: tuple[int, ...], top: int) -> tuple[float, ...]:
    steps = (mantissa * 10**power for power in range(9) for mantissa in mantissas)
    return tuple(step for step in steps if step <= top)


def reasons(family: Family, version: Version) -> tuple[str, ...]:
    """Return the values of a family's own label in a version."""
    if family.name != "request_success":
        return family.values
    return family.values[: 3 + (version >= (0, 13, 0)) + (version >= (0, 17, 0))]
