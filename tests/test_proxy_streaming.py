"""Bytes leave as they come, in both directions, and who takes none holds up nobody else."""

from __future__ import annotations

import asyncio

import pytest

from tests.peers import talking
from tests.proxying import (
    END,
    GENERATE,
    STREAM,
    ask,
    chunk,
    connect,
    on_connection,
    post,
    proxied,
    reset,
    token,
)


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


@pytest.mark.parametrize("pieces", [2, 3])
async def test_bytes_stay_in_order_whenever_they_come_while_the_server_is_being_connected(pieces: int) -> None:
    request = post("/api/blobs/x", bytes(range(97, 97 + pieces - 1)))
    head, body = request[: 1 - pieces], request[1 - pieces :]
    got = bytearray()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.extend(await reader.readexactly(len(request)))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    async with talking(on_connection(talk)) as url, proxied(url) as proxy, asyncio.timeout(20):
        for turns in range(30):  # of the event loop, between two pieces
            got.clear()
            reader, writer = await connect(proxy)
            writer.write(head)
            for piece in body:
                for _ in range(turns):
                    await asyncio.sleep(0)
                writer.write(bytes([piece]))
            assert await reader.readuntil(b"\r\n\r\n")
            assert bytes(got) == request, turns
            writer.close()
