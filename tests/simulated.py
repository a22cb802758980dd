"""Simulated servers on a clock that tests move, and what tests ask them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from exporter.simulator.clock import ManualClock
from exporter.simulator.engine import Limits
from exporter.simulator.hardware import A10, LLAMA_3_1_8B, RTX_3060, Device, Model
from exporter.simulator.lengths import LogNormal
from exporter.simulator.ollama import OllamaServer
from exporter.simulator.ollama_models import OllamaModel, OllamaSettings
from exporter.simulator.server import Server
from exporter.simulator.vllm import VllmServer, VllmSettings

S = TypeVar("S", bound=Server)

GPU: Device = replace(A10, jitter=0.0)
TINY = replace(LLAMA_3_1_8B, name="tiny")
VLLM = VllmSettings(
    device=GPU, model=TINY, max_model_len=2048, num_gpu_blocks=4096, block_size=128, limits=Limits(), startup=5.0
)

_SMALL = Model("gemma3:270m", 253_113_180, 268_098_176, 18, 4, 1, 256)
GEMMA = OllamaModel(_SMALL, "gemma3", "268.10M", "Q4_K_M", 32768)
CHAT = replace(GEMMA, model=replace(_SMALL, name="gemma3-chat:latest"))
THINK = replace(GEMMA, model=replace(_SMALL, name="gemma3-think:latest"), thinking=True)
# Answers never end by themselves: each is as long as was asked for.
OLLAMA = OllamaSettings(
    device=replace(RTX_3060, jitter=0.0), models=(GEMMA, CHAT, THINK), answers=LogNormal(100_000, 0.0, 100_000)
)


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole HTTP answer; `reads` are the body's chunks as the server wrote them."""

    status: int
    headers: dict[str, str]
    reads: tuple[bytes, ...]
    broken: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.reads)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        """The objects of an NDJSON stream."""
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def events(self) -> list[Any]:
        """The objects of an event stream; its end mark is the string [DONE]."""
        found = [line.removeprefix(b"data: ") for line in self.body.splitlines() if line]
        return [data.decode() if data == b"[DONE]" else json.loads(data) for data in found]


class Client:
    """Asks one server, moving the clock until it has answered."""

    def __init__(self, session: aiohttp.ClientSession, server: Server, clock: ManualClock) -> None:
        self.session = session
        self.server = server
        self.clock = clock

    async def get(self, path: str, **headers: str) -> Reply:
        return await self.clock.run(self.fetch("GET", path, None, headers))

    async def post(self, path: str, body: object, **headers: str) -> Reply:
        return await self.clock.run(self.fetch("POST", path, body, headers))

    async def fetch(self, method: str, path: str, body: object, headers: dict[str, str] | None = None) -> Reply:
        """Ask without moving the clock, which somebody else does."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        url = self.server.url + path
        async with self.session.request(method, url, data=data, headers=headers) as response:
            reads, broken = [], False
            try:
                async for chunk, _ in response.content.iter_chunks():
                    reads.append(chunk)
            except aiohttp.ClientError:
                broken = True
            own = {name.lower(): value for name, value in response.headers.items()}
            return Reply(response.status, own, tuple(reads), broken)

    async def metrics(self) -> dict[str, float]:
        """The page's samples by name and labels, without those that all share."""
        return samples((await self.get("/metrics")).body.decode())


@asynccontextmanager
async def serving(server: S) -> AsyncIterator[tuple[S, Client]]:
    """Start a server whose clock is a ManualClock, and stop it."""
    assert isinstance(server.clock, ManualClock)
    await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield server, Client(session, server, server.clock)
    finally:
        await server.stop()


def vllm(settings: VllmSettings = VLLM) -> VllmServer:
    return VllmServer(settings, ManualClock())


def ollama(settings: OllamaSettings = OLLAMA) -> OllamaServer:
    return OllamaServer(settings, ManualClock())


def samples(page: str) -> dict[str, float]:
    """Return values by name{label=value,...} without model_name and engine."""
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = ",".join(
                f"{name}={value}" for name, value in sample.labels.items() if name not in ("model_name", "engine")
            )
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def shape(value: object) -> object:
    """Return what a JSON value is made of: its keys in their order, and the types of what they hold."""
    if isinstance(value, dict):
        return [(name, shape(inner)) for name, inner in value.items()]
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
