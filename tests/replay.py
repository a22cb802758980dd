"""Plays a recorded answer back, read by read at its recorded times, through the real HTTP client under a fake clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import httpcore
import httpx

from exporter.probe.dialects import DIALECTS
from exporter.probe.events import Ask
from exporter.probe.result import ProbeResult, measure
from exporter.probe.stream import Deadlines, sender
from tests.conftest import FIXTURES
from tests.ollama_fakes import TARGET, Clock

STREAMS = FIXTURES / "streams"
DIALECT_OF = {DIALECTS[name]().path: name for name in DIALECTS}

Read = tuple[float, bytes]
"""A network read: seconds since the start, and its bytes."""


class _Stream(httpcore.AsyncNetworkStream):
    """A connection whose reads come at the recorded times."""

    def __init__(self, clock: Clock, sent: float, reads: Sequence[Read]) -> None:
        self._clock = clock
        self._start = clock.now
        self._sent = sent
        self._reads = list(reads)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's
        await asyncio.sleep(0)  # as a read from a socket does
        if not self._reads:
            return b""
        at, data = self._reads.pop(0)
        self._clock.now = max(self._clock.now, self._start + at)
        assert len(data) <= max_bytes
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - httpcore's
        self._clock.now = self._start + self._sent

    async def aclose(self) -> None:
        return


class _Backend(httpcore.AsyncNetworkBackend):
    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    async def connect_tcp(self, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        return self._stream


class _Transport(httpx.AsyncHTTPTransport):
    def __init__(self, stream: _Stream) -> None:
        super().__init__(verify=False)  # spares loading the CA bundle for every test
        self._pool = httpcore.AsyncConnectionPool(network_backend=_Backend(stream))


async def play(path: str, sent: float, reads: Sequence[Read], least_tokens: int = 0) -> ProbeResult:
    """Return what a probe measures of an answer that comes in these reads."""
    clock = Clock()
    dialect = DIALECTS[DIALECT_OF[path]]()
    body = dialect.body(Ask("m", "a prompt", 4))
    transport = _Transport(_Stream(clock, sent, reads))
    async with httpx.AsyncClient(transport=transport, timeout=None) as client:
        exchange = await sender(client, clock)(TARGET, dialect, body, Deadlines(600, 600))
    return measure(exchange, at=0.0, warmup=False, min_prompt_tokens=least_tokens)


async def play_file(name: str, least_tokens: int = 0) -> ProbeResult:
    """Return what a probe measures of a recording."""
    head, *rows = map(json.loads, (STREAMS / f"{name}.ndjson").read_text(encoding="utf-8").splitlines())
    reads = [(row["t"], row["bytes"].encode()) for row in rows] if "bytes" in rows[0] else _framed(head, rows)
    return await play(head["request"]["path"], head["sent"], reads, least_tokens)


def answer(*reads: Read, status: str = "200 OK") -> list[Read]:
    """Return reads that bring these pieces of a body, each a chunk, after a head that came at once."""
    head = f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    last = reads[-1][0] if reads else 0.0
    chunks = [(at, b"%x\r\n%b\r\n" % (len(data), data)) for at, data in reads if data]
    return [(0.0, head), *chunks, (last, b"0\r\n\r\n")]


def _framed(head: dict[str, Any], rows: list[dict[str, Any]]) -> list[Read]:
    """Put a recording of lines back into the chunks of an HTTP answer; lines of one time came in one read."""
    by_time: dict[float, bytes] = {}
    for row in rows:
        by_time[row["t"]] = by_time.get(row["t"], b"") + row["line"].encode() + b"\n"
    reads = answer(*by_time.items(), status=head["status"].partition(" ")[2])[1:]
    first = f"{head['status']}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    reads[0] = (reads[0][0], first + reads[0][1])
    return reads if head["proper_end"] else reads[:-1]
