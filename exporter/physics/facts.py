"""What is known of a target's device and model, by its configuration and by what the server tells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from exporter.model import ModelFacts
from exporter.physics import ceiling, devices, experts, kv
from exporter.settings import Target

GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Memory bandwidths in bytes/s: of all devices together, and of the RAM beside them; None is unknown."""

    device: float | None
    ram: float | None


@dataclass(frozen=True, slots=True)
class Facts:
    """What arithmetic says of one model on its devices; None is unknown, and `why` says why, a line each.

    `weight_bytes`: of all weights; `read_bytes`: of those read for each token; `ceiling`: tokens/s of one stream.
    """

    weight_bytes: float | None = None
    read_bytes: float | None = None
    ceiling: float | None = None
    kv: kv.Kv | None = None
    why: tuple[str, ...] = ()


def bandwidth(target: Target) -> Bandwidth:
    """Return a target's bandwidths by `memory_bandwidth_gb_s`, else by `device`, times `devices`.

    A bandwidth that was given without a device is that of whichever memory the model lies in.
    """
    device = devices.find(target.device) if target.device else None
    each = target.memory_bandwidth_gb_s
    own = each * GIGA if each else device.bandwidth if device else None
    ram = target.host_memory_bandwidth_gb_s * GIGA if target.host_memory_bandwidth_gb_s else None
    if device is None or device.shares_host_memory:
        ram = ram or own
    return Bandwidth(own * target.devices if own else None, ram)


def facts(target: Target, told: ModelFacts) -> Facts:
    """Return the facts of one model; the configuration goes before what the server tells."""
    why: list[str] = []
    config = json.loads(target.model_config) if target.model_config else None
    weights = target.weight_bytes or told.weight_bytes
    read = _read_bytes(target, told, config, weights, why)
    return Facts(weights, read, _ceiling(target, told, read, why), _kv(target, told, config, why), tuple(why))


def _read_bytes(
    target: Target, told: ModelFacts, config: Mapping[str, object] | None, weights: float | None, why: list[str]
) -> float | None:
    if target.active_weight_bytes:
        return target.active_weight_bytes
    if weights is None:
        why.append("decode ceiling: the weights' size is not known; set weight_bytes")
        return None
    try:
        return experts.read_bytes(config, weights) if config else experts.read_bytes_gguf(told.info, weights)
    except kv.ShapeUnknownError as error:
        why.append(f"decode ceiling: {error}; set active_weight_bytes")
        return None


def _ceiling(target: Target, told: ModelFacts, read: float | None, why: list[str]) -> float | None:
    if read is None:
        return None
    speeds = bandwidth(target)
    # Only Ollama tells where a model lies; the others hold it in one memory.
    share = 1.0 if told.vram_share is None else told.vram_share
    reads = []
    for part, speed, key in (
        (share, speeds.device, "device or memory_bandwidth_gb_s"),
        (1 - share, speeds.ram, "host_memory_bandwidth_gb_s"),
    ):
        if part > 0 and speed is None:
            why.append(
                f"decode ceiling: the bandwidth of the memory with {part:.0%} of the model is not known; set {key}"
            )
            return None
        if part > 0 and speed is not None:
            reads.append((read * part, speed))
    return ceiling.decode_ceiling(*reads)


def _kv(target: Target, told: ModelFacts, config: Mapping[str, object] | None, why: list[str]) -> kv.Kv | None:
    if config is None and not told.info:
        why.append("KV bytes: the model's shape is not known; set model_config to its config.json")
        return None
    try:
        return kv.from_config(config, target.kv_cache_type) if config else kv.from_gguf(told.info, target.kv_cache_type)
    except kv.ShapeUnknownError as error:
        why.append(f"KV bytes: {error}")
        return None
