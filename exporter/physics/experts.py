"""Bytes of weights that a model reads for a token: all of them, or of a mixture of experts those that it uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exporter.physics.kv import ShapeUnknownError, checked, head_dim, whole

MXFP4 = 17 / 32
"""Bytes per element: 4 bits, and 8 for the scale of each 32."""

_GPT_OSS = frozenset({"gptoss", "gpt-oss"})
"""GGUF architectures whose experts are MXFP4 while the rest has 8 or 16 bits, in every file of theirs."""

_GPT_OSS_VOCABULARY = 201_088

_SOME_LAYERS = ("interleave_moe_layer_step", "expert_layer_period", "hybrid_override_pattern", "mlp_only_layers")


@dataclass(frozen=True, slots=True)
class Parts:
    """Numbers of parameters: of all `experts`, of the `rest`, and of that the table of embeddings, only looked up in.

    `used`: the share of the experts that a token goes through.
    """

    experts: float
    used: float
    rest: float
    table: float = 0.0

    @property
    def active_share(self) -> float:
        """Which share of the parameters is active, as models are described: the table counts."""
        return (self.rest + self.experts * self.used) / (self.rest + self.experts)

    def read_bytes(self, weights: float, mixed: bool) -> float:
        """Return the bytes read of `weights` bytes; `mixed`: the experts are MXFP4, the rest is not.

        Then the rest is most of what is read, and its table is left out for once.
        """
        if not mixed:
            return weights * self.active_share
        experts = self.experts * MXFP4
        if not experts < weights:
            raise ShapeUnknownError("the weights are fewer bytes than their experts")
        return (weights - experts) * (1 - self.table / self.rest) + experts * self.used


def read_bytes(config: Mapping[str, object], weights: float) -> float:
    """Return the bytes read for a token of weights of so many, by a model's config.json; ShapeUnknownError."""
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        config = {**config, **inner}
    quantization = config.get("quantization_config")
    mixed = isinstance(quantization, Mapping) and quantization.get("quant_method") == "mxfp4"
    parts = _parts(config)
    return weights if parts is None else parts.read_bytes(weights, mixed)


def read_bytes_gguf(info: Mapping[str, object], weights: float) -> float:
    """Return the same by GGUF metadata (Ollama's /api/show model_info); ShapeUnknownError."""
    name = str(info.get("general.architecture"))
    experts = info.get(f"{name}.expert_count")
    if not experts:
        return weights
    count = checked(experts, "expert_count")
    used, width, layers, total = (
        checked(info.get(key), key)
        for key in (f"{name}.expert_used_count", f"{name}.embedding_length", f"{name}.block_count",
                    "general.parameter_count")
    )  # fmt: skip
    size = info.get(f"{name}.expert_feed_forward_length") or info.get(f"{name}.feed_forward_length")
    sparse = layers - checked(info.get(f"{name}.leading_dense_block_count") or 0, "leading_dense_block_count")
    all_of_them = sparse * count * 3 * width * checked(size, "expert_feed_forward_length")
    if not 0 < all_of_them < total or used > count:
        raise ShapeUnknownError("the experts' sizes do not add up to the number of parameters")
    parts = Parts(all_of_them, used / count, total - all_of_them, _GPT_OSS_VOCABULARY * width)
    return parts.read_bytes(weights, name in _GPT_OSS)


def _parts(config: Mapping[str, object]) -> Parts | None:
    """Return the parts of a mixture of experts, None for another model."""
    experts = whole(config, "n_routed_experts", "num_local_experts", "num_experts", default=0)
    if not experts:
        return None
    some = [key for key in _SOME_LAYERS if config.get(key)]
    if config.get("decoder_sparse_step") not in (None, 1):
        some.append("decoder_sparse_step")
    if some:
        raise ShapeUnknownError(f"it is not plain which layers have experts ({some[0]})")
    layers, width = whole(config, "num_hidden_layers"), whole(config, "hidden_size")
    dense_width = whole(config, "intermediate_size", default=0)
    one = 3 * width * whole(config, "moe_intermediate_size", default=dense_width)
    dense_layers = whole(config, "first_k_dense_replace", default=0)
    sparse = layers - dense_layers
    shared = whole(config, "n_shared_experts", default=0) * one
    shared += 3 * width * whole(config, "shared_expert_intermediate_size", "shared_intermediate_size", default=0)
    heads = whole(config, "num_attention_heads")
    attention = 2 * width * head_dim(config, heads) * (heads + whole(config, "num_key_value_heads", default=heads))
    table = whole(config, "vocab_size") * width
    looked_up = 0 if config.get("tie_word_embeddings") else table
    rest = table + looked_up + layers * attention + dense_layers * 3 * width * dense_width + sparse * shared
    used = whole(config, "num_experts_per_tok", "experts_per_token") / experts
    if not (sparse > 0 and one > 0 and 0 < used <= 1):
        raise ShapeUnknownError("the numbers of experts and their sizes do not fit together")
    return Parts(sparse * experts * one, used, rest, looked_up)
