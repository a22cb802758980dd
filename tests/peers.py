"""Servers on localhost that behave as told: byte by byte, or as an engine with pages."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.test_utils import TestServer

from exporter.backends.vllm import VLLM
from exporter.config import BasicAuth, ProbeSettings, Secret, Target
from exporter.model import Snapshot
from exporter.relay.engine import PageTargetReader
from exporter.relay.scrape import new_session
from tests.conftest import FIXTURES

PEM = FIXTURES / "tls"  # peer.pem is for the name llm.test and both ends; ca.pem signed it

SECRETS = ("tok-en", "pass-word", "head-er", "dXNlcjpwYXNzLXdvcmQ=")  # the last is user:pass-word in base64
BEARER = {"bearer_token": Secret("tok-en")}
BASIC = {"basic_auth": BasicAuth("user", Secret("pass-word"))}
HEADERS = {"headers": (("X-Api-Key", Secret("head-er")),)}

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def page(name: str) -> str:
    """Return a page of a vLLM from the fixtures."""
    return (FIXTURES / "vllm" / f"{name}.prom").read_text(encoding="utf-8")


PAGE = page("0.32.0-real-after-bench")
PREEMPTED = page("0.32.0-real-after-preemptions-idle")
TWO_ENGINES = page("0.32.0-real-dp2-two-api-servers-spec-decode")


def target(url: str, **settings: Any) -> Target:
    """Return a vLLM that is not probed, but for what the settings say."""
    return dataclasses.replace(Target("a", url, "vllm", probe=ProbeSettings(enabled=False)), **settings)


def place(url: str) -> str:
    """Return host and port."""
    return url.partition("//")[2]


async def read(which: Target, deadline_s: float = 5.0) -> Snapshot:
    """Read a vLLM once, and check what holds for every reading."""
    async with new_session() as session:
        snapshot = await PageTargetReader(VLLM, which, session).read(deadline_s)
    assert "\n" not in snapshot.detail
    assert not any(secret in snapshot.detail for secret in SECRETS)
    assert bool(snapshot.detail) is not snapshot.up
    return snapshot


def server_tls(client_certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=PEM / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED if client_certificate else ssl.CERT_NONE
    context.load_cert_chain(PEM / "peer.pem", PEM / "peer.key")
    return context


@asynccontextmanager
async def talking(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Serve each connection by `talk`, which may hang, and yield the URL; the connection ends with it."""
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await talk(reader, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)
        await server.wait_closed()


async def request(reader: asyncio.StreamReader) -> str:
    """Return the head of the next request."""
    return (await reader.readuntil(b"\r\n\r\n")).decode()


def saying(answer: bytes) -> Talk:
    """Answer every request with these bytes and close."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(answer)

    return talk


def http(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """Return an answer with its length."""
    head = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(head).encode("latin-1") + body


def of_status(line: str, *headers: str) -> bytes:
    """Return an answer of a status whose body holds a secret."""
    return http(b"tok-en", *headers, status=line)


class Engine:
    """A vLLM: `status`, `text` and `version` may change, `hold` keeps the page back; `asked` counts by path."""

    def __init__(self, text: str = PAGE) -> None:
        self.text = text
        self.status = 200
        self.version = "0.32.0"
        self.hold: asyncio.Event | None = None
        self.arrived = asyncio.Event()
        self.asked: dict[str, int] = {}
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked[request.path] = self.asked.get(request.path, 0) + 1
        if request.path == "/version":
            return web.json_response({"version": self.version})
        if request.path != "/metrics":
            return web.Response(status=404, text="Not Found")
        self.arrived.set()
        if self.hold is not None:
            await self.hold.wait()
        return web.Response(status=self.status, text=self.text)


E = TypeVar("E", bound=Engine)


@asynccontextmanager
async def serving(engine: E) -> AsyncIterator[E]:
    """Serve an engine on localhost."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", engine.answer)
    server = TestServer(application, shutdown_timeout=0.0)
    await server.start_server()
    engine.url = str(server.make_url("")).rstrip("/")
    try:
        yield engine
    finally:
        if engine.hold is not None:
            engine.hold.set()
        await server.close()


async def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


ANSWER = [
    *({"response": text, "done": False} for text in "abc"),
    {
        "response": "",
        "done": True,
        "done_reason": "stop",
        "total_duration": 700_000_000,
        "load_duration": 1_000_000,
        "prompt_eval_count": 2000,
        "prompt_eval_duration": 100_000_000,
        "eval_count": 3,
        "eval_duration": 60_000_000,
    },
]
"""What an Ollama streams for a prompt; durations are in nanoseconds."""


class Ollama(Engine):
    """An Ollama with one model in memory, `m`; `hold` keeps back its answer to a prompt, three tokens.

    With `metrics` it has the page of a vLLM too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.version = "0.12.3"
        self.metrics = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked[request.path] = self.asked.get(request.path, 0) + 1
        model = {"name": "m", "digest": "d", "size": 9, "size_vram": 9, "expires_at": "2318-01-01T00:00:00Z"}
        match request.path:
            case "/metrics" if self.metrics:
                return web.Response(text=self.metrics)
            case "/api/version":
                return web.json_response({"version": self.version}, status=self.status)
            case "/api/ps" | "/api/tags":
                return web.json_response({"models": [model]}, status=self.status)
            case "/api/show":
                return web.json_response({"capabilities": ["completion"]})
            case "/api/generate":
                self.arrived.set()
                if self.hold is not None:
                    await self.hold.wait()
                return web.Response(text="".join(json.dumps({"model": "m", **line}) + "\n" for line in ANSWER))
            case _:
                return web.Response(status=404, text="404 page not found")
