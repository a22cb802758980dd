"""Bytes of keys and values that a context leaves in the KV cache, by the shape of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ELEMENT_BYTES = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "fp8": 1.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32,
    "q4_1": 20 / 32, "q4_0": 18 / 32,
}  # fmt: skip
"""Bytes per element by cache type; the q types are llama.cpp's blocks of 32 elements with their scales."""

_TORCH = {"float32": "f16", "float16": "f16", "bfloat16": "bf16"}
"""Cache types by a model's; vLLM and SGLang run one that is published in 32 bits in 16, unless told otherwise."""

_FULL_EVERY = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4, "gpt_oss": 2, "gptoss": 2, "gpt-oss": 2}
"""Families whose layers alternate without saying so: every n-th is full attention, the others have a window."""

_FULL = frozenset({"full_attention", "attention", "global"})
_WINDOW = frozenset({"sliding_attention", "chunked_attention", "local"})
_NONE = frozenset({"linear_attention", "mamba", "mamba2", "recurrent", "conv", "moe", "mlp"})
_UNEVEN_KEYS = (
    "num_kv_shared_layers", "global_head_dim", "attn_type_list", "hybrid_layer_pattern", "attention_other_setting",
    "linear_attn_config", "index_head_dim", "compress_ratios", "cla_share_factor", "block_configs",
)  # fmt: skip
"""Keys of models whose layers keep other amounts than their heads say: shared, compressed, with an index, or none."""

_HYBRID_KEYS = ("hybrid_override_pattern", "attn_layer_period", "attn_layer_indices", "mamba_d_state", "ssm_cfg")


class ShapeUnknownError(ValueError):
    """The model's KV bytes cannot be told; `str()` says why."""


