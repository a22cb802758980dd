"""What two readers could read differently never reaches the server."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from tests.peers import talking
from tests.proxying import (
    END,
    GENERATE,
    STREAM,
    ask,
    connect,
    on_connection,
    proxied,
    recorded,
    until,
)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked", 400),
        ("POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2", 400),
        ("POST / HTTP/1.1\r\nContent-Length: +1", 400),
        ("POST / HTTP/1.1\r\nContent-Length:", 400),
        ("POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length:", 400),
        ("POST / HTTP/1.1\r\nContent-Length: 1,", 400),
        ("POST / HTTP/1.1\r\nContent-Length: 1, 1", 400),
        ("POST / HTTP/1.1\r\nContent-Length: 0x1", 400),
        ("POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding:", 400),
        ("POST / HTTP/1.1\r\nTransfer-Encoding:", 501),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: ,chunked", 501),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 501),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: \x0bchunked", 501),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked", 501),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked, identity", 501),
        ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked", 400),
        ("GET / HTTP/1.1\r\nHost : a", 400),
        ("GET / HTTP/1.1\r\nA: b\r\n c", 400),
        ("GET / HTTP/1.1\r\nA: b\nC: d", 400),
        ("GET / HTTP/1.1\r\nA: b\rC: d", 400),
        ("GET / HTTP/1.1\r\nA: b\0", 400),
        ("GET / HTTP/1.1\r\nA: b" + " " * 60_000 + "\0", 400),  # which a careless pattern reads for hours
        ("GET / HTTP/1.1\nHost: a\n\nGET / HTTP/1.1", 400),
        ("GET / HTTP/1.1\r\n Host: a", 400),
        ("GET / HTTP/1.1\r\n: a", 400),
        ("GET / HTTP/1.1\r\nConnection: Content-Length", 400),
        ("GET / HTTP/2.0", 400),
        ("GET /a b HTTP/1.1", 400),
        ("CONNECT a:1 HTTP/1.1", 405),
        ("GET / HTTP/1.1\r\nA: " + "b" * 70_000, 431),
    ],
    ids=lambda value: repr(value)[:80],
)  # fmt: skip
async def test_what_two_readers_could_read_differently_never_reaches_the_server(head: str, status: int) -> None:
    got = bytearray()
    async with talking(on_connection(recorded([], got, 1))) as url, proxied(url) as proxy:
        reply = await ask(proxy, f"{head}\r\n\r\n".encode())
    assert re.match(rb"HTTP/1.1 %d .*\r\n" % status, reply)
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"].startswith("llm-vitals: ")
    assert not got


@pytest.mark.parametrize(
    "body",
    [
        b"1\nx\r\n0\r\n\r\n", b"1\r\nxx0\r\n\r\n", b"1;a=\n\r\nx\r\n0\r\n\r\n", b"+1\r\nx\r\n0\r\n\r\n", b"\r\n",
        b"0x1\r\nx\r\n0\r\n\r\n", b" 1\r\nx\r\n0\r\n\r\n", b"-1\r\n", b"1_0\r\n", b"1" * 16 + b"\r\n", b"1;\rx\r\n",
        b"0\r\nA: b\rC: d\r\n\r\n", b"0\r\nA\r\n\r\n", b"0\r\nA: b\r\n c\r\n\r\n", b"0\r\nA: b\n\r\n",
        b"0\r\n" + b"A: b\r\n" * 20_000, b"1;" + b"a" * 70_000,
    ],
    ids=lambda value: repr(value)[:80],
)  # fmt: skip
async def test_a_malformed_chunk_of_a_request_ends_both_connections(body: bytes) -> None:
    came, left = asyncio.Event(), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        came.set()
        try:
            await reader.read()
        finally:
            left.set()

    async with talking(on_connection(talk)) as url, proxied(url) as proxy, asyncio.timeout(10):
        reader, writer = await connect(proxy)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        await came.wait()
        writer.write(body)
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        await left.wait()
        writer.close()


async def test_a_head_of_bare_line_feeds_is_refused_as_soon_as_it_ends() -> None:
    async with proxied("http://127.0.0.1:1") as proxy:
        assert (await ask(proxy, b"GET / HTTP/1.0\n", b"\n")).startswith(b"HTTP/1.1 400 ")


async def test_a_head_that_does_not_come_to_its_end_in_time_is_answered_and_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("exporter.proxy.link.HEAD_TIME", 0.05)
    async with proxied("http://127.0.0.1:1") as proxy, asyncio.timeout(10):
        reader, writer = await connect(proxy)
        writer.write(b"GET / HT")
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        writer.close()
        await until(lambda: not proxy.busy)


async def test_to_head_there_is_no_body_from_us_either() -> None:
    async with proxied("http://127.0.0.1:1") as proxy:
        head, _, body = (await ask(proxy, b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 502 ")
    assert body == b""


async def test_an_answer_that_is_cut_off_for_a_bad_request_cannot_be_taken_for_complete() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nhalf of it")
        await reader.read()

    async with talking(on_connection(talk)) as url, proxied(url) as proxy, asyncio.timeout(10):
        reader, writer = await connect(proxy)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reader.readuntil(b"half of it")
        writer.write(b"no chunk\r\n")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


async def test_a_head_that_came_in_two_pieces_is_answered_however_long_that_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("exporter.proxy.link.HEAD_TIME", 0.05)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b'x"}')
        await asyncio.sleep(0.2)  # longer than a head may take
        writer.write(STREAM + END)

    async with talking(on_connection(talk)) as url, proxied(url) as proxy, asyncio.timeout(10):
        reader, writer = await connect(proxy)
        writer.write(GENERATE[:20])
        for _ in range(20):
            await asyncio.sleep(0)  # so that it is read
        writer.write(GENERATE[20:])
        assert await reader.read() == STREAM + END
        writer.close()


async def test_a_client_that_is_still_sending_gets_to_read_why_it_is_refused() -> None:
    async with proxied("http://127.0.0.1:1") as proxy, asyncio.timeout(10):
        reader, writer = await connect(proxy)
        writer.write(b"POST /api/blobs/x HTTP/1.1\r\nHost: a\r\nContent-Length: 50000000\r\n\r\n")
        for _ in range(50):
            writer.write(bytes(1_000_000))
            await writer.drain()
        assert (await reader.read()).startswith(b"HTTP/1.1 502 ")
        writer.close()
