"""The simulator, set to a device and a model, is driven into each cause; the verdict names it in time and no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from exporter.physics.causes import causes
from exporter.physics.verdict import TESTS
from exporter.simulator.clock import ManualClock
from exporter.simulator.engine import Limits
from exporter.simulator.hardware import A10, LLAMA_3_1_8B, Device, device
from exporter.simulator.ollama import OllamaServer
from exporter.simulator.ollama_models import OllamaSettings
from exporter.simulator.vllm import VllmServer, VllmSettings
from tests.driven import Driven, driven

IN_TIME = 120.0
"""Seconds within which the verdict must name the cause."""

GPU = replace(A10, jitter=0.0)
L4 = replace(device("NVIDIA L4", 121e12, 24e9), jitter=0.0)
CPU = replace(device("CPU, dual channel DDR5-5600", 20e12, 64e9), jitter=0.0)
SLOW_STEPS = replace(GPU, overhead=0.05)
SLOW_COMPUTE = replace(GPU, flops=4e12)


def vllm(on: Device = GPU, blocks: int = 4096, length: int = 16384, **limits: int) -> VllmServer:
    settings = VllmSettings(
        device=on, model=LLAMA_3_1_8B, max_model_len=length, num_gpu_blocks=blocks, block_size=16,
        limits=Limits(**limits),
    )  # fmt: skip
    return VllmServer(settings, ManualClock())


def ollama(on: Device = GPU) -> OllamaServer:
    return OllamaServer(OllamaSettings(device=on, keep_alive=-1.0), ManualClock())


async def idle(box: Driven) -> None:
    """Send nothing; only probes come."""


async def healthy(box: Driven) -> None:
    box.users(3, prompt=300, output=100, pause=5.0)


async def queueing(box: Driven) -> None:
    box.users(8, prompt=200, output=100)


async def kv_exhausted(box: Driven) -> None:
    box.users(12, prompt=400, output=400)


async def preempting(box: Driven) -> None:
    box.users(4, prompt=100, output=800, pause=5.0)


async def prefill_bound(box: Driven) -> None:
    box.users(1, prompt=6000, output=20, pause=1.0)


async def prefill_interference(box: Driven) -> None:
    box.users(4, prompt=50, output=2000)
    await box.run(IN_TIME)
    box.users(1, prompt=1500, output=2, pause=0.5)


async def batch_stretched(box: Driven) -> None:
    box.users(2, prompt=50, output=1000)
    await box.run(IN_TIME)
    box.users(200, prompt=50, output=1500)


async def context_grown(box: Driven) -> None:
    prompts = [[index * 100_000 + number for number in range(22_000)] for index in range(4)]
    for prompt in prompts:
        await box.clock.run(box.server.send(prompt, 1, 1))
    box.users(4, prompt=50, output=500)
    await box.run(IN_TIME)
    box.leave()

    async def conversation(prompt: list[int]) -> None:
        while True:
            await box.server.send(prompt, 500, 500)

    for prompt in prompts:
        box.start(conversation(prompt))


async def stuck(box: Driven) -> None:
    assert isinstance(box.server, VllmServer)
    box.users(2, prompt=50, output=2000)
    await box.run(15.0)
    box.server.driver.engine.step = lambda now: None  # type: ignore[method-assign]  # the engine that hangs


async def down(box: Driven) -> None:
    await box.clock.run(box.server.kill())


async def load(box: Driven) -> None:
    """Let somebody ask for the model, which loads it."""
    await box.clock.run(box.server.send([1, 2, 3], 1, 1))


async def cold_load(box: Driven) -> None:
    await box.run(30.0)
    await load(box)


async def alone(box: Driven) -> None:
    """Send nothing to an Ollama that has its model in memory."""
    await load(box)


async def slots_taken(box: Driven) -> None:
    await load(box)
    box.users(4, prompt=100, output=200)


SCENES: list[tuple[str, Callable[[], VllmServer | OllamaServer], Callable[[Driven], Awaitable[None]]]] = [
    ("idle", vllm, idle),
    ("healthy", vllm, healthy),
    ("queueing", lambda: vllm(max_num_seqs=2), queueing),
    ("kv_exhausted", lambda: vllm(blocks=160, length=2048), kv_exhausted),
    ("preempting", lambda: vllm(blocks=190, length=2048), preempting),
    ("prefill_bound", vllm, prefill_bound),
    ("prefill_interference", vllm, prefill_interference),
    ("batch_stretched", lambda: vllm(L4, blocks=40_000), batch_stretched),
    ("context_grown", lambda: vllm(L4, blocks=8_000, length=32_768), context_grown),
    ("stuck", vllm, stuck),
    ("unknown", vllm, down),
    ("decode_below_ceiling", lambda: vllm(SLOW_STEPS), idle),
    ("decode_at_ceiling", lambda: ollama(CPU), alone),
    ("decode_below_ceiling", lambda: ollama(SLOW_STEPS), alone),
    ("cold_load", ollama, cold_load),
    ("healthy", ollama, alone),
    ("idle", ollama, idle),
    ("queueing", ollama, slots_taken),
    ("prefill_bound", lambda: ollama(SLOW_COMPUTE), alone),
]


@pytest.mark.parametrize(
    ("cause", "server", "drive"),
    SCENES,
    ids=[f"{cause}-{drive.__name__}-{n}" for n, (cause, _, drive) in enumerate(SCENES)],
)
async def test_the_verdict_names_the_cause_within_two_minutes_and_no_other(
    cause: str, server: Callable[[], VllmServer | OllamaServer], drive: Callable[[Driven], Awaitable[None]]
) -> None:
    made = server()
    bandwidth = made.settings.device.bandwidth / 1e9
    weights = LLAMA_3_1_8B.weight_bytes if isinstance(made, VllmServer) else None  # an Ollama says it itself
    async with driven(made, memory_bandwidth_gb_s=bandwidth, weight_bytes=weights) as box:
        await drive(box)
        before = box.seen[-1:] or ["unknown"]
        seen = await box.run(IN_TIME)
        assert seen[-1] == cause
        assert set(seen) <= {cause, "unknown", "healthy", *before}
        assert seen == sorted(seen, key=[*before, "unknown", "healthy", cause].index)
        assert box.diagnosis.evidence


def test_every_cause_of_the_data_file_has_a_scene_and_a_test() -> None:
    assert [*TESTS, "unknown"] == list(causes())
    assert {cause for cause, _, _ in SCENES} == set(causes())
