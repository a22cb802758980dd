"""The table of every family that llm-vitals exports: nothing leaves the process that has no row here.

docs/metrics.md is generated from this table (`python -m exporter.catalogue`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

from prometheus_client.utils import floatToGoString

Type = Literal["counter", "gauge", "histogram", "info"]

SUFFIXES: dict[str, tuple[str, ...]] = {"histogram": ("_bucket", "_sum", "_count")}
"""What a type appends to the family's name to make its samples' names."""


class Kind(enum.StrEnum):
    """Where a number comes from; the kinds are never mixed in one family."""

    RELAYED = "relayed"
    MEASURED = "measured"
    ARITHMETIC = "arithmetic"
    SELF = "self"


@dataclass(frozen=True, slots=True)
class Family:
    """One exported family: its name, type, labels besides `target` and `backend`, and HELP text."""

    name: str
    type: Type
    labels: tuple[str, ...]
    help: str
    kind: Kind
    per_target: bool = True

    @property
    def sample_names(self) -> tuple[str, ...]:
        """The names that this family's samples carry."""
        return tuple(self.name + suffix for suffix in SUFFIXES.get(self.type, ("",)))

    @property
    def all_labels(self) -> tuple[str, ...]:
        """Every label in output order."""
        return (("target", "backend") if self.per_target else ()) + self.labels


_ENGINE = ("model", "engine")


def _relayed(name: str, kind: Type, labels: tuple[str, ...], help_: str) -> Family:
    return Family(f"vitals_{name}", kind, labels, help_, Kind.RELAYED)


def _measured(name: str, kind: Type, labels: tuple[str, ...], help_: str) -> Family:
    return Family(f"vitals_{name}", kind, labels, help_, Kind.MEASURED)


def _arithmetic(name: str, kind: Type, labels: tuple[str, ...], help_: str) -> Family:
    return Family(f"vitals_{name}", kind, labels, help_, Kind.ARITHMETIC)


def _own(name: str, kind: Type, labels: tuple[str, ...], help_: str, per_target: bool = True) -> Family:
    return Family(f"vitals_{name}", kind, labels, help_, Kind.SELF, per_target)


