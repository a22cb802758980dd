"""Decode ceilings, KV bytes and devices: the figures that the documentation and the causes promise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exporter.model import ModelFacts
from exporter.physics import ceiling, devices, kv
from exporter.physics.facts import bandwidth, facts
from exporter.settings import Target

MODELS = Path(__file__).parent / "fixtures/models"
GB = 1e9


def model(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MODELS / f"{name}.json").read_text())
    return found


LLAMA = model("llama-3.1-8b")


def target(**keys: Any) -> Target:
    return Target("box", "http://box:8000", **keys)


@pytest.mark.parametrize(
    ("device", "gb_s", "tokens_per_second"),
    [
        ("CPU, dual channel DDR5-5600", 90, 6),
        ("NVIDIA A10G", 600, 38),
        ("NVIDIA L40S", 864, 54),
        ("NVIDIA RTX 4090", 1008, 63),
        ("NVIDIA A100 80GB SXM", 2039, 127),
        ("NVIDIA H100 SXM", 3350, 209),
    ],
)
def test_the_decode_ceiling_of_an_8b_model_in_16_bits_is_bandwidth_over_16_gb(
    device: str, gb_s: float, tokens_per_second: int
) -> None:
    assert devices.find(device).bandwidth == gb_s * GB
    found = facts(target(device=device, weight_bytes=16 * GB), ModelFacts())
    assert found.ceiling is not None
    assert round(found.ceiling) == tokens_per_second
    assert found.ceiling == pytest.approx(gb_s / 16)


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB SXM"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100 80GB PCIe"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA RTX 4090"),
        ("nvidia geforce rtx 5090", "NVIDIA RTX 5090"),
        ("NVIDIA RTX A6000", "NVIDIA RTX A6000"),
        ("A6000", "NVIDIA RTX A6000"),
        ("Tesla T4", "NVIDIA T4"),
        ("NVIDIA GB10", "NVIDIA GB10"),
        ("AMD Instinct MI300X", "AMD Instinct MI300X"),
        ("AMD Radeon RX 7900 XTX", "AMD Radeon RX 7900 XTX"),
        ("Radeon 8060S Graphics", "AMD Strix Halo"),
        ("gfx1151", "AMD Strix Halo"),
        ("Apple M4 Max", "Apple M4 Max"),
        ("Intel(R) Arc(TM) A770 Graphics", "Intel Arc A770"),
    ],
)
def test_a_device_is_found_as_the_tools_print_it(printed: str, name: str) -> None:
    assert devices.find(printed).name == name


def test_every_device_has_a_plausible_bandwidth_and_a_source() -> None:
    table = devices.table()
    assert len(table) > 80
    for device in table:
        assert 50 * GB <= device.bandwidth <= 8000 * GB, device
        assert len(device.source) > 10, device
    wanted = (
        "T4, L4, A10, A6000, RTX 3090, RTX 5090, H100 PCIe, H100 NVL, H200, B200, MI300X, M1, M2, M3, M4, M5, GB10, "
        "Strix Halo"
    )
    for name in wanted.split(", "):
        devices.find(name)


def test_an_unknown_device_is_answered_with_the_nearest_names() -> None:
    with pytest.raises(ValueError, match=r"no device is called 'RTX 4909'; did you mean 'NVIDIA RTX 4090'"):
        devices.find("RTX 4909")


def test_an_8b_model_keeps_131072_bytes_a_token_and_8000_tokens_take_about_1_gb() -> None:
    found = kv.from_config(LLAMA)
    assert found.per_token == 2 * 32 * 8 * 128 * 2 == 131_072
    assert found.context_bytes(8000) == pytest.approx(1.05 * GB, rel=0.01)
    assert found.contexts(10 * GB, 8000) == 9


@pytest.mark.parametrize(("kind", "size"), [("auto", 2), ("fp8", 1), ("f32", 4), ("q8_0", 34 / 32), ("q4_0", 18 / 32)])
def test_the_cache_type_scales_the_bytes(kind: str, size: float) -> None:
    assert kv.from_config(LLAMA, kind).per_token == 2 * 32 * 8 * 128 * size


def test_a_model_published_in_32_bits_keeps_its_kv_in_16_as_servers_run_it() -> None:
    assert kv.from_config({**LLAMA, "torch_dtype": "float32"}).per_token == 131_072


@pytest.mark.parametrize(
    "told", [{"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, {"kv_cache_quant_algo": "FP8"}]
)
def test_a_model_that_was_published_for_an_fp8_cache_gets_one_unless_told_otherwise(told: dict[str, Any]) -> None:
    assert kv.from_config({**LLAMA, "quantization_config": told}).per_token == 131_072 / 2
    assert kv.from_config({**LLAMA, "quantization_config": told}, "bf16").per_token == 131_072
    assert kv.from_config({**LLAMA, "quantization_config": {"kv_cache_scheme": None}}).per_token == 131_072


@pytest.mark.parametrize(
    ("told", "heads"),
    [
        ({}, 32),
        ({"num_kv_heads": 8}, 8),  # Falcon 40B
        ({"multi_query_group_num": 2, "multi_query_attention": True}, 2),  # ChatGLM
        ({"multi_query": True}, 1),  # Falcon 7B, StarCoder
    ],
)
def test_the_number_of_kv_heads_has_several_names(told: dict[str, Any], heads: int) -> None:
    assert kv.from_config({**LLAMA, "num_key_value_heads": None, **told}).per_token == 2 * 32 * heads * 128 * 2


def test_sliding_window_layers_stop_growing_at_their_window() -> None:
    found = kv.from_config(model("gemma-2-9b"))  # every second of its 42 layers
    layer = 2 * 8 * 256 * 2
    assert found.context_bytes(1000) == 42 * layer * 1000
    assert found.context_bytes(100_000) == 21 * layer * 100_000 + 21 * layer * 4096


def test_a_window_that_is_switched_off_is_none() -> None:
    shape = {**LLAMA, "sliding_window": 4096, "use_sliding_window": False}
    assert kv.from_config(shape) == kv.from_config(LLAMA)
    assert kv.from_config({**LLAMA, "sliding_window": 4096}).windows == ((4096, 131_072.0),)


def test_multi_head_latent_attention_keeps_one_latent_a_layer() -> None:
    assert kv.from_config(model("deepseek-v3")).per_token == 61 * (512 + 64) * 2


def test_layers_without_attention_keep_no_kv() -> None:
    assert kv.from_config(model("qwen3-next-80b-a3b")).per_token == 1 * 2 * 2 * 256 * 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"layer_types": ["full_attention", "spiral"]}, "layers of type spiral are not known"),
        ({"attn_layer_period": 8}, "a hybrid model .attn_layer_period."),
        ({"num_hidden_layers": None}, "has no num_hidden_layers"),
        ({"num_key_value_heads": "eight"}, "num_key_value_heads is no whole number"),
        ({"num_attention_heads": 0}, "has no attention heads"),
        # Gemma 3n and 4, MiniMax-01, MiMo-V2, Kimi Linear, DeepSeek-V3.2: their layers keep other amounts, or none.
        ({"layer_types": ["full_attention"] * 32, "num_kv_shared_layers": 10}, "num_kv_shared_layers"),
        ({"layer_types": ["full_attention"] * 32, "global_head_dim": 512}, "global_head_dim"),
        ({"attn_type_list": [0, 1] * 16}, "attn_type_list"),
        ({"num_key_value_heads": None, "block_configs": [{}]}, "block_configs"),
        ({"hybrid_layer_pattern": [0, 1] * 16, "sliding_window": 128}, "hybrid_layer_pattern"),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64, "linear_attn_config": {}}, "linear_attn_config"),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}, "index_head_dim"),
    ],
)
def test_a_shape_that_is_not_understood_is_said_to_be_unknown(change: dict[str, Any], why: str) -> None:
    with pytest.raises(kv.ShapeUnknownError, match=why):
        kv.from_config({**LLAMA, **change})
    found = facts(
        target(model_config=json.dumps({**LLAMA, **change}), weight_bytes=1e9, device="NVIDIA L4"), ModelFacts()
    )
    assert found.kv is None
    assert found.why


def test_a_config_with_a_language_model_inside_is_read_from_there() -> None:
    assert kv.from_config({"model_type": "mllama", "text_config": LLAMA}) == kv.from_config(LLAMA)


def test_gguf_metadata_of_a_real_ollama_give_its_kv_bytes() -> None:
    found = kv.from_gguf(model("gemma3-270m.gguf"))  # 18 layers, every sixth full, one KV head of 256
    layer = (256 + 256) * 2
    assert found == kv.Kv(3 * layer, ((512, 15 * layer),))


def test_gguf_metadata_of_a_plain_model_count_keys_and_values() -> None:
    info = {
        "general.architecture": "llama", "llama.block_count": 32, "llama.attention.head_count": 32,
        "llama.attention.head_count_kv": 8, "llama.embedding_length": 4096,
    }  # fmt: skip
    assert kv.from_gguf(info).per_token == 131_072
    assert kv.from_gguf(info, "q8_0").per_token == 131_072 * 34 / 64
    assert kv.from_gguf({**info, "llama.attention.head_count_kv": [8, 0] * 16}).per_token == 131_072 / 2
    for unknown in (
        {"llama.attention.kv_lora_rank": 512},
        {"llama.ssm.state_size": 16},
        {"llama.block_count": None},
        {"llama.attention.sliding_window": 4096},  # in which of its layers is not told
    ):
        with pytest.raises(kv.ShapeUnknownError):
            kv.from_gguf({**info, **unknown})


def test_weights_in_two_memories_are_read_one_after_the_other() -> None:
    assert ceiling.decode_ceiling((8 * GB, 800 * GB), (2 * GB, 50 * GB)) == pytest.approx(1 / (0.010 + 0.040))
    told = ModelFacts(weight_bytes=int(10 * GB), vram_share=0.8)
    found = facts(target(memory_bandwidth_gb_s=800.0, host_memory_bandwidth_gb_s=50.0), told)
    assert found.ceiling == pytest.approx(20.0)


def test_a_unified_memory_has_one_bandwidth_wherever_the_model_lies() -> None:
    found = facts(target(device="Apple M4 Max"), ModelFacts(weight_bytes=int(5.46 * GB), vram_share=0.5))
    assert found.ceiling == pytest.approx(100.0)


def test_what_is_missing_for_a_ceiling_is_named() -> None:
    told = ModelFacts(weight_bytes=int(10 * GB), vram_share=0.75)
    assert "set device or memory_bandwidth_gb_s" in facts(target(), told).why[0]
    assert (
        "25% of the model is not known; set host_memory_bandwidth_gb_s"
        in facts(target(device="NVIDIA L4"), told).why[0]
    )
    assert "set weight_bytes" in facts(target(device="NVIDIA L4"), ModelFacts()).why[0]


def test_tensor_parallel_devices_add_their_bandwidths() -> None:
    two = target(device="NVIDIA H100 SXM", devices=2, weight_bytes=16 * GB)
    assert bandwidth(two).device == 6700 * GB
    assert facts(two, ModelFacts()).ceiling == pytest.approx(418.75)


def test_the_share_of_a_decode_step_that_is_kv_grows_with_the_context() -> None:
    kv_bytes = kv.from_config(LLAMA).context_bytes(32_000)
    assert ceiling.kv_share(kv_bytes, 16 * GB) == pytest.approx(4.194 / 20.194, rel=0.001)
