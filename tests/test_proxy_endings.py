"""Who leaves and who dies is passed on at once, at whatever stage, and counted for what it was."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from exporter.proxy.exchange import Generation
from exporter.proxy.observing import ObservingProxy
from tests.peers import free_port, talking
from tests.proxying import (
    END,
    GENERATE,
    STREAM,
    ask,
    chunk,
    connect,
    done,
    on_connection,
    post,
    proxied,
    token,
    until,
    values,
)

RESET = struct.pack("ii", 1, 0)


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


STAGES = {
    "before the head of the answer": (),
    "after the head": (STREAM,),
    "in the middle of a chunk": (STREAM, token()[:20]),
    "between two tokens": (STREAM, token(), token()),
}


@pytest.mark.parametrize("how", ["closes", "resets", "half-closes"])
@pytest.mark.parametrize("stage", STAGES)
async def test_a_client_that_leaves_cancels_the_server_at_once(stage: str, how: str) -> None:
    async with watched(*STAGES[stage]) as (server, proxy):
        reader, writer = await connect(proxy)
        writer.write(GENERATE)
        await server.answered.wait()
        await reader.readexactly(len(b"".join(STAGES[stage])))
        {"closes": writer.close, "resets": lambda: reset(writer), "half-closes": writer.write_eof}[how]()
        await server.left.wait()
        assert (server.how is not None) == (how == "resets")
        await until(lambda: finished(proxy) == {"client_gone": 1.0})
        writer.close()
        await until(lambda: not proxy.busy)


async def test_a_client_that_leaves_in_the_middle_of_its_upload_is_passed_on_and_is_no_request() -> None:
    async with watched(until_body=False) as (server, proxy):
        _, writer = await connect(proxy)
        writer.write(GENERATE[:-3])
        await server.answered.wait()
        writer.close()
        await server.left.wait()
        await until(lambda: not proxy.busy)
        assert finished(proxy) == {"client_gone": 1.0}
        assert values(proxy, "requests_running").get("other", 0.0) == 0.0


async def test_a_client_that_leaves_before_it_asks_is_nothing() -> None:
    async with watched() as (_, proxy):
        for data in (b"", b"POST /api/generate HTT"):
            _, writer = await connect(proxy)
            writer.write(data)
            await writer.drain()
            writer.close()
        await until(lambda: not proxy.busy)
        assert finished(proxy) == {}


async def test_a_client_that_leaves_after_the_last_line_has_its_answer() -> None:
    async with watched(STREAM, token(), token(), done(eval_count=2)) as (server, proxy):
        reader, writer = await connect(proxy)
        writer.write(GENERATE)
        await reader.readuntil(b"eval_count")
        writer.close()
        await server.left.wait()
        await until(lambda: finished(proxy) == {"stop": 1.0})


@pytest.mark.parametrize("last", [END, chunk(b'{"error":"cancelled"}\n') + END])
async def test_an_answer_that_ends_because_its_client_left_is_no_error(last: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b'x"}')
        writer.write(STREAM + token())
        await reader.read()
        writer.write(last)

    async with talking(on_connection(talk)) as url, proxied(url) as proxy:
        reader, writer = await connect(proxy)
        writer.write(GENERATE)
        await reader.readexactly(len(STREAM + token()))
        writer.close()
        await until(lambda: finished(proxy) == {"client_gone": 1.0})


async def test_a_client_that_only_ceases_to_send_has_its_answer_counted() -> None:
    answer = STREAM + token() + done(eval_count=1) + END
    async with talking(on_connection(dying((answer,), asyncio.StreamWriter.close))) as url, proxied(url) as proxy:
        reader, writer = await connect(proxy)
        writer.write(GENERATE)
        writer.write_eof()
        async with asyncio.timeout(10):
            assert await reader.read() == answer
        writer.close()
        assert finished(proxy) == {"stop": 1.0}


def dying(pieces: tuple[bytes, ...], end: Callable[[asyncio.StreamWriter], None]) -> Callable[..., Awaitable[None]]:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b'x"}')
        for piece in pieces:
            writer.write(piece)
        await writer.drain()
        end(writer)

    return talk


@pytest.mark.parametrize("how", ["closes", "resets"])
@pytest.mark.parametrize("stage", STAGES)
async def test_a_server_that_dies_ends_the_clients_stream_the_same_way(stage: str, how: str) -> None:
    end = reset if how == "resets" else asyncio.StreamWriter.close
    async with talking(on_connection(dying(STAGES[stage], end))) as url, proxied(url) as proxy:
        reader, writer = await connect(proxy)
        writer.write(GENERATE)
        got = b""
        async with asyncio.timeout(10):
            try:
                while data := await reader.read(1000):
                    got += data
                ended = "closes"
            except ConnectionResetError:
                ended = "resets"
        writer.close()
        assert ended == how
        if how == "closes":  # A reset may overtake what was sent before it, as it may without a proxy.
            assert got == b"".join(STAGES[stage])
        assert finished(proxy) == {"error": 1.0}


async def test_a_body_that_only_a_reset_ends_is_never_taken_for_complete() -> None:
    pieces = (b"HTTP/1.0 200 OK\r\n\r\n", b"half of it")
    async with talking(on_connection(dying(pieces, reset))) as url, proxied(url) as proxy:
        with pytest.raises(ConnectionResetError):
            await ask(proxy, GENERATE)


async def test_a_server_that_does_not_listen_is_a_bad_gateway_in_the_clients_own_shape(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with proxied(f"http://127.0.0.1:{await free_port()}") as proxy:
        for path, start in (("/api/generate", b'{"error": "llm-'), ("/v1/completions", b'{"error": {"message": "llm-')):
            head, _, body = (await ask(proxy, post(path, b'{"prompt":"x"}'))).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
            assert body.startswith(start)
        assert finished(proxy) == {"error": 2.0}
    (line,) = [record.message for record in caplog.records if "cannot connect" in record.message]
    assert "box" in line


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "overload"),
        (b"HTTP/1.1 429 Slow\r\nContent-Length: 0\r\n\r\n", "overload"),
        (b'HTTP/1.1 500 No\r\nContent-Length: 48\r\n\r\n{"error":"server busy, please try again.  maxi"}', "overload"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", "error"),
        (b'HTTP/1.1 404 No\r\nContent-Length: 12\r\n\r\n{"error":""}', "error"),
        (STREAM + token() + chunk(b'{"error":"unexpected EOF"}\n') + END, "error"),
        (STREAM + token() + chunk(b'{"error":"server busy"}\n') + END, "overload"),
        (STREAM + token() + END, "error"),  # a clean end without `done`
        (STREAM + chunk(b"no json\n") + END, "error"),
        (STREAM + token() + done() + END, "stop"),
        (STREAM + chunk(b'{"response":"","done":true,"done_reason":"length"}\n') + END, "length"),
    ],
)
async def test_every_end_has_its_reason(answer: bytes, reason: str) -> None:
    async with talking(on_connection(dying((answer,), asyncio.StreamWriter.close))) as url, proxied(url) as proxy:
        assert await ask(proxy, GENERATE) == answer
        assert finished(proxy) == {reason: 1.0}


async def test_what_loads_or_unloads_a_model_is_no_request() -> None:
    body = b'{"model":"m","response":"","done":true,"done_reason":"load"}'
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    async with talking(on_connection(dying((answer,), asyncio.StreamWriter.close))) as url, proxied(url) as proxy:
        assert await ask(proxy, GENERATE) == answer
        assert finished(proxy) == {}


async def test_when_measuring_fails_the_bytes_still_flow_and_the_log_has_no_word_of_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Generation, at: float, content: object) -> None:
        raise ValueError(f"this quotes {content!r}")

    answer = STREAM + token(" sekret") + done() + END
    monkeypatch.setattr(Generation, "received", broken)
    async with talking(on_connection(dying((answer,), asyncio.StreamWriter.close))) as url, proxied(url) as proxy:
        assert await ask(proxy, GENERATE) == answer
        assert sum(values(proxy, "requests_running").values()) == 0
    assert "measuring a request failed" in caplog.text
    assert "sekret" not in caplog.text


async def test_a_client_that_does_not_read_holds_only_its_own_stream() -> None:
    sent = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        head = await reader.readuntil(b'x"}')
        writer.write(STREAM)
        if b"slow" not in head:
            writer.write(token() + END)
            return
        while True:
            writer.write(chunk(b"y" * 65536))
            await writer.drain()
            sent += 65536

    async with talking(on_connection(talk)) as url, proxied(url) as proxy:
        reader, slow = await connect(proxy)
        reader._transport.pause_reading()  # type: ignore[attr-defined]  # a client that reads nothing at all
        slow.write(post("/api/slow", b'{"prompt":"x"}'))
        before = -1
        while sent != before:  # until the buffers of the system on the way are full
            before = sent
            for _ in range(20):
                assert await ask(proxy, GENERATE) == STREAM + token() + END
        assert sent < 64 * 2**20
        reset(slow)


async def test_ending_the_proxy_cuts_what_is_under_way_after_its_time() -> None:
    async with watched(STREAM, token()) as (server, proxy):
        reader, writer = await connect(proxy)
        writer.write(GENERATE)
        await server.answered.wait()
        await proxy.close(0.05)
        await server.left.wait()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


async def test_a_retired_proxy_takes_no_client_and_lets_a_stream_come_to_its_end() -> None:
    step = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b'x"}')
        writer.write(STREAM + token())
        await step.wait()
        writer.write(done() + END)
        await reader.read()

    async with talking(on_connection(talk)) as url, proxied(url) as proxy:
        reader, writer = await connect(proxy)
        writer.write(GENERATE)
        async with asyncio.timeout(10):
            await reader.readuntil(b"false}\n")
            where = proxy.where
            await proxy.retire()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", int(where.rpartition(":")[2]))
            step.set()
            assert (await reader.read()).endswith(END)
            await until(lambda: not proxy.busy)
        writer.close()
