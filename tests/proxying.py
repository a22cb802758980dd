"""A proxy in this process between sockets: what a client sends and gets, and what a server gets, byte by byte."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from exporter.proxy.observing import ObservingProxy
from exporter.settings import Listen, ProxySettings, Target, Tls
from tests.peers import Talk, talking

NAMES = b'{"object":"list","data":[{"id":"m"},{"id":"big:latest"}]}'

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def token(text: str = " a") -> bytes:
    return chunk(b'{"model":"m","response":"%b","done":false}\n' % text.encode())


def done(**counts: int) -> bytes:
    fields = "".join(f',"{name}":{value}' for name, value in counts.items())
    return chunk(b'{"model":"m","response":"","done":true,"done_reason":"stop"%b}\n' % fields.encode())


def post(path: str, body: bytes, *fields: str) -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1:11434", f"Content-Length: {len(body)}", *fields, "", ""]
    return "\r\n".join(head).encode() + body


GENERATE = post("/api/generate", b'{"model":"m","prompt":"x"}')

HERE = Listen("127.0.0.1", 0)

RESET = struct.pack("ii", 1, 0)


def on_connection(talk: Talk) -> Talk:
    """Answer the question for model names, and leave every other connection to `talk`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(2**16)
        if b"User-Agent: llm-vitals" in first:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(NAMES), NAMES))
            return
        again = asyncio.StreamReader()
        again.feed_data(first)
        if reader.at_eof():
            again.feed_eof()
        pump = asyncio.create_task(_pump(reader, again))
        try:
            await talk(again, writer)
        finally:
            pump.cancel()

    return answer


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamReader) -> None:
    try:
        while data := await source.read(2**16):
            sink.feed_data(data)
        sink.feed_eof()
    except ConnectionError as error:
        sink.set_exception(error)


@asynccontextmanager
async def proxied(
    url: str,
    contexts: Mapping[str, float] | None = None,
    clock: Callable[[], float] = time.monotonic,
    tls: Tls | None = None,
    listen: Listen = HERE,
    **settings: Any,
) -> AsyncIterator[ObservingProxy]:
    """Run a proxy in front of a server; it knows the server's names when it is handed out."""
    target = Target("box", url, "ollama", tls=tls or Tls(), proxy=ProxySettings(listen, **settings))
    proxy = ObservingProxy(target, lambda: contexts or {}, clock)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close(0.0)


async def connect(proxy: ObservingProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = proxy.where.rpartition(":")
    return await asyncio.open_connection(host.strip("[]"), int(port))


async def ask(proxy: ObservingProxy, *pieces: bytes) -> bytes:
    """Send pieces, one network write each as far as that is possible, and return all that comes until the end."""
    reader, writer = await connect(proxy)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


async def until(holds: Callable[[], bool]) -> None:
    """Let everything else run until something holds, ten seconds at most."""
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


def recorded(pieces: Sequence[bytes], got: bytearray, size: int) -> Callable[..., Awaitable[None]]:
    """Return a server that reads a request of so many bytes, answers in pieces and closes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.extend(await reader.readexactly(size))
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    return talk


async def check(request: Sequence[bytes], answer: Sequence[bytes]) -> None:
    """Send a request and its answer in pieces, and compare what arrives with what was sent."""
    got = bytearray()
    size = len(b"".join(request))
    async with talking(on_connection(recorded(answer, got, size))) as url, proxied(url) as proxy:
        assert await ask(proxy, *request) == b"".join(answer)
        assert bytes(got) == b"".join(request)


def values(proxy: ObservingProxy, name: str) -> dict[str, float]:
    """Return a family's samples by model and further labels; of a histogram its count and sum."""
    found = {}
    for sample in proxy.samples():
        if sample.name.startswith(f"vitals_{name}") and not sample.name.endswith("_bucket"):
            suffix = sample.name.removeprefix(f"vitals_{name}")
            if suffix in ("", "_sum", "_count"):
                found[" ".join([*(value for _, value in sample.labels), suffix]).strip()] = sample.value
    return found


def finished(proxy: ObservingProxy) -> dict[str, float]:
    """Return the finishes that were counted, of all models, by reason."""
    found: dict[str, float] = {}
    for key, value in values(proxy, "requests_finished_total").items():
        if value:
            found[key.split()[1]] = found.get(key.split()[1], 0) + value
    return found


def reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()


STAGES = {
    "before the head of the answer": (),
    "after the head": (STREAM,),
    "in the middle of a chunk": (STREAM, token()[:20]),
    "between two tokens": (STREAM, token(), token()),
}


def dying(pieces: tuple[bytes, ...], end: Callable[[asyncio.StreamWriter], None]) -> Callable[..., Awaitable[None]]:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b'x"}')
        for piece in pieces:
            writer.write(piece)
        await writer.drain()
        end(writer)

    return talk


class Watched:
    """A server that answers by `pieces` and then waits; `left` tells that its client has gone, `how` in what way."""

    def __init__(self, *pieces: bytes, until_body: bool = True) -> None:
        self.pieces = pieces
        self.until_body = until_body
        self.answered = asyncio.Event()
        self.left = asyncio.Event()
        self.how: Exception | None = None

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b'x"}' if self.until_body else b"\r\n\r\n")
        for piece in self.pieces:
            writer.write(piece)
        self.answered.set()
        try:
            await reader.read()
        except ConnectionError as error:
            self.how = error
        finally:
            self.left.set()


@asynccontextmanager
async def watched(*pieces: bytes, until_body: bool = True) -> AsyncIterator[tuple[Watched, ObservingProxy]]:
    server = Watched(*pieces, until_body=until_body)
    async with talking(on_connection(server.talk)) as url, proxied(url) as proxy:
        async with asyncio.timeout(10):
            yield server, proxy