# fmt: off
FAMILIES: tuple[Family, ...] = (
    # --- the state of each target -------------------------------------------------------------------
    _own("target_up", "gauge", (), "1 if the last reading of the target gave what it was asked for, else 0 "
         "(the reason: vitals_scrape_failures_total and the page /debug/TARGET)."),
    _own("target_info", "info", ("version", "url"), "What the target said it is: the engine's version where "
         "it tells one, and the URL it is read at, without credentials."),
    _own("scrape_duration_seconds", "gauge", (), "How long the last reading of the target took, in seconds."),
    _own("scrape_size_bytes", "gauge", (), "Size of the last page read from the target, decompressed."),
    _own("scrape_failures_total", "counter", ("reason",), "Readings of the target that failed, by reason; "
         "timeout also those that did not end within the time that the scraper had for them."),
    _own("scrape_bad_lines_total", "counter", (), "Lines of the target's pages that could not be read; the "
         "rest of such a page is used."),
    _own("scrape_dropped_samples_total", "counter", ("reason",), "Samples read but withheld because Prometheus "
         "would store nonsense: not_finite (NaN or infinite), inconsistent_histogram (buckets not monotone, or "
         "+Inf not the count), duplicate (same series twice on one page), unit (a unit that cannot be converted)."),
    _own("unmapped_families", "gauge", (), "Families of the engine on the target's last page that this version "
         "of llm-vitals does not know: drift after an upgrade of the engine. /debug/TARGET lists them."),
    _own("family_source_info", "info", ("family", "source"), "Which of the engine's names feeds a family that has "
         "had more than one name over the engine's versions."),
    # --- relayed: latencies, as the engine's own histograms with its own buckets --------------------
    _relayed("time_to_first_token_seconds", "histogram", _ENGINE, "Time to first token (TTFT), from the "
             "request's arrival in the server to its first token, queueing included "
             "(vllm:time_to_first_token_seconds). Through a proxy: from the request's last byte to the network read "
             "with the first text; of an answer that is not streamed, by the server's own times."),
    _relayed("inter_token_latency_seconds", "histogram", _ENGINE, "Inter-token latency (ITL): one observation "
             "per request and engine step, also when a step brings several tokens by speculative decoding; a "
             "preemption's wait is inside (vllm:inter_token_latency_seconds, before 0.10.2 "
             "vllm:time_per_output_token_seconds). Through a proxy: the time between network reads with text, split "
             "evenly over the pieces of one read; none of a request for several answers at once."),
    _relayed("time_per_output_token_seconds", "histogram", _ENGINE, "Time per output token (TPOT): a finished "
             "request's mean, decode time / (tokens - 1); 0 for a request of one token "
             "(vllm:request_time_per_output_token_seconds). Through a proxy: tokens by the server's count, else pieces "
             "of text; none of a request for several answers at once."),
    _relayed("request_duration_seconds", "histogram", _ENGINE, "End-to-end time of a finished request "
             "(vllm:e2e_request_latency_seconds). Through a proxy: from the request's last byte to the answer's, of "
             "those that ended with stop or length, and of embeddings."),
    _relayed("request_queue_seconds", "histogram", _ENGINE, "Time a request waited before it was first "
             "scheduled (vllm:request_queue_time_seconds, in some 0.6 and 0.7 versions "
             "vllm:time_in_queue_requests). Through a proxy: what the server's own load and prefill times leave of the "
             "TTFT; absent where it tells none."),
    _relayed("request_prefill_seconds", "histogram", _ENGINE, "Time a request spent in prefill, from scheduled "
             "to first token (vllm:request_prefill_time_seconds)."),
    _relayed("request_decode_seconds", "histogram", _ENGINE, "Time a request spent in decode, from first to "
             "last token (vllm:request_decode_time_seconds)."),
    # --- relayed: lengths of finished requests --------------------------------------------------------
    _relayed("request_prompt_tokens", "histogram", _ENGINE, "Prompt tokens of a finished request "
             "(vllm:request_prompt_tokens)."),
    _relayed("request_generation_tokens", "histogram", _ENGINE, "Tokens generated for a finished request "
             "(vllm:request_generation_tokens)."),
    # --- relayed: load ------------------------------------------------------------------------------
    _relayed("requests_running", "gauge", _ENGINE, "Requests in the running batch "
             "(vllm:num_requests_running). Through a proxy: those under way, at most proxy.slots of a model."),
    _relayed("requests_waiting", "gauge", _ENGINE, "Requests waiting to be scheduled, deferred ones included "
             "(vllm:num_requests_waiting). Through a proxy: those under way beyond proxy.slots of a model."),
    _relayed("requests_waiting_by_reason", "gauge", (*_ENGINE, "reason"), "The same as vitals_requests_waiting, "
             "split by reason; never add the two (vllm:num_requests_waiting_by_reason)."),
    _relayed("engine_asleep", "gauge", _ENGINE, "1 while the engine sleeps (weights offloaded or discarded), "
             "so that an unused KV cache is not read as idle (vllm:engine_sleep_state)."),
    _relayed("kv_cache_usage_ratio", "gauge", _ENGINE, "Share of the KV-cache blocks in use, 0 to 1. Average or "
             "take the maximum over engines; never sum (vllm:kv_cache_usage_perc, before 0.9.2 "
             "vllm:gpu_cache_usage_perc). Through a proxy: tokens of the running requests / (proxy.slots x context "
             "length); a prompt's are estimated from its request's bytes, by the ratio of the prompts counted so far "
             "(0.25 tokens a byte before), until the server tells its count."),
    _relayed("kv_cache_capacity_tokens", "gauge", _ENGINE, "Tokens that the KV cache of one engine rank holds, "
             "from labels of vllm:cache_config_info: kv_cache_size_tokens where it is there, else num_gpu_blocks "
             "(a sum over data-parallel engines, divided by their number) times block_size."),
    # --- relayed: counters --------------------------------------------------------------------------
    _relayed("prompt_tokens_total", "counter", _ENGINE, "Prompt tokens processed, cached ones included "
             "(vllm:prompt_tokens_total). Through a proxy: by the server's count, where it tells one."),
    _relayed("cached_prompt_tokens_total", "counter", _ENGINE, "Prompt tokens that were found in a prefix cache "
             "and not computed (vllm:prompt_tokens_cached_total). Through a proxy: by the server's count, where it "
             "tells one."),
    _relayed("generation_tokens_total", "counter", _ENGINE, "Tokens generated (vllm:generation_tokens_total). "
             "Through a proxy: each piece of text as it comes, and at the end what the server counted beyond them."),
    _relayed("requests_finished_total", "counter", (*_ENGINE, "reason"), "Requests finished, by the engine's "
             "reason: stop, length, abort, error, repetition (vllm:request_success_total, which counts aborts and "
             "errors too). Through a proxy: stop, length, error, client_gone, overload."),
    _relayed("preemptions_total", "counter", _ENGINE, "Requests preempted because the KV cache was full; they "
             "are computed again (vllm:num_preemptions_total)."),
    _relayed("prefix_cache_queries_tokens_total", "counter", _ENGINE, "Prompt tokens looked up in the prefix "
             "cache, once per scheduling attempt (vllm:prefix_cache_queries_total, before 0.9.2 "
             "vllm:gpu_prefix_cache_queries_total; its blocks, up to 0.8.5, times the block size)."),
    _relayed("prefix_cache_hits_tokens_total", "counter", _ENGINE, "Prompt tokens found in the prefix cache, "
             "once per scheduling attempt (vllm:prefix_cache_hits_total, before 0.9.2 "
             "vllm:gpu_prefix_cache_hits_total; its blocks, up to 0.8.5, times the block size)."),
    _relayed("spec_decode_draft_tokens_total", "counter", _ENGINE, "Tokens proposed by speculative decoding "
             "(vllm:spec_decode_num_draft_tokens_total)."),
    _relayed("spec_decode_accepted_tokens_total", "counter", _ENGINE, "Proposed tokens that were accepted "
             "(vllm:spec_decode_num_accepted_tokens_total)."),
    _relayed("estimated_read_bytes_per_gpu_total", "counter", _ENGINE, "The engine's own estimate of bytes read from "
             "memory by each GPU; over the bandwidth of one device it says how busy the memory is. vLLM counts it only "
             "with --enable-mfu-metrics (vllm:estimated_read_bytes_per_gpu_total)."),
    # --- relayed: what an Ollama says about its models ------------------------------------------------
    _relayed("models_installed", "gauge", (), "Models on the server's disk (Ollama /api/tags)."),
    _relayed("model_loaded", "gauge", ("model",), "1 for each model in memory (Ollama /api/ps)."),
    _relayed("model_info", "info", ("model", "family", "parameter_size", "quantization"), "What the server says a "
             "loaded model is (Ollama /api/ps details)."),
    _relayed("model_memory_bytes", "gauge", ("model", "memory"), "Bytes that a loaded model takes, weights and KV "
             "cache together, by memory: vram or ram (Ollama /api/ps: size_vram, size - size_vram)."),
    _relayed("model_context_length_tokens", "gauge", ("model",), "Context length that a loaded model was "
             "loaded with (Ollama /api/ps context_length; /v1/models of a server without metrics)."),
    _relayed("model_max_context_length_tokens", "gauge", ("model",), "Longest context that the model was "
             "trained for; a server loads it with less (Ollama /api/show model_info)."),
    _relayed("model_parameters", "gauge", ("model",), "Number of the model's parameters (Ollama /api/show "
             "model_info general.parameter_count)."),
    _relayed("model_expiry_timestamp_seconds", "gauge", ("model",), "Unix time after which an idle model is "
             "unloaded; it does not move while a request runs (Ollama /api/ps expires_at)."),
    # --- what memory bandwidth and KV bytes say (exporter/physics) -------------------------------------
    _arithmetic("memory_bandwidth_bytes_per_second", "gauge", ("memory",), "Arithmetic, not measurement: the vendor's "
                "published memory bandwidth of the target's devices together, or what the configuration gives. memory: "
                "device, or ram for the RAM beside it."),
    _arithmetic("devices", "gauge", (), "How many devices hold one copy of the model (`devices` in the "
                "configuration); present where a bandwidth is known."),
    _arithmetic("model_weight_bytes", "gauge", ("model",), "Bytes of the model's weights, as the configuration "
                "(`weight_bytes`) or the server says (Ollama /api/tags size); not measured."),
    _arithmetic("decode_read_bytes_per_token", "gauge", ("model",), "Arithmetic, not measurement: bytes of weights "
                "read for each token; all of them, or of a mixture of experts the active ones."),
    _arithmetic("decode_ceiling_tokens_per_second", "gauge", ("model",), "Arithmetic, not measurement: the most "
                "tokens/s one stream can get, memory bandwidth / weight bytes read per token; for a model in VRAM and "
                "RAM the two reading times add up. Speculative decoding may exceed it."),
    _arithmetic("kv_cache_bytes_per_token", "gauge", ("model",), "Arithmetic, not measurement: KV bytes that each "
                "token of a context keeps, 2 x layers x KV heads x head dimension x bytes per element, in the layers "
                "that keep all tokens; absent where the model's shape is not known or not understood."),
    _arithmetic("kv_cache_capacity_bytes", "gauge", _ENGINE, "Arithmetic, not measurement: "
                "vitals_kv_cache_capacity_tokens x vitals_kv_cache_bytes_per_token; absent for models with "
                "sliding-window layers, which keep less of long contexts."),
    _arithmetic("decode_kv_share_ratio", "gauge", ("model",), "Arithmetic, not measurement: the share of a decode "
                "step's bytes that are KV re-read at the present contexts and not weights, 0 to 1; absent for a "
                "mixture of experts that decodes a batch, because which experts that reads is not known."),
    _arithmetic("verdict", "gauge", ("model", "cause"), "1 for the cause that holds now, 0 for all others, judged by "
                "llm-vitals from the last minute's readings (causes and what to change: docs/causes.md; the "
                "evidence: llm-vitals explain). One that does not hold for 20 s yet is not shown."),
    _measured("probe_alone_decode_tokens_per_second", "gauge", ("model",), "Decode rate of the last good probe that "
              "was alone on the server (concurrency 1): no other tokens were made meanwhile by the engine's counters, "
              "or, where it has none, nothing waited. What vitals_decode_ceiling_tokens_per_second is compared with."),
    # --- measured by our own probes -------------------------------------------------------------------
    _measured("probe_time_to_first_token_seconds", "histogram", ("model", "prompt"), "TTFT of synthetic probes: "
              "from the request sent to the first network read that carries text, connection set-up and cold loads "
              "left out. A probe that gave up waiting for its first token counts with the time it waited, a lower "
              "bound; no other failed probe counts. prompt: small (about 200 tokens), large (about 2,000) or cached "
              "(the prompt before, once more)."),
    _measured("probe_time_to_first_answer_token_seconds", "histogram", ("model", "prompt"), "The same to the first "
              "token of the answer proper, of probes whose model thought first and came to an answer."),
    _measured("probe_inter_token_latency_seconds", "histogram", ("model",), "ITL of synthetic probes: the time "
              "between network reads that carry text, as a client sees it; nothing from answers that came coalesced."),
    _measured("probe_time_per_output_token_seconds", "histogram", ("model",), "TPOT of synthetic probes: (last - "
              "first token) / (tokens - 1), with tokens by the server's own count."),
    _measured("probe_load_seconds", "histogram", ("model",), "Time to load the model into memory, of probes that "
              "met a cold model (Ollama load_duration); such probes feed no latency histogram."),
    _measured("probe_phase_seconds", "gauge", ("model", "prompt", "phase"), "Where the time of the last good probe "
              "went: connect, queue, load, prefill, decode. load and prefill are the server's word (Ollama "
              "load_duration, prompt_eval_duration; llama.cpp timings; vLLM --enable-per-request-metrics), queue is "
              "what they leave of the TTFT; absent where the server tells no times."),
    _measured("probe_connect_seconds", "gauge", ("model",), "Connection set-up of the last good probe: name "
              "resolution, TCP and TLS, which are in no latency."),
    _measured("probe_prefill_tokens_per_second", "gauge", ("model", "prompt"), "Prefill rate of the last good probe: "
              "uncached prompt tokens / the server's own prefill time; absent where it tells none."),
    _measured("probe_decode_tokens_per_second", "gauge", ("model", "prompt"), "Decode rate of the last good probe: "
              "(tokens - 1) / the server's own decode time, or the time seen where it tells none; the first token is "
              "made by prefill."),
    _measured("probe_prefill_seconds_per_token", "gauge", ("model",), "What one more prompt token adds to the TTFT: "
              "the slope between the last small and the last large prompt, as a client sees it."),
    _measured("probe_prefill_fixed_seconds", "gauge", ("model",), "The TTFT that a prompt of no tokens would have: "
              "the intercept of the same line."),
    _measured("probe_cached_saving_seconds", "gauge", ("model",), "How much sooner the first token came when the "
              "last prompt was asked once more: what the prefix cache saves; about 0 without one."),
    _measured("probe_share_ratio", "gauge", (), "Share of the server's time that probes took lately, 0 to 1; never "
              "above probe.max_share."),
    _measured("probes_total", "counter", ("model",), "Probes that ended, good or bad, cold ones included."),
    _measured("probe_cold_total", "counter", ("model",), "Probes that served as warm-up: the first after the "
              "exporter started or the model was loaded."),
    _measured("probe_coalesced_total", "counter", ("model",), "Good probes whose text came mostly in shared network "
              "reads, as behind a buffering proxy: they have no ITL and no TPOT, and their TTFT is late."),
    _measured("probe_failures_total", "counter", ("model", "reason"), "Probes that failed, by reason."),
    _measured("probe_last_success_timestamp_seconds", "gauge", ("model",), "Unix time of the last good probe."),
    # --- the exporter itself --------------------------------------------------------------------------
    _own("config_last_reload_successful", "gauge", (), "1 if the last reading of the configuration was good; a "
         "bad one is refused and the old one stays.", per_target=False),
    _own("config_last_reload_success_timestamp_seconds", "gauge", (), "Unix time of the last good reading of the "
         "configuration.", per_target=False),
    _own("build_info", "info", ("version", "python"), "The exporter's own version.", per_target=False),
)