@dataclass(frozen=True, slots=True)
class Kv:
    """KV bytes of a context: `per_token` for each token, and (window, bytes) of layers that keep only a window."""

    per_token: float
    windows: tuple[tuple[int, float], ...] = ()

    def context_bytes(self, tokens: float) -> float:
        """Return the bytes that a context of so many tokens keeps."""
        return tokens * self.per_token + sum(min(tokens, window) * size for window, size in self.windows)

    def contexts(self, capacity_bytes: float, tokens: float) -> int:
        """Return how many contexts of so many tokens fit in so many bytes."""
        return int(capacity_bytes // self.context_bytes(tokens))


def from_config(config: Mapping[str, object], cache_type: str = "auto") -> Kv:
    """Return the KV bytes of a model by its config.json (Hugging Face's keys); raise ShapeUnknownError.

    A plain layer keeps 2 x KV heads x head dimension x bytes per element for each token; one with multi-head
    latent attention (MLA) keeps kv_lora_rank + qk_rope_head_dim elements.  `auto` takes the type of the cache that the
    model was published for, else of the weights.
    """
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        config = {**config, **inner}
    if found := [key for key in _UNEVEN_KEYS if config.get(key) not in (None, 0)]:
        raise ShapeUnknownError(f"layers of this model keep different amounts ({found[0]})")
    element = _element(cache_type, _published_type(config))
    layers = whole(config, "num_hidden_layers", "n_layer", "num_layers")
    if (rank := config.get("kv_lora_rank")) is not None:
        return Kv(layers * element * (checked(rank, "kv_lora_rank") + whole(config, "qk_rope_head_dim")))
    heads = whole(config, "num_attention_heads", "n_head")
    heads_of_kv = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
    kv_heads = whole(config, *heads_of_kv, default=1 if config.get("multi_query") else heads)
    dimension = head_dim(config, heads)
    layer = 2 * kv_heads * dimension * element
    types = config.get("layer_types") or config.get("layers_block_type")
    if isinstance(types, list):
        return _by_type([str(kind) for kind in types], layer, config.get("sliding_window"))
    if found := [key for key in _HYBRID_KEYS if config.get(key) is not None]:
        raise ShapeUnknownError(f"a hybrid model ({found[0]}) does not say which layers have attention")
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    every = config.get("sliding_window_pattern") or _FULL_EVERY.get(str(config.get("model_type")))
    return _alternating(layers, layer, window, every)


def from_gguf(info: Mapping[str, object], cache_type: str = "auto") -> Kv:
    """Return the KV bytes of a model by its GGUF metadata (Ollama's /api/show model_info); raise ShapeUnknownError.

    `auto` is f16, the default of llama.cpp and Ollama.
    """
    name = str(info.get("general.architecture"))

    def get(key: str) -> object:
        return info.get(f"{name}.{key}")

    if get("attention.kv_lora_rank") is not None:
        raise ShapeUnknownError("multi-head latent attention: what the runner keeps of it differs from build to build")
    element = _element(cache_type, "f16")
    layers = checked(get("block_count"), f"{name}.block_count")
    heads = checked(get("attention.head_count"), f"{name}.attention.head_count")
    head_dim = checked(get("embedding_length"), f"{name}.embedding_length") // heads if heads else 0
    key, value = (
        head_dim if get(f"attention.{part}_length") is None else checked(get(f"attention.{part}_length"), part)
        for part in ("key", "value")
    )
    kv_heads = get("attention.head_count_kv")
    token = (key + value) * element
    if isinstance(kv_heads, list):  # one number a layer, 0 where it has no attention
        return Kv(sum(checked(count, "head_count_kv") for count in kv_heads) * token)
    if get("ssm.state_size") is not None:
        raise ShapeUnknownError("a hybrid model does not say which layers have attention")
    layer = (heads if kv_heads is None else checked(kv_heads, f"{name}.attention.head_count_kv")) * token
    if get("attention.sliding_window") and name not in _FULL_EVERY:
        raise ShapeUnknownError("a model with sliding windows does not say which layers have them")
    return _alternating(layers, layer, get("attention.sliding_window"), _FULL_EVERY.get(name))


def head_dim(config: Mapping[str, object], heads: int) -> int:
    """Return the dimension of an attention head; ShapeUnknownError."""
    if config.get("head_dim") is not None:
        return whole(config, "head_dim")
    if not heads:
        raise ShapeUnknownError("the model has no attention heads")
    return whole(config, "hidden_size", "n_embd") // heads


def _alternating(layers: int, layer: float, window: object, every: object) -> Kv:
    if window is None or window == 0:
        return Kv(layers * layer)
    size = checked(window, "sliding_window")
    full = layers // checked(every, "sliding_window_pattern") if every else 0
    return Kv(full * layer, ((size, (layers - full) * layer),))


def _by_type(types: list[str], layer: float, window: object) -> Kv:
    if unknown := set(types) - _FULL - _WINDOW - _NONE:
        raise ShapeUnknownError(f"layers of type {', '.join(sorted(unknown))} are not known")
    windowed = sum(kind in _WINDOW for kind in types)
    full = sum(kind in _FULL for kind in types)
    windows = ((checked(window, "sliding_window"), windowed * layer),) if windowed else ()
    return Kv(full * layer, windows)


def _published_type(config: Mapping[str, object]) -> str:
    quantization = config.get("quantization_config")
    if isinstance(quantization, Mapping):
        scheme = quantization.get("kv_cache_scheme")
        if isinstance(scheme, Mapping) and scheme.get("num_bits") == 8:  # compressed-tensors, modelopt
            return "fp8"
        if str(quantization.get("kv_cache_quant_algo")).upper() == "FP8":
            return "fp8"
    return _TORCH.get(str(config.get("torch_dtype") or config.get("dtype")), "f16")


def _element(cache_type: str, default: str) -> float:
    return ELEMENT_BYTES[default if cache_type == "auto" else cache_type]


def whole(config: Mapping[str, object], *keys: str, default: int | None = None) -> int:
    """Return the first of these keys that is there, else the default; ShapeUnknownError."""
    for key in keys:
        if config.get(key) is not None:
            return checked(config[key], key)
    if default is None:
        raise ShapeUnknownError(f"the model's configuration has no {keys[0]}")
    return default


def checked(value: object, key: str) -> int:
    """Return a value that is a whole number from 0 on; ShapeUnknownError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ShapeUnknownError(f"the model's {key} is no whole number")
    return value
