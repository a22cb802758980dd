"""HTTP's corners through the proxy: what is for one hop, what comes early or late, and what is refused."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from exporter.settings import Tls
from tests.peers import PEM, server_tls, talking
from tests.proxying import (
    END,
    GENERATE,
    STREAM,
    ask,
    check,
    chunk,
    connect,
    done,
    on_connection,
    post,
    proxied,
    recorded,
    token,
)


async def test_the_answer_to_head_has_a_length_and_no_body() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"
    head, get = b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readuntil(b"\r\n\r\n") == head
        writer.write(answer)
        assert await reader.readuntil(b"\r\n\r\n") == get
        writer.write(answer + b"x" * 500)

    async with talking(on_connection(talk)) as url, proxied(url) as proxy:
        assert await ask(proxy, head + get) == answer * 2 + b"x" * 500  # pipelined


async def test_what_is_for_one_hop_goes_no_further_and_the_rest_does() -> None:
    request = (
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, X-Hop , close\r\nX-Hop: 1\r\nx-end: 2\r\n"
        b"TE: trailers, deflate;q=0.5\r\nProxy-Connection: keep-alive\r\nUpgrade: h2c\r\n"
        b"Authorization: Bearer t\r\n\r\n"
    )
    wanted = (
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, close\r\nx-end: 2\r\nTE: trailers\r\n"
        b"Authorization: Bearer t\r\n\r\n"
    )
    got = bytearray()
    answer = b"HTTP/1.1 200 OK\r\nConnection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nContent-Length: 0\r\n\r\n"
    async with talking(on_connection(recorded([answer], got, len(wanted)))) as url, proxied(url) as proxy:
        reply = await ask(proxy, request)
    assert bytes(got) == wanted
    assert reply == b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5\r\nContent-Length: 0\r\n\r\n"


async def test_a_server_behind_tls_is_reached_if_its_certificate_is_right_and_its_client_may_leave() -> None:
    left = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readuntil(b'x"}') == GENERATE
        writer.write(STREAM + token())
        try:
            await reader.read()
        finally:
            left.set()

    async with talking(on_connection(talk), server_tls()) as url, asyncio.timeout(20):
        async with proxied(url, tls=Tls(ca_file=PEM / "ca.pem", server_name="llm.test")) as proxy:
            reader, writer = await connect(proxy)
            writer.write(GENERATE)
            assert await reader.readexactly(len(STREAM + token())) == STREAM + token()
            writer.close()
            await left.wait()
        async with proxied(url, tls=Tls(ca_file=PEM / "ca.pem")) as proxy:
            assert (await ask(proxy, GENERATE)).startswith(b"HTTP/1.1 502 ")
        async with proxied(url, tls=Tls(ca_file=PEM / "none.pem")) as proxy:
            assert (await ask(proxy, GENERATE)).startswith(b"HTTP/1.1 502 ")


async def test_a_server_under_a_path_gets_its_path() -> None:
    got = bytearray()
    wanted = GENERATE.replace(b"/api", b"/team/api")
    answer = b"HTTP/1.1 204 No Content\r\n\r\n"
    async with (
        talking(on_connection(recorded([answer], got, len(wanted)))) as url,
        proxied(f"{url}/team") as proxy,
    ):
        assert await ask(proxy, GENERATE) == answer
    assert bytes(got) == wanted


async def test_a_chunk_leaves_before_the_next_one_comes() -> None:
    step = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b'x"}')
        writer.write(STREAM)
        for _ in range(3):
            writer.write(token())
            await step.wait()
            step.clear()
        writer.write(END)

    async with talking(on_connection(talk)) as url, proxied(url) as proxy:
        reader, writer = await connect(proxy)
        writer.write(GENERATE)
        async with asyncio.timeout(10):
            await reader.readexactly(len(STREAM))
            for _ in range(3):
                assert await reader.readexactly(len(token())) == token()
                step.set()
            assert await reader.readexactly(5) == END
        writer.close()


async def test_a_piece_of_an_upload_leaves_before_the_next_one_comes() -> None:
    arrived = asyncio.Queue[bytes]()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        while piece := await reader.read(1000):
            await arrived.put(piece)

    async with talking(on_connection(talk)) as url, proxied(url) as proxy:
        _, writer = await connect(proxy)
        writer.write(b"POST /api/blobs/sha256:1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(3):
            writer.write(chunk(b"y" * 100))
            async with asyncio.timeout(10):
                assert await arrived.get() == chunk(b"y" * 100)
        writer.close()


async def test_the_server_decides_whether_to_continue() -> None:
    head = b"POST /api/generate HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readuntil(b"\r\n\r\n") == head
        writer.write(b"HTTP/1.1 102 Processing\r\nX: 1\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
        assert await reader.readexactly(4) == b"body"
        writer.write(STREAM + END)

    async with talking(on_connection(talk)) as url, proxied(url) as proxy:
        reader, writer = await connect(proxy)
        writer.write(head)
        async with asyncio.timeout(10):
            assert await reader.readuntil(b"Continue\r\n\r\n") == (
                b"HTTP/1.1 102 Processing\r\nX: 1\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
            )
            writer.write(b"body")
            assert await reader.read() == STREAM + END
        writer.close()


async def test_an_answer_that_comes_before_the_upload_is_over_arrives() -> None:
    answer = b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 3\r\n\r\nno\n"

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.write_eof()
        await reader.read(1000)  # and closes, with most of the upload unread

    async with talking(on_connection(talk)) as url, proxied(url) as proxy:
        reader, writer = await connect(proxy)
        writer.write(b"POST /api/blobs/x HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n" + b"y" * 300_000)
        async with asyncio.timeout(10):
            assert await reader.read() == answer
        writer.close()


async def test_a_websocket_passes_both_ways() -> None:
    asked = b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n"
    switched = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readuntil(b"\r\n\r\n") == asked
        writer.write(switched + b"\x81\x02hi")
        while data := await reader.read(100):
            writer.write(data[::-1])
        writer.write(b"bye")

    async with talking(on_connection(talk)) as url, proxied(url) as proxy:
        reader, writer = await connect(proxy)
        writer.write(asked + b"early")  # what follows the request is for the new protocol
        async with asyncio.timeout(10):
            assert await reader.readexactly(len(switched) + 4) == switched + b"\x81\x02hi"
            assert await reader.readexactly(5) == b"ylrae"
            writer.write(b"\x00\xff\r\n\r\n")
            assert await reader.readexactly(6) == b"\n\r\n\r\xff\x00"
            writer.write_eof()
            assert await reader.read() == b"bye"
        writer.close()


async def test_what_is_no_http_passes_too() -> None:
    answer = [b"SSH-2.0-Open", b"SSH\r\n\r\n", b"more"]
    await check([GENERATE], answer)


async def test_a_body_without_a_length_ends_with_the_connection() -> None:
    await check([GENERATE], [b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n", b"a" * 1000, b"b"])


async def test_a_chunk_that_is_none_passes_as_it_is() -> None:
    await check([GENERATE], [STREAM, token(), b"zz\r\nwhat is this\r\n", token()])


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


async def test_many_requests_use_one_connection_to_the_server_each_client_its_own() -> None:
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await reader.readuntil(b'x"}'):
            writer.write(STREAM + token() + done() + END)

    async with talking(on_connection(talk)) as url, proxied(url) as proxy:
        for client in (1, 2):
            reader, writer = await connect(proxy)
            async with asyncio.timeout(10):
                for _ in range(5):
                    writer.write(GENERATE)
                    assert (await reader.readuntil(END)).startswith(STREAM)
            writer.close()
            assert connections == client


async def test_a_request_body_of_json_in_any_form_passes() -> None:
    for body in (b"", b"{", b'"', b"[" * 2000, b'{"model":"\\', b'{"model":' + b'"' + b"m" * 5000 + b'"}', b"\xff\xfe"):
        await check([post("/api/chat", body)], [b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"])


async def test_an_upload_that_the_server_does_not_take_stays_with_its_client() -> None:
    taking = asyncio.Event()
    size = 64 * 2**20

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await taking.wait()
        await reader.readuntil(b"\r\n\r\n")
        left = size
        while left:
            left -= len(await reader.read(2**20))
        writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")

    async with talking(talk) as url, proxied(url) as proxy, asyncio.timeout(60):
        reader, writer = await connect(proxy)
        writer.write(b"POST /api/blobs/sha256:1 HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size)
        sent, piece = 0, bytes(2**20)

        async def upload() -> None:
            nonlocal sent
            while sent < size:
                writer.write(piece)
                sent += len(piece)
                await writer.drain()

        task = asyncio.create_task(upload())
        before = -1
        while sent != before:  # until the buffers of the system on the way are full
            before = sent
            for _ in range(200):
                await asyncio.sleep(0)
        assert sent < size / 2
        taking.set()
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"
        await task
        writer.close()
