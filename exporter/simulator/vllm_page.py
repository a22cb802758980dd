"""The labels of vLLM's `cache_config_info`: what a reader derives the size of the KV cache from."""

from __future__ import annotations

from exporter.simulator import vllm_families
from exporter.simulator.cache import PagedCache
from exporter.simulator.hardware import Model

_SINCE_0_32 = {
    "_block_size_resolved": "True",
    "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "float32",
    "num_cpu_blocks": "None",
    "num_gpu_blocks_override": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "False",
}

_BEFORE = {
    "cache_dtype": "auto",
    "calculate_kv_scales": "False",
    "cpu_offload_gb": "0",
    "is_attention_free": "False",
    "num_cpu_blocks": "None",
    "num_gpu_blocks_override": "None",
    "prefix_caching_hash_algo": "builtin",
    "sliding_window": "None",
    "swap_space": "4",
}
"""Nearly every release has had its own set; this is about that of 0.8.5, and readers go by name."""


def cache_config(
    version: str, max_model_len: int, gpu_memory_utilization: float, cache: PagedCache, model: Model
) -> dict[str, str]:
    """Return the labels; a sliding window, offloading and the like are off."""
    size = cache.num_blocks * cache.block_size  # the null block is counted, as 0.32 does
    own = {
        "block_size": str(cache.block_size),
        "enable_prefix_caching": str(cache.prefix_caching),
        "gpu_memory_utilization": str(gpu_memory_utilization),
        "num_gpu_blocks": str(cache.num_blocks),
    }
    if vllm_families.parse(version.partition("-")[0]) < (0, 32, 0):
        return _BEFORE | own
    return (
        _SINCE_0_32
        | own
        | {
            "effective_attention_block_size": str(cache.block_size),
            "kv_cache_max_concurrency": str(size / max_model_len),
            "kv_cache_memory_bytes": str(int(size * model.kv_bytes_per_token)),
            "kv_cache_size_tokens": str(size),
        }
    )
