"""Fake Ollamas: a scripted one under a fake clock, with a prober of it, and raw ones on localhost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from exporter.backends.ollama_api import build_request
from exporter.probe import stream
from exporter.probe.dialects import DIALECTS
from exporter.probe.events import Ask
from exporter.probe.hosts.ollama import OllamaHost
from exporter.probe.instruments import Instruments
from exporter.probe.result import Exchange, ProbeResult, measure
from exporter.probe.schedule import Prober
from exporter.settings import ProbeSettings, Target

FIXTURES = Path(__file__).parent / "fixtures" / "ollama"

TARGET = Target(name="box", url="http://ollama.test:11434", backend="ollama")

Piece = tuple[float, bytes]
"""A network read: seconds after the one before it, and its bytes."""


SERVER_START = datetime(2026, 11, 29, 19, 24, 41, tzinfo=UTC)
"""A scripted server's time when a `Clock` begins."""


class Clock:
    """A clock that moves only when told."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def fixture(name: str) -> bytes:
    return (FIXTURES / name).read_bytes()


def timed_fixture(name: str) -> list[tuple[float, bytes]]:
    """Return a recording's lines with their times in seconds since the start."""
    rows = [json.loads(line) for line in fixture(name).splitlines()]
    return [(row["t"], row["line"].encode() + b"\n") for row in rows]


def line(text: str = "", **more: Any) -> bytes:
    return json.dumps({"model": "m", "response": text, "done": False, **more}).encode() + b"\n"


def done(**counts: Any) -> bytes:
    """Return the last line; a count that is None is left out."""
    counts = {
        "total_duration": 700_000_000,
        "load_duration": 1_000_000,
        "prompt_eval_count": 200,
        "prompt_eval_duration": 100_000_000,
        "eval_count": 4,
        "eval_duration": 60_000_000,
        **counts,
    }
    return line(done=True, done_reason="length", **{k: v for k, v in counts.items() if v is not None})


def answer(
    clock: Clock, pieces: Sequence[Piece], connect: float = 0.0
) -> Callable[[httpx.Request], Coroutine[None, None, httpx.Response]]:
    """Return a transport handler that connects, takes the request and sends the pieces, each in its own read."""

    async def handler(request: httpx.Request) -> httpx.Response:
        trace = request.extensions.get("trace")
        if trace is not None:
            clock.now += connect
            await trace("http11.send_request_headers.started", {})
            await trace("http11.send_request_body.complete", {})

        async def body() -> AsyncIterator[bytes]:
            for delay, data in pieces:
                await asyncio.sleep(0)  # a read from the network takes a turn of the event loop
                clock.now += delay
                yield data

        return httpx.Response(200, content=body())

    return handler


async def run_probe(
    client: httpx.AsyncClient,
    target: Target,
    clock: Callable[[], float],
    deadlines: stream.Deadlines | None = None,
    connect_s: float = 5.0,
) -> Exchange:
    dialect = DIALECTS["ollama_generate"]()
    ask = Ask("m", "a prompt", 4, 300)
    request = build_request(client, target, dialect.path, dialect.body(ask), connect_s)
    return await stream.run(client, request, dialect, target, deadlines or stream.Deadlines(5, 10), clock)


async def probe_pieces(
    pieces: Sequence[Piece], *, connect: float = 0.0, warmup: bool = False, min_prompt_tokens: int = 100
) -> ProbeResult:
    """Return what a probe measures of an answer that comes in these pieces."""
    clock = Clock()
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer(clock, pieces, connect))) as client:
        exchange = await run_probe(client, TARGET, clock)
    return measure(exchange, at=0.0, warmup=warmup, min_prompt_tokens=min_prompt_tokens)


