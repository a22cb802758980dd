"""A server that streams like an Ollama and its clients, as lean as possible: what `bench proxy` puts around a proxy."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, field

from exporter.proxy.http1 import CHUNKED, Body

STAMP = re.compile(rb'"at":(\d+)')
MODELS = b'{"object":"list","data":[{"id":"m"}],"models":[]}'
REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b'{"model":"m","response":"","done":true,"done_reason":"stop","prompt_eval_count":9,"eval_count":%d}\n'


SETTLE = 2.0
"""Seconds in which all buffers on the way to clients that read nothing fill up."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Server(asyncio.Protocol):
    """Streams as many lines as asked for, each with the time (CLOCK_MONOTONIC, ns) at which it was written.

    `gap` is in seconds; without one a line follows as soon as the one before is taken.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.data = b""
        self.full = False
        self.left = self.made = 0
        self.gap = 0.0
        self.pad = b""
        self.due = 0.0

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, separator, body = self.data.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if not separator or len(body) < (int(length[1]) if length else 0):
            return
        self.data = b""
        if not head.startswith(b"POST"):
            body = b'{"version":"0.0.0"}' if b"version" in head else MODELS
            self.transport.write(REPLY % (len(body), body))
            return
        asked = json.loads(body)
        self.left, self.made, self.gap = asked["lines"], 0, asked["gap"]
        self.pad = b"x" * asked.get("pad", 0)
        self.due = asyncio.get_running_loop().time()
        self.step(first=True)

    def step(self, first: bool = False) -> None:
        if self.transport.is_closing() or (self.full and not first):
            return
        line = (
            b'{"model":"m","created_at":"2026-11-29T19:24:51.072418556Z","at":%d,"response":" word%b","done":false}\n'
        )
        out = chunk(line % (time.monotonic_ns(), self.pad))
        self.left -= 1
        self.made += 1
        if self.left <= 0:
            self.transport.write((HEAD if first else b"") + out + chunk(DONE % self.made) + b"0\r\n\r\n")
            return
        self.transport.write(HEAD + out if first else out)
        loop = asyncio.get_running_loop()
        if self.gap:
            self.due += self.gap
            loop.call_at(self.due, self.step)
        else:
            loop.call_soon(self.step)

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self.step()


@dataclass
class Seen:
    """What clients saw, in ns: from request to first line, and from each line's writing to its arrival."""

    first: list[int] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)
    lines: int = 0


class Client(asyncio.Protocol):
    """Sends requests one after the other on one connection; `stall` makes it read nothing."""

    def __init__(self, seen: Seen, body: bytes, times: int, stall: bool = False) -> None:
        self.seen = seen
        self.request = b"POST /api/generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%b" % (
            len(body),
            body,
        )
        self.times = times
        self.stall = stall
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.head = self.cut = b""
        self.body: Body | None = None
        self.sent = 0
        self.waiting = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.send()
        if self.stall:
            transport.pause_reading()

    def send(self) -> None:
        self.times -= 1
        self.waiting = True
        self.sent = time.monotonic_ns()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        if self.body is None:
            self.head, separator, data = (self.head + data).partition(b"\r\n\r\n")
            if not separator:
                return
            self.head, self.body = b"", Body(CHUNKED)
        # The chunks are taken off first: a forwarder may cut them anywhere, in a time stamp too.
        content = [self.cut]
        self.body.feed(data, 0, content)
        whole, feed, self.cut = b"".join(content).rpartition(b"\n")
        stamps = STAMP.findall(whole + feed)
        self.seen.lines += len(stamps)
        if stamps and self.waiting:
            self.waiting = False
            self.seen.first.append(now - self.sent)
        self.seen.delays += [now - int(stamp) for stamp in stamps]
        if self.body.done:
            self.body = None
            if self.times:
                self.send()
            else:
                self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


async def load(port: int, streams: int, lines: int, gap: float, times: int = 1, stalled: int = 0) -> Seen:
    """Run so many streams at once, besides some whose client reads nothing."""
    seen, loop = Seen(), asyncio.get_running_loop()
    body = json.dumps({"model": "m", "prompt": "x" * 200, "lines": lines, "gap": gap}).encode()
    slow = json.dumps({"model": "m", "prompt": "x", "lines": 10**9, "gap": 0, "pad": 2**16}).encode()
    stuck = [
        (await loop.create_connection(lambda: Client(Seen(), slow, 1, stall=True), "127.0.0.1", port))[0]
        for _ in range(stalled)
    ]
    if stuck:
        await asyncio.sleep(SETTLE)
    clients = []
    for _ in range(streams):
        _, client = await loop.create_connection(lambda: Client(seen, body, times), "127.0.0.1", port)
        clients.append(client)
        if gap:
            await asyncio.sleep(gap / streams)  # Not all at the same instant.
    async with asyncio.timeout(300):
        await asyncio.gather(*(client.ended for client in clients))
    for transport in stuck:
        transport.abort()
    return seen
