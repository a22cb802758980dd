"""A server that dies, or the proxy that ends, ends the client's stream the same way; each end has its reason."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from exporter.proxy.exchange import Generation
from tests.peers import free_port, talking
from tests.proxying import (
    END,
    GENERATE,
    STAGES,
    STREAM,
    ask,
    chunk,
    connect,
    done,
    dying,
    finished,
    on_connection,
    post,
    proxied,
    reset,
    token,
    until,
    values,
    watched,
)


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


@contextmanager
def hanging() -> Iterator[str]:
    """Yield the URL of a server whose system answers no more calls: its queue is full."""
    with socket.socket() as server, ExitStack() as clients:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            client = clients.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


async def test_a_server_that_cannot_be_connected_in_time_is_a_gateway_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.proxy.observing.NAMES_FIRST", 0.0)
    monkeypatch.setattr("exporter.proxy.proxy.CONNECT_TIME", 0.05)
    with hanging() as url:
        async with proxied(url) as proxy, asyncio.timeout(10):
            assert (await ask(proxy, GENERATE)).startswith(b"HTTP/1.1 504 Gateway Timeout\r\n")
            assert finished(proxy) == {"error": 1.0}


@pytest.mark.parametrize("how", ["closes", "resets"])
async def test_a_client_that_leaves_while_the_server_is_being_connected_is_gone(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("exporter.proxy.observing.NAMES_FIRST", 0.0)
    monkeypatch.setattr("exporter.proxy.proxy.CONNECT_TIME", 0.05 if how == "closes" else 60.0)
    with hanging() as url:
        async with proxied(url) as proxy, asyncio.timeout(10):
            _, writer = await connect(proxy)
            writer.write(GENERATE)
            await until(lambda: values(proxy, "requests_running") == {"other": 1.0})
            if how == "closes":
                writer.close()
            else:
                reset(writer)
            await until(lambda: finished(proxy) == {"client_gone": 1.0} and not proxy.busy)


async def test_a_server_whose_name_is_unknown_is_a_bad_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*args: object, **kwargs: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    async with proxied("http://llm.test:1") as proxy:
        assert (await ask(proxy, GENERATE)).startswith(b"HTTP/1.1 502 Bad Gateway\r\n")


async def test_of_a_head_that_breaks_off_the_client_gets_what_there_is() -> None:
    piece = b"HTTP/1.1 200 OK\r\nConte"
    async with talking(on_connection(dying((piece,), asyncio.StreamWriter.close))) as url, proxied(url) as proxy:
        assert await ask(proxy, GENERATE) == piece
        assert finished(proxy) == {"error": 1.0}
