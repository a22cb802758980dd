"""vLLM's names, 0.6 to 0.32, of the V0 and the V1 engine, direct, in OpenMetrics and through Ray.

Versions are the first and last that were seen to define a name in the released packages.
"""

from __future__ import annotations

from exporter.backends import Backend, Row, Source

VLLM = Backend(
    name="vllm",
    prefixes=("ray_vllm:", "ray_vllm_", "vllm:", "vllm_"),
    rows=(
        Row("vitals_time_to_first_token_seconds", (Source("time_to_first_token_seconds", "0.3.3"),)),
        Row(
            "vitals_inter_token_latency_seconds",
            (
                Source("inter_token_latency_seconds", "0.10.2"),
                # The same observations under the old name; hidden in 0.12.0.
                Source("time_per_output_token_seconds", "0.3.3", "0.14.0"),
            ),
        ),
        Row("vitals_time_per_output_token_seconds", (Source("request_time_per_output_token_seconds", "0.11.0"),)),
        Row("vitals_request_duration_seconds", (Source("e2e_request_latency_seconds", "0.3.3"),)),
        Row(
            "vitals_request_queue_seconds",
            (
                Source("request_queue_time_seconds", "0.6.6"),
                # V0; seconds in spite of the name.
                Source("time_in_queue_requests", "0.6.6", "0.9.0.1"),
            ),
        ),
        Row("vitals_request_prefill_seconds", (Source("request_prefill_time_seconds", "0.6.6"),)),
        Row("vitals_request_decode_seconds", (Source("request_decode_time_seconds", "0.6.6"),)),
        Row("vitals_request_prompt_tokens", (Source("request_prompt_tokens", "0.4.3"),)),
        Row("vitals_request_generation_tokens", (Source("request_generation_tokens", "0.4.3"),)),
        Row("vitals_requests_running", (Source("num_requests_running", "0.2.7"),)),
        Row("vitals_requests_waiting", (Source("num_requests_waiting", "0.2.7"),)),
        Row(
            "vitals_requests_waiting_by_reason",
            (Source("num_requests_waiting_by_reason", "0.20.0"),),
            labels=(("reason", "reason"),),
        ),
        Row(
            "vitals_engine_asleep",
            (Source("engine_sleep_state", "0.11.1"),),
            merge="max",
            where=("sleep_state", "awake"),
            invert=True,
        ),
        Row(
            "vitals_kv_cache_usage_ratio",
            (
                Source("kv_cache_usage_perc", "0.9.2"),
                # V1 until 0.11.2 (hidden in 0.11.0), V0 until 0.11.0.
                Source("gpu_cache_usage_perc", "0.2.7", "0.11.2"),
            ),
            merge="max",
        ),
        Row("vitals_prompt_tokens_total", (Source("prompt_tokens", "0.3.3"),)),
        Row("vitals_cached_prompt_tokens_total", (Source("prompt_tokens_cached", "0.16.0"),)),
        Row("vitals_generation_tokens_total", (Source("generation_tokens", "0.3.3"),)),
        Row(
            "vitals_requests_finished_total",
            (Source("request_success", "0.4.3"),),
            labels=(("finished_reason", "reason"),),
        ),
        Row("vitals_preemptions_total", (Source("num_preemptions", "0.4.3"),)),
        Row(
            "vitals_prefix_cache_queries_tokens_total",
            (
                Source("prefix_cache_queries", "0.9.2"),
                Source("gpu_prefix_cache_queries", "0.7.3", "0.11.2", unit="blocks"),
            ),
        ),
        Row(
            "vitals_prefix_cache_hits_tokens_total",
            (
                Source("prefix_cache_hits", "0.9.2"),
                Source("gpu_prefix_cache_hits", "0.7.3", "0.11.2", unit="blocks"),
            ),
        ),
        Row("vitals_spec_decode_draft_tokens_total", (Source("spec_decode_num_draft_tokens", "0.5.5"),)),
        Row("vitals_spec_decode_accepted_tokens_total", (Source("spec_decode_num_accepted_tokens", "0.5.5"),)),
        Row("vitals_estimated_read_bytes_per_gpu_total", (Source("estimated_read_bytes_per_gpu", "0.17.0"),)),
    ),
    known=(
        "admission_rejections", "avg_generation_throughput_toks_per_s", "avg_prompt_throughput_toks_per_s",
        "corrupted_requests", "cpu_cache_usage_perc", "cpu_prefix_cache_hit_rate", "diffusion_*",
        "estimated_flops_per_gpu", "estimated_write_bytes_per_gpu", "external_prefix_cache_*",
        "gpu_prefix_cache_hit_rate", "hf3fs_*", "hisparse_*", "iteration_tokens*", "kv_block_*",
        "kv_offload_*", "lora_requests_info", "mm_cache_*", "model_execute_time_milliseconds",
        "model_forward_time_milliseconds", "mooncake_*", "nixl_*", "num_requests_kv_fetch_by_stage",
        "num_requests_swapped", "prompt_tokens_by_source", "prompt_tokens_cached_by_source",
        "prompt_tokens_recomputed", "request_inference_time_seconds",
        "request_max_num_generation_tokens", "request_num_preemptions", "request_params_*",
        "request_prefill_kv_computed_tokens", "rl_weight_update_*", "simple_kv_offload_*",
        "sleep_mode_*", "spec_decode_*", "tokens_total", "tool_call_parser_invocations", "watermark_requests",
        "websocket_*",
    ),
    config_info="cache_config_info",
    routers={"healthy_pods": "the vLLM production-stack router", "current_qps": "the vLLM production-stack router"},
    silent="started with --disable-log-stats, or another program",
)  # fmt: skip
