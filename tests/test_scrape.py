"""Every way in which a read of a target can end, by a real peer on localhost."""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
import zlib

import pytest

from exporter.backends.vllm import VLLM
from exporter.model import Outcome
from exporter.relay.engine import PageTargetReader
from exporter.relay.scrape import MAX_BODY, new_session
from tests.peers import BEARER, PAGE, Talk, free_port, http, of_status, place, read, request, saying, talking, target

PAGE_BYTES = PAGE.encode()


def chunked(*pieces: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body


GZIP, DEFLATE = "Content-Encoding: gzip", "Content-Encoding: deflate"

GOOD = {
    "with a length": http(PAGE_BYTES),
    "in chunks": chunked(PAGE_BYTES[:1000], PAGE_BYTES[1000:]) + b"0\r\n\r\n",
    "ended by the end of the connection": b"HTTP/1.0 200 OK\r\n\r\n" + PAGE_BYTES,
    "in gzip": http(gzip.compress(PAGE_BYTES), GZIP),
    "in gzip of two members": http(gzip.compress(PAGE_BYTES[:1000]) + gzip.compress(PAGE_BYTES[1000:]), GZIP),
    "in deflate": http(zlib.compress(PAGE_BYTES), DEFLATE),
    "in deflate without a header": http(zlib.compress(PAGE_BYTES, wbits=-zlib.MAX_WBITS), DEFLATE),
    "as an image": http(PAGE_BYTES, "Content-Type: image/png"),
    "in a charset that nobody knows": http(PAGE_BYTES, "Content-Type: text/plain; charset=nope"),
    "after 100 Continue": b"HTTP/1.1 100 Continue\r\n\r\n" + http(PAGE_BYTES),
}


@pytest.mark.parametrize("answer", GOOD.values(), ids=GOOD)
async def test_a_page_is_read(answer: bytes) -> None:
    async with talking(saying(answer)) as url:
        snapshot = await read(target(url))
    assert (snapshot.outcome, snapshot.status, snapshot.size) == (Outcome.OK, 200, len(PAGE_BYTES))
    assert snapshot.readings is not None
    running = [sample.value for sample in snapshot.readings.samples() if sample.family == "vitals_requests_running"]
    assert running == [0.0]


async def test_bytes_that_are_no_utf_8_harm_only_their_own_line() -> None:
    async with talking(saying(http(b'other{a="\xff\xfe"} 1\n' + PAGE_BYTES))) as url:
        snapshot = await read(target(url))
    assert snapshot.up
    assert snapshot.report.bad_line_count == 0


TOO_LARGE = "the page of {place} is larger than 16 MiB; check url and metrics_path"
CUT = "{place} ended the connection before the answer was complete; was the server restarted?"
NO_HTTP = "{place} does not answer in valid HTTP; check the port"
NO_END = "the compressed page of {place} lacks its end; did a proxy in between cut it short?"
NO_ZIP = "the page of {place} cannot be decompressed"
BOMB = gzip.compress(b"a 1\n" * (MAX_BODY // 2))
BAD: dict[str, tuple[bytes, Outcome, str]] = {
    "401": (
        of_status("401 No"),
        Outcome.AUTH,
        "HTTP 401 from {place}/metrics; give the target its bearer_token "
        "(without a file: VLLM_API_KEY), basic_auth or headers",
    ),
    "403": (of_status("403 No"), Outcome.AUTH, "HTTP 403 from {place}/metrics; give the target its bearer_token"),
    "404": (of_status("404 No"), Outcome.HTTP_STATUS, "HTTP 404 from {place}/metrics; check metrics_path"),
    "500": (of_status("500 tok-en"), Outcome.HTTP_STATUS, "HTTP 500 from {place}/metrics; see the server's log"),
    "501": (of_status("501 No"), Outcome.HTTP_STATUS, "was started without its metrics"),
    "204": (http(b"", status="204 No Content"), Outcome.HTTP_STATUS, "HTTP 204 from {place}/metrics"),
    "302 to nowhere": (of_status("302 Found"), Outcome.HTTP_STATUS, "HTTP 302 from {place}/metrics"),
    "302 to itself": (of_status("302 Found", "Location: /metrics"), Outcome.REDIRECT, "{place} redirects again; give"),
    "302 to ftp": (of_status("302 Found", "Location: ftp://h/x"), Outcome.REDIRECT, "{place} redirects to no http"),
    "302 to nonsense": (of_status("302 Found", "Location: http://[b"), Outcome.REDIRECT, "{place} redirects to no"),
    "302 to a dead end": (
        of_status("302 Found", "Location: http://llm.invalid/?key=tok-en"),
        Outcome.DNS,
        "the name llm.invalid is not known; check the spelling",
    ),
    "too large": (http(b"a 1\n" * (MAX_BODY // 4 + 1)), Outcome.TOO_LARGE, TOO_LARGE),
    "a gzip bomb": (http(BOMB, GZIP), Outcome.TOO_LARGE, TOO_LARGE),
    "shorter than its length": (http(PAGE_BYTES)[:-100], Outcome.TRUNCATED, CUT),
    "cut within a chunk": (chunked(PAGE_BYTES)[:-100], Outcome.TRUNCATED, CUT),
    "cut after a chunk": (chunked(PAGE_BYTES), Outcome.TRUNCATED, CUT),
    "nothing": (b"", Outcome.TRUNCATED, "{place} ended the connection without an answer; does it speak https"),
    "gzip cut short by who sent its length": (http(gzip.compress(PAGE_BYTES)[:-2000], GZIP), Outcome.TRUNCATED, NO_END),
    "gzip without its last byte": (http(gzip.compress(PAGE_BYTES)[:-1], GZIP), Outcome.TRUNCATED, NO_END),
    "gzip cut short in its second member": (
        http(gzip.compress(PAGE_BYTES) + gzip.compress(b"a 1\n")[:-9], GZIP),
        Outcome.TRUNCATED,
        NO_END,
    ),
    "deflate cut short": (http(zlib.compress(PAGE_BYTES)[:-2000], DEFLATE), Outcome.TRUNCATED, NO_END),
    "deflate cut short, without a header": (
        http(zlib.compress(PAGE_BYTES, wbits=-zlib.MAX_WBITS)[:-2000], DEFLATE),
        Outcome.TRUNCATED,
        NO_END,
    ),
    "no gzip": (http(b"a 1\n", GZIP), Outcome.PROTOCOL, NO_ZIP),
    "no deflate": (http(b"go_threads 3\n", DEFLATE), Outcome.PROTOCOL, NO_ZIP),
    "gzip and something else": (http(gzip.compress(PAGE_BYTES) + b"else", GZIP), Outcome.PROTOCOL, NO_ZIP),
    "an encoding that was not asked for": (http(b"a 1\n", "Content-Encoding: br"), Outcome.PROTOCOL, "(br was not ask"),
    "another protocol": (b"SSH-2.0-OpenSSH_9.2\r\n", Outcome.PROTOCOL, NO_HTTP),
    "binary": (b"\x00\x01\x02\r\n\r\n", Outcome.PROTOCOL, NO_HTTP),
    "no status": (b"HTTP/1.1 tok-en OK\r\n\r\n", Outcome.PROTOCOL, NO_HTTP),
    "no chunk": (chunked().rstrip(b"\r\n") + b"\r\n\r\nzz\r\n", Outcome.PROTOCOL, NO_HTTP),
    "a huge header": (http(PAGE_BYTES, "X: " + "tok-en" * 20_000), Outcome.PROTOCOL, NO_HTTP),
    "two lengths": (http(PAGE_BYTES, "Content-Length: 1"), Outcome.PROTOCOL, NO_HTTP),
    "HTML": (http(b"<!doctype html><title>tok-en</title>"), Outcome.NOT_METRICS, "HTML or XML, not metrics; check url"),
    "JSON": (http(b'{"object": "list"}'), Outcome.NOT_METRICS, "the page is JSON, not metrics; check url"),
    "JSON of great depth": (http(b"[" * 200_000), Outcome.NOT_METRICS, "the page is JSON, not metrics; check url"),
    "empty": (http(b""), Outcome.EMPTY, "the page is empty"),
    "of another program": (http(b"go_threads 3\n"), Outcome.NO_LLM_METRICS, "a metrics page without any of vllm's"),
}


@pytest.mark.parametrize(("answer", "outcome", "detail"), BAD.values(), ids=BAD)
async def test_an_answer_that_is_no_page_is_called_by_its_name(answer: bytes, outcome: Outcome, detail: str) -> None:
    async with talking(saying(answer)) as url:
        snapshot = await read(target(url, **BEARER))
    assert snapshot.outcome is outcome, snapshot.detail
    assert detail.format(place=place(url)) in snapshot.detail
    assert snapshot.readings is None


@pytest.mark.parametrize(
    ("location", "outcome"),
    [
        *(
            (location, Outcome.REDIRECT)
            for location in ("https:", "http://h:99999/", "http://:80/", "mailto:x", "//", "?")
        ),
        *(
            (location, Outcome.DNS)
            for location in ("http://a..b/", "http://xn--/", "http://a b/", f"http://{'a' * 64}/")
        ),
    ],
)
async def test_a_redirect_to_nonsense_is_an_outcome(location: str, outcome: Outcome) -> None:
    async with talking(saying(of_status("302 Found", f"Location: {location}"))) as url:
        snapshot = await read(target(url))
    assert snapshot.outcome is outcome


@pytest.mark.parametrize("location", ["/a%0Ab%1B[31m", f"/{'a' * 7000}"])
async def test_what_a_server_says_of_its_fault_is_one_line_of_bounded_length(location: str) -> None:
    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await request(reader)).startswith("GET /metrics"):
            writer.write(of_status("302 Found", f"Location: {location}"))
            await request(reader)
        writer.write(of_status("404 No"))

    async with talking(elsewhere) as url:
        snapshot = await read(target(url))
    assert snapshot.outcome is Outcome.HTTP_STATUS
    assert snapshot.detail.isprintable()
    assert len(snapshot.detail) < 600


@pytest.mark.parametrize("version", [b'"9"', b"[" * 200_000, b'{"version": "a b"}', b'{"version": 1}', b"[1]", b"{"])
async def test_a_version_that_is_none_costs_nothing(version: bytes) -> None:
    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await request(reader):
            writer.write(http(PAGE_BYTES if head.startswith("GET /metrics") else version))

    async with talking(odd) as url:
        snapshot = await read(target(url))
    assert (snapshot.outcome, snapshot.version) == (Outcome.OK, "")


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def silent_after_the_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
    await reader.read()


async def dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)  # The next drop is due: this is the peer's slowness, not a wait for something.


@pytest.mark.parametrize("talk", [silent, silent_after_the_head, dripping])
async def test_a_deadline_ends_a_read_that_does_not(talk: Talk) -> None:
    async with talking(talk) as url, asyncio.timeout(10):
        snapshot = await read(target(url), deadline_s=0.1)
    assert snapshot.outcome is Outcome.TIMEOUT
    assert snapshot.detail == f"{place(url)} gave no complete answer within 0.1 s; is it overloaded?"


@pytest.mark.parametrize("start", [b"", http(PAGE_BYTES)[:-100]], ids=["at once", "within the page"])
async def test_a_connection_that_is_reset_is_an_answer_cut_short(start: bytes) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(start)
        await writer.drain()
        # Closing a socket that lingers for zero seconds sends RST.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with talking(reset) as url:
        snapshot = await read(target(url))
    assert snapshot.outcome is Outcome.TRUNCATED
    assert f"{place(url)} ended the connection before the answer was complete" in snapshot.detail


async def test_a_name_that_nobody_knows_is_named() -> None:
    snapshot = await read(target("http://llm.invalid:8000"))
    assert snapshot.outcome is Outcome.DNS
    assert "llm.invalid" in snapshot.detail


async def test_a_port_where_nothing_listens_is_named_with_the_containers_trap() -> None:
    port = await free_port()
    snapshot = await read(target(f"http://127.0.0.1:{port}"))
    assert snapshot.outcome is Outcome.CONNECT
    assert f"no connection to 127.0.0.1:{port} (Connection refused)" in snapshot.detail
    assert "use host.docker.internal" in snapshot.detail


async def test_a_kept_connection_that_the_server_closed_in_between_costs_nothing() -> None:
    closed = asyncio.Event()
    connections = 0

    async def one_connection_one_page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for _ in range(2):  # /metrics and /version
            await request(reader)
            writer.write(http(PAGE_BYTES))
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        closed.set()

    async with talking(one_connection_one_page) as url, new_session() as session:
        reader = PageTargetReader(VLLM, target(url), session)
        assert (await reader.read(5.0)).up
        await closed.wait()
        assert (await reader.read(5.0)).up
    assert connections == 2


async def test_a_page_survives_a_version_that_is_not_answered_in_time() -> None:
    async def only_metrics(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (await request(reader)).startswith("GET /metrics"):
            writer.write(http(PAGE_BYTES))
        await reader.read()

    async with talking(only_metrics) as url, asyncio.timeout(5):
        snapshot = await read(target(url), deadline_s=0.4)
    assert (snapshot.outcome, snapshot.version) == (Outcome.OK, "")
    assert snapshot.duration < 0.4
