"""Fake Ollamas: a scripted one under a fake clock, and raw ones on localhost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
from aiohttp import web

from exporter.backends.ollama_api import build_request
from exporter.probe import stream
from exporter.probe.dialects import DIALECTS
from exporter.probe.events import Ask
from exporter.probe.result import Exchange, ProbeResult, measure
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
