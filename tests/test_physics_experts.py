"""Bytes that a mixture of experts reads for a token, by its config.json and by GGUF metadata."""

from __future__ import annotations

import json
from typing import Any

import pytest

from exporter.model import ModelFacts
from exporter.physics import experts, kv
from exporter.physics.facts import facts
from tests.test_physics import GB, model, target


@pytest.mark.parametrize(
    ("name", "active", "total"), [("mixtral-8x7b", 12.9, 46.7), ("qwen3-30b-a3b", 3.3, 30.5), ("llama-3.1-8b", 1, 1)]
)
def test_a_mixture_of_experts_reads_only_its_active_parameters(name: str, active: float, total: float) -> None:
    assert experts.read_bytes(model(name), 1.0) == pytest.approx(active / total, rel=0.03)


QWEN2_57B = {
    "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
    "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 2560, "vocab_size": 151936,
    "intermediate_size": 18944, "shared_expert_intermediate_size": 20480,
}  # fmt: skip


def test_an_expert_that_all_tokens_share_is_read_each_time() -> None:
    assert experts.read_bytes(QWEN2_57B, 57.4) == pytest.approx(14.2, rel=0.01)


@pytest.mark.parametrize("key", ["interleave_moe_layer_step", "expert_layer_period", "hybrid_override_pattern"])
def test_experts_in_some_layers_only_are_said_to_be_unknown(key: str) -> None:
    with pytest.raises(kv.ShapeUnknownError, match=f"which layers have experts .{key}."):
        experts.read_bytes({**QWEN2_57B, key: 2}, 1.0)
    with pytest.raises(kv.ShapeUnknownError, match="decoder_sparse_step"):
        experts.read_bytes({**QWEN2_57B, "decoder_sparse_step": 2}, 1.0)


@pytest.mark.parametrize("change", [{"hidden_size": 0}, {"num_experts_per_tok": 65}, {"first_k_dense_replace": 99}])
def test_experts_that_cannot_be_are_unknown_and_no_crash(change: dict[str, Any]) -> None:
    with pytest.raises(kv.ShapeUnknownError, match="do not fit together"):
        experts.read_bytes({**QWEN2_57B, **change}, 1.0)


GPT_OSS = {
    "model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4,
    "intermediate_size": 2880, "vocab_size": 201088, "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
GPT_OSS_GGUF = {
    "general.architecture": "gptoss", "general.parameter_count": 20_914_757_184, "gptoss.block_count": 24,
    "gptoss.embedding_length": 2880, "gptoss.expert_count": 32, "gptoss.expert_used_count": 4,
    "gptoss.feed_forward_length": 2880,
}  # fmt: skip


def test_of_experts_with_fewer_bits_than_the_rest_the_bytes_count_and_not_the_parameters() -> None:
    """Of gpt-oss-20b's 13.76 GB a token reads attention and head, 1.22 billion in 16 bits, and 4 of 32 experts."""
    read = 1.216 * 2 + 4 / 32 * 19.11 * 17 / 32
    config = facts(target(weight_bytes=13.76 * GB, model_config=json.dumps(GPT_OSS)), ModelFacts())
    gguf = facts(target(), ModelFacts(weight_bytes=int(13.78 * GB), info=GPT_OSS_GGUF))
    assert config.read_bytes == pytest.approx(read * GB, rel=0.02)
    assert gguf.read_bytes == pytest.approx(read * GB, rel=0.02)


def test_an_ollamas_mixture_of_experts_is_told_by_its_metadata() -> None:
    info = {
        "general.architecture": "qwen3moe", "general.parameter_count": 30_532_122_624, "qwen3moe.block_count": 48,
        "qwen3moe.embedding_length": 2048, "qwen3moe.expert_count": 128, "qwen3moe.expert_used_count": 8,
        "qwen3moe.expert_feed_forward_length": 768,
    }  # fmt: skip
    assert experts.read_bytes_gguf(info, 30.5) == pytest.approx(3.3, rel=0.03)
    assert experts.read_bytes_gguf({"general.architecture": "llama"}, 30.5) == 30.5
    with pytest.raises(kv.ShapeUnknownError):
        experts.read_bytes_gguf({**info, "general.parameter_count": 7}, 30.5)