# fmt: on

BY_NAME: dict[str, Family] = {family.name: family for family in FAMILIES}


def escape_label(value: str) -> str:
    r"""Escape a label value for the text format: backslash, double quote and line feed."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def bound_text(bound: float) -> str:
    """Write a bucket's bound in seconds as Prometheus's client libraries and Prometheus 3 do: 1.0, 2560.0, +Inf."""
    return str(floatToGoString(bound))  # type: ignore[no-untyped-call]  # the library's utils are not annotated


def render_labels(labels: tuple[tuple[str, str], ...]) -> str:
    """Render labels in the order given, without braces; a label with an empty value is left out."""
    return ",".join(f'{name}="{escape_label(value)}"' for name, value in labels if value)


def header(family: Family, openmetrics: bool) -> str:
    """Return a family's HELP and TYPE lines.

    OpenMetrics names a counter without `_total` and knows the type `info` (named without `_info`); in
    the text format an info family is a gauge.
    """
    name, kind = family.name, family.type
    if openmetrics:
        name = (
            name.removesuffix("_total") if kind == "counter" else name.removesuffix("_info") if kind == "info" else name
        )
    elif kind == "info":
        kind = "gauge"
    text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    if openmetrics:
        text = text.replace('"', r"\"")
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def markdown() -> str:
    """Return docs/metrics.md."""
    titles = {
        Kind.RELAYED: "Relayed: the engine's own numbers, read while Prometheus reads us, or observed through a proxy",
        Kind.MEASURED: "Measured: our own synthetic probes",
        Kind.ARITHMETIC: "Arithmetic on device and model, and the verdict",
        Kind.SELF: "About the targets and the exporter",
    }
    out = [
        "# Metrics",
        "",
        "Generated from `exporter/catalogue.py` by `make docs`; a test keeps the two equal. Every family also",
        "carries `target` (the name given in the configuration) and `backend` (vllm, ollama), except where noted.",
        "A family that an engine does not report is absent: absent is not zero.",
    ]
    for kind, title in titles.items():
        out += ["", f"## {title}", "", "| family | type | further labels | meaning |", "|---|---|---|---|"]
        for family in FAMILIES:
            if family.kind is kind:
                labels = ", ".join(f"`{label}`" for label in family.labels) or "none"
                note = "" if family.per_target else " (no `target`, no `backend`)"
                out.append(f"| `{family.name}` | {family.type} | {labels}{note} | {family.help.replace('|', '/')} |")
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")  # noqa: T201