@asynccontextmanager
async def serve(
    routes: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]],
) -> AsyncIterator[Target]:
    """Serve paths on localhost and yield the target to reach them."""
    app = web.Application()
    for path, handler in routes.items():
        app.router.add_route("*", path, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        yield replace(TARGET, url=f"http://127.0.0.1:{port}")
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serve_raw(reply: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[Target]:
    """Serve one request a connection with whatever bytes `reply` writes, then close it."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((row for row in head.lower().split(b"\r\n") if row.startswith(b"content-length:")), b":0")
            await reader.readexactly(int(length.split(b":")[1]))
            await reply(writer)
        except asyncio.IncompleteReadError:
            pass  # the client went away
        finally:
            writer.close()
            await writer.wait_closed()
            ended.set()

    ended = asyncio.Event()
    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield replace(TARGET, url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await ended.wait()
    finally:
        server.close()
        await server.wait_closed()


def chunked(*parts: bytes) -> bytes:
    """Return a 200 answer with each part as a chunk of its own."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return head + body + b"0\r\n\r\n"


class ScriptedOllama:
    """An Ollama for httpx.MockTransport: /api/ps from `models`, /api/generate by `generate`."""

    def __init__(self, clock: Clock, **models: dict[str, Any]) -> None:
        self.clock = clock
        self.models = {name: {"name": name, "digest": f"d-{name}", **row} for name, row in models.items()}
        self.capabilities = ["completion"]
        self.asked: list[dict[str, Any]] = []
        self.in_flight = self.most_in_flight = 0
        self.date = SERVER_START
        self.down = False
        self.generate: Callable[[httpx.Request], Coroutine[None, None, httpx.Response]] = answer(
            clock,
            [(0.3, line("a")), (0.02, line("b")), (0.02, line("c")), (0.02, line("d")), (0.001, done())],
        )

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self._handle))

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        if self.down:
            raise httpx.ConnectError("All connection attempts failed")
        path = request.url.path
        now = self.date + timedelta(seconds=self.clock.now - 100)
        if path == "/api/ps":
            return httpx.Response(
                200, json={"models": list(self.models.values())}, headers={"Date": format_datetime(now, usegmt=True)}
            )
        if path == "/api/show":
            return httpx.Response(200, json={"capabilities": self.capabilities})
        assert path == "/api/generate"
        self.asked.append(json.loads(request.content))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self.generate(request)
        finally:
            self.in_flight -= 1


def probed(**settings: Any) -> Target:
    return replace(TARGET, probe=ProbeSettings(**settings))


SMALL = probed(kinds=("small",))


def expiring(after: float, **more: Any) -> dict[str, Any]:
    """Return a row of /api/ps of a model that expires so many seconds from the server's start."""
    return {"size": 100, "expires_at": (SERVER_START + timedelta(seconds=after)).isoformat(), **more}


class Rig:
    """A prober, its scripted Ollama and what it exports, under a fake clock."""

    def __init__(self, target: Target = SMALL, **models: dict[str, Any]) -> None:
        self.clock = Clock()
        self.ollama = ScriptedOllama(self.clock, **models)
        self.registry = CollectorRegistry()
        self.sleeps: list[float] = []
        self.starts: list[float] = []
        client = self.ollama.client()
        self.prober = Prober(
            target,
            OllamaHost(target, client, self._wall),
            Instruments(self.registry),
            stream.sender(client, self.clock),
            clock=self.clock,
            wall=self._wall,
            sleep=self._sleep,
            random=Random(1),
        )

    def _wall(self) -> float:
        return SERVER_START.timestamp() + self.clock.now - 100

    async def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.clock.now += seconds
        await asyncio.sleep(0)

    def value(self, name: str, model: str = "m", **labels: str) -> float | None:
        labels = {"target": "box", "backend": "ollama", "model": model, **labels}
        return self.registry.get_sample_value(f"vitals_{name}", labels)

    def share(self) -> float | None:
        return self.registry.get_sample_value("vitals_probe_share_ratio", {"target": "box", "backend": "ollama"})

    def models_asked(self) -> list[str]:
        return [body["model"] for body in self.ollama.asked]

    async def run_until(self, probes: int, lasting: float = 0.0) -> None:
        """Let the prober run until it has begun so many probes, each of them lasting longer by some seconds."""
        enough = asyncio.Event()
        good = self.ollama.generate

        slow = answer(
            self.clock,
            [
                (0.3, line("a")),
                (lasting, line("b")),
                (0.02, line("c")),
                (0.02, line("d")),
                (0.0, done(prompt_eval_duration=299_000_000)),
            ],
        )

        async def generate(request: httpx.Request) -> httpx.Response:
            self.starts.append(self.clock.now)
            if len(self.starts) == probes:
                enough.set()
            return await (slow if lasting else good)(request)

        self.ollama.generate = generate
        task = asyncio.create_task(self.prober.run())
        await enough.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
