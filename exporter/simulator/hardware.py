"""What a step of the engine costs: a roofline of a device's memory bandwidth and compute for one model."""

from __future__ import annotations

from dataclasses import dataclass

from exporter.physics import devices


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator: bytes/s of memory bandwidth, dense FLOP/s, and bytes of memory.

    `efficiency` is the share of `flops` that a prefill reaches; `overhead` is seconds a step takes beside its
    arithmetic (scheduling, kernel launches), and `jitter` the sigma of the log-normal it is multiplied by.
    `disk_bandwidth` is bytes/s at which weights are read when a model is loaded.
    """

    name: str
    bandwidth: float
    flops: float
    memory: float
    efficiency: float = 0.45
    overhead: float = 0.0005
    jitter: float = 0.3
    disk_bandwidth: float = 2e9


@dataclass(frozen=True, slots=True)
class Model:
    """A transformer: its weights in bytes, and the shape of its attention (grouped-query where heads differ)."""

    name: str
    weight_bytes: float
    parameters: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    kv_dtype_bytes: float = 2.0

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of keys and values that one token leaves in the cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.kv_dtype_bytes


@dataclass(frozen=True, slots=True)
class Cost:
    """What one step did: FLOPs, bytes read, bytes written, and the seconds of the slower of the two."""

    flops: float
    read_bytes: float
    write_bytes: float
    seconds: float


def step_cost(device: Device, model: Model, tokens: int, context: int, attention: float) -> Cost:
    """Return the cost of one forward pass, without overhead.

    `tokens` are computed in this step; `context` is the sum, over its requests, of the tokens whose KV is
    read; `attention` is the number of (query token, key token) pairs.  A token costs 2 FLOPs a parameter,
    a pair 4 FLOPs a head dimension, head and layer (two matrix products, multiply and add each).
    """
    flops = 2 * model.parameters * tokens + 4 * model.layers * model.heads * model.head_dim * attention
    read = model.weight_bytes + model.kv_bytes_per_token * context
    compute = flops / (device.flops * device.efficiency)
    return Cost(flops, read, model.kv_bytes_per_token * tokens, max(compute, read / device.bandwidth))


def device(name: str, flops: float, memory: float, disk_bandwidth: float = 2e9) -> Device:
    """Return a device with the memory bandwidth of exporter/physics/devices.yml; ValueError if it is not there."""
    return Device(name, devices.find(name).bandwidth, flops, memory, disk_bandwidth=disk_bandwidth)


# Dense BF16/FP16 FLOP/s and memory of the vendors' data sheets.
H100 = device("NVIDIA H100 SXM", 989e12, 80e9)
A10 = device("NVIDIA A10", 125e12, 24e9)
RTX_3060 = device("NVIDIA RTX 3060", 51e12, 12e9, disk_bandwidth=1.5e9)

# Shapes of the models' published configurations; weights at 2 bytes a parameter, and as a 4-bit file.
LLAMA_3_1_8B = Model("meta-llama/Llama-3.1-8B-Instruct", 16.06e9, 8.03e9, 32, 32, 8, 128)
QWEN3_8B_Q4 = Model("qwen3:8b", 5.2e9, 8.19e9, 36, 32, 8, 128)
