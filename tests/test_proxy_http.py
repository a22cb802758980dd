"""HTTP's corners through the proxy: what is for one hop, what comes early or late, and what is no HTTP."""

from __future__ import annotations

import asyncio
import re

import pytest

from exporter.settings import Listen
from tests.peers import talking
from tests.proxying import (
    END,
    GENERATE,
    STREAM,
    ask,
    check,
    connect,
    done,
    on_connection,
    post,
    proxied,
    recorded,
    token,
    until,
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


async def test_a_field_full_of_white_space_passes_as_soon_as_any_other() -> None:
    field = b"A:\t b" + b" " * 60_000 + b"c \r\n\r\n"  # which a careless pattern reads for half a minute
    await check([b"GET / HTTP/1.1\r\nHost: a\r\n" + field], [b"HTTP/1.1 204 No Content\r\n" + field])


async def test_requests_sent_at_once_by_a_client_that_sends_no_more_are_all_answered() -> None:
    get = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d"
    got: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(3):
            got.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(answer % number)
        got.append(await reader.read())

    for after in (b"", b"\r\n", b"GET /b HT"):  # the latter two are no request
        got.clear()
        async with talking(on_connection(talk)) as url, proxied(url) as proxy, asyncio.timeout(10):
            reader, writer = await connect(proxy)
            writer.write(get * 3 + after)
            writer.write_eof()
            assert await reader.read() == b"".join(answer % number for number in range(3))
            await until(lambda: len(got) == 4 and not proxy.busy)
            writer.close()
        assert got == [get] * 3 + [b""]


@pytest.mark.parametrize("half", [bytes(100), bytes(150_000), bytes(150_000) + b"\r\n\r\n"], ids=len)
async def test_what_comes_early_for_another_protocol_passes_however_much_it_is(half: bytes) -> None:
    asked = b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"
    switched = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"
    sent = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await sent.wait()
        writer.write(switched)
        writer.write(b"%d" % len(await reader.read()))

    async with talking(on_connection(talk)) as url, proxied(url) as proxy, asyncio.timeout(10):
        reader, writer = await connect(proxy)
        writer.write(asked + half)
        for _ in range(50):
            await asyncio.sleep(0)  # so that it is early
        sent.set()
        writer.write(half)
        writer.write_eof()
        assert await reader.read() == switched + b"%d" % (2 * len(half))
        writer.close()


@pytest.mark.parametrize(
    ("target", "wanted"),
    [("/api/tags?a=http://b/c", "/team/api/tags?a=http://b/c"), ("http://a:1/api/tags", "http://a:1/team/api/tags"),
     ("http://a:1", "http://a:1/team"), ("*", "*")],
)  # fmt: skip
async def test_a_target_in_any_form_is_put_under_the_servers_path(target: str, wanted: str) -> None:
    request = "OPTIONS {} HTTP/1.1\r\nHost: a:1\r\n\r\n"
    got, answer = bytearray(), b"HTTP/1.1 204 No Content\r\n\r\n"
    expected = request.format(wanted).encode()
    async with (
        talking(on_connection(recorded([answer], got, len(expected)))) as url,
        proxied(f"{url}/team") as proxy,
    ):
        assert await ask(proxy, request.format(target).encode()) == answer
    assert bytes(got) == expected


async def test_the_sixth_version_of_ip_will_do_on_both_sides() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    try:
        server = await asyncio.start_server(talk, "::1", 0)
    except OSError:
        pytest.skip("there is no IPv6 here")
    async with server:
        url = f"http://[::1]:{server.sockets[0].getsockname()[1]}"
        async with proxied(url, listen=Listen("::1", 0)) as proxy:
            assert re.fullmatch(r"\[::1\]:\d+", proxy.where)
            assert await ask(proxy, GENERATE) == b"HTTP/1.1 204 No Content\r\n\r\n"
