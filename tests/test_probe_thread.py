"""The thread for streams: its answers are those of the event loop, and a busy loop does not delay its time stamps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from exporter.backends.ollama_api import ApiError
from exporter.probe.dialects import DIALECTS
from exporter.probe.events import Ask
from exporter.probe.result import Exchange, measure
from exporter.probe.stream import Deadlines
from exporter.probe.thread import StreamThread
from exporter.settings import Target, Tls
from tests.ollama_fakes import done, line, serve


@pytest.fixture
async def streams() -> AsyncIterator[StreamThread]:
    thread = StreamThread()
    thread.start()
    yield thread
    await thread.close()
    assert not thread._thread.is_alive()


async def ask(streams: StreamThread, target: Target, total: float = 5.0) -> Exchange:
    dialect = DIALECTS["ollama_generate"]()
    return await streams.send(target, dialect, dialect.body(Ask("m", "p", 4)), Deadlines(total, total))


async def test_an_exchange_of_the_thread_is_a_whole_one(streams: StreamThread) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in (line("a"), line("b"), done(eval_count=2)):
            await response.write(part)
        return response

    async with serve({"/api/generate": handler}) as target:
        exchange = await ask(streams, target)
    result = measure(exchange, at=0.0, warmup=False, min_prompt_tokens=0)
    assert result.error == ""
    assert result.output_tokens == 2


async def test_the_time_stamps_are_not_those_of_a_busy_event_loop(streams: StreamThread) -> None:
    sent: list[float] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(line("a"))
        sent.append(time.perf_counter())
        while time.perf_counter() < sent[0] + 0.5:  # a long scrape, which holds the event loop
            pass
        await response.write(line("b") + done(eval_count=2))
        return response

    async with serve({"/api/generate": handler}) as target:
        exchange = await ask(streams, target)
    first = next(read.at for read in exchange.reads if read.pieces)
    assert first < sent[0] + 0.4


async def test_a_cancelled_wait_lets_go_of_the_connection(streams: StreamThread) -> None:
    arrived, left = asyncio.Event(), asyncio.Event()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        while await reader.read(1000):
            pass
        left.set()
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server, asyncio.timeout(10):
        target = Target("a", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        asking = asyncio.create_task(ask(streams, target, total=60.0))
        await arrived.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await left.wait()


async def test_a_certificate_that_cannot_be_read_is_an_api_error(streams: StreamThread, tmp_path: Path) -> None:
    with pytest.raises(ApiError, match=r"tls.ca_file .*missing.pem: No such file"):
        await ask(streams, Target("a", "https://127.0.0.1:1", tls=Tls(ca_file=tmp_path / "missing.pem")))
