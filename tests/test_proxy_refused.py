"""What two readers could read differently never reaches the server."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from tests.peers import talking
from tests.proxying import (
    ask,
    connect,
    on_connection,
    proxied,
    recorded,
)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked", 400),
        ("POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2", 400),
        ("POST / HTTP/1.1\r\nContent-Length: +1", 400),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked", 501),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked, identity", 501),
        ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked", 400),
        ("GET / HTTP/1.1\r\nHost : a", 400),
        ("GET / HTTP/1.1\r\nA: b\r\n c", 400),
        ("GET / HTTP/1.1\r\nA: b\nC: d", 400),
        ("GET / HTTP/1.1\r\nConnection: Content-Length", 400),
        ("GET / HTTP/2.0", 400),
        ("GET /a b HTTP/1.1", 400),
        ("CONNECT a:1 HTTP/1.1", 405),
        ("GET / HTTP/1.1\r\nA: " + "b" * 70_000, 431),
    ],
)  # fmt: skip
async def test_what_two_readers_could_read_differently_never_reaches_the_server(head: str, status: int) -> None:
    got = bytearray()
    async with talking(on_connection(recorded([], got, 1))) as url, proxied(url) as proxy:
        reply = await ask(proxy, f"{head}\r\n\r\n".encode())
    assert re.match(rb"HTTP/1.1 %d .*\r\n" % status, reply)
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"].startswith("llm-vitals: ")
    assert not got


async def test_a_malformed_chunk_of_a_request_ends_both_connections() -> None:
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
        writer.write(b"1\nx\r\n0\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        await left.wait()
        writer.close()
