"""A server behind TLS."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from exporter.settings import Tls
from tests.peers import PEM, server_tls, talking
from tests.proxying import (
    END,
    GENERATE,
    STREAM,
    ask,
    connect,
    on_connection,
    post,
    proxied,
    recorded,
    token,
)


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


async def test_certificates_that_were_changed_hold_from_the_next_connection_on(tmp_path: Path) -> None:
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes((PEM / "ca.pem").read_bytes())
    answer = STREAM + token() + END
    async with (
        talking(on_connection(recorded((answer,), bytearray(), len(GENERATE))), server_tls()) as url,
        proxied(url, tls=Tls(ca_file=ca_file, server_name="llm.test")) as proxy,
    ):
        assert await ask(proxy, GENERATE) == answer
        ca_file.write_text("nobody")
        assert (await ask(proxy, GENERATE)).startswith(b"HTTP/1.1 502 ")


async def test_bytes_of_many_tls_records_arrive_as_they_were_sent_both_ways() -> None:
    body = random.Random(1).randbytes(3_000_000)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        upload = await reader.readexactly(len(body))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(upload) + upload)

    async with (
        talking(on_connection(talk), server_tls()) as url,
        proxied(url, tls=Tls(ca_file=PEM / "ca.pem", server_name="llm.test")) as proxy,
    ):
        answer = await ask(proxy, post("/api/blobs/x", body))
    assert answer.partition(b"\r\n\r\n")[2] == body
