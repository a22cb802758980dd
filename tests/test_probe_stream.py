"""One request against real servers on localhost: how each kind of failure is told, and what a network read is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from aiohttp import web

from exporter.backends.ollama_api import open_client
from exporter.probe.result import ProbeResult, Reason, measure
from exporter.probe.stream import Deadlines
from exporter.settings import Target
from tests.ollama_fakes import TARGET, chunked, done, fixture, line, run_probe, serve, serve_raw

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SHORT = Deadlines(first_token=0.05, total=5)


async def probe(target: Target, deadlines: Deadlines | None = None, connect_s: float = 5.0) -> ProbeResult:
    async with open_client(target) as client:
        exchange = await run_probe(client, target, time.perf_counter, deadlines, connect_s)
    return measure(exchange, at=0.0, warmup=False, min_prompt_tokens=100)


def reply(status: int, body: str) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status, text=body, content_type="application/json")

    return handler


def streaming(*parts: bytes, then: Callable[[web.Request], Awaitable[None]] | None = None) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in parts:
            await response.write(part)
        if then is not None:
            await then(request)
        return response

    return handler


async def hang(request: web.Request) -> None:
    await asyncio.Event().wait()


async def cut(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.close()


async def test_a_whole_answer_is_good() -> None:
    async with serve({"/api/generate": streaming(line("a"), line("b"), line("c"), line("d"), done())}) as target:
        result = await probe(target)
    assert result.ok
    assert result.error == ""
    assert result.ttft is not None
    assert result.ttft > 0
    assert result.phases["connect"] > 0


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (404, '{"error":"model \'nope\' not found"}', Reason.MODEL_NOT_FOUND),
        (404, "404 page not found", Reason.HTTP_4XX),
        (400, '{"error":"\\"m\\" does not support generate"}', Reason.HTTP_4XX),
        (401, "", Reason.AUTH),
        (403, "", Reason.AUTH),
        (
            503,
            '{"error":"server busy, please try again.  maximum pending requests exceeded"}',
            Reason.OVERLOAD,
        ),
        (
            500,
            '{"error":"server busy, please try again.  maximum pending requests exceeded"}',
            Reason.OVERLOAD,
        ),
        (429, '{"error":"Model is overloaded","error_type":"overloaded"}', Reason.OVERLOAD),
        (500, '{"error":"llama runner process has terminated"}', Reason.HTTP_5XX),
        (302, "", Reason.PROTOCOL),
    ],
)
async def test_a_refusal_is_told_by_its_status_and_words(status: int, body: str, reason: Reason) -> None:
    async with serve({"/api/generate": reply(status, body)}) as target:
        result = await probe(target)
    assert result.reason is reason
    assert str(status) in result.error
    assert "\n" not in result.error
    assert result.ttft is None


@pytest.mark.parametrize(
    ("status", "body", "remedy"),
    [
        (404, "404 page not found", "set `probe.dialect`"),
        (405, '{"detail":"Method Not Allowed"}', "set `probe.dialect`"),
        (400, '{"error":"prompt too long"}', "refuses the request"),
        (413, "", "is a proxy in between?"),
    ],
)
async def test_a_refusal_says_what_to_do(status: int, body: str, remedy: str) -> None:
    async with serve({"/api/generate": reply(status, body)}) as target:
        result = await probe(target)
    assert remedy in result.error


async def test_nobody_listening_is_connect_and_says_what_to_do() -> None:
    async with serve({}) as target:
        pass
    result = await probe(target)
    assert result.reason is Reason.CONNECT
    assert "nothing listens on" in result.error
    assert "use host.docker.internal" in result.error


async def test_tls_to_a_plain_server_is_tls() -> None:
    async with serve({"/api/generate": reply(200, "")}) as target:
        result = await probe(replace(target, url=target.url.replace("http:", "https:")))
    assert result.reason is Reason.TLS
    assert "http://" in result.error


async def test_no_connection_in_time_is_timeout_connect() -> None:
    async def nothing(writer: asyncio.StreamWriter) -> None:
        return

    async with serve_raw(nothing) as target:
        # The server waits for the end of the headers and so never answers the TLS handshake.
        result = await probe(replace(target, url=target.url.replace("http:", "https:")), connect_s=0.1)
    assert result.reason is Reason.TIMEOUT_CONNECT
    assert "no connection" in result.error


async def test_a_hang_before_the_first_token_tells_how_long_it_waited() -> None:
    async with serve({"/api/generate": streaming(then=hang)}) as target:
        result = await probe(target, SHORT)
    assert result.reason is Reason.TIMEOUT_FIRST_TOKEN
    assert result.waited is not None
    assert 0.04 < result.waited <= result.duration


async def test_a_hang_before_any_header_is_a_first_token_timeout_too() -> None:
    async def silent(request: web.Request) -> web.Response:
        await hang(request)
        return web.Response()

    async with serve({"/api/generate": silent}) as target:
        assert (await probe(target, SHORT)).reason is Reason.TIMEOUT_FIRST_TOKEN


async def test_a_hang_after_the_first_token_is_timeout_total() -> None:
    async with serve({"/api/generate": streaming(line("a"), then=hang)}) as target:
        result = await probe(target, Deadlines(first_token=5, total=0.2))
    assert result.reason is Reason.TIMEOUT_TOTAL
    assert result.waited is None


async def test_the_first_token_deadline_ends_with_the_first_token() -> None:
    released = asyncio.Event()

    async def late(request: web.Request) -> None:
        await asyncio.wait_for(released.wait(), 5)

    async with serve({"/api/generate": streaming(line("a"), then=late)}) as target:
        task = asyncio.create_task(probe(target, Deadlines(first_token=0.05, total=5)))
        await asyncio.sleep(0.1)  # longer than the deadline
        released.set()
        assert (await task).reason is Reason.TRUNCATED_STREAM


async def test_an_error_body_that_never_ends_is_the_error_not_a_late_token() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=500)
        await response.prepare(request)
        await hang(request)
        return response

    async with serve({"/api/generate": handler}) as target:
        result = await probe(target, SHORT)
    assert result.reason is Reason.HTTP_5XX
    assert result.waited is None


async def test_a_killed_runner_is_an_error_in_the_stream() -> None:
    async with serve({"/api/generate": streaming(fixture("child_sigkill_midstream.ndjson"))}) as target:
        result = await probe(target)
    assert result.reason is Reason.ERROR_IN_STREAM
    assert "unexpected EOF" in result.error


async def test_a_stopped_servers_cut_answer_is_a_truncated_stream() -> None:
    async with serve({"/api/generate": streaming(fixture("server_sigterm_midstream.ndjson"), then=cut)}) as target:
        assert (await probe(target)).reason is Reason.TRUNCATED_STREAM


async def test_a_clean_end_without_done_is_a_truncated_stream() -> None:
    async with serve({"/api/generate": streaming(line("a"), line("a"))}) as target:
        assert (await probe(target)).reason is Reason.TRUNCATED_STREAM


async def test_done_without_a_proper_end_is_a_truncated_stream() -> None:
    async with serve({"/api/generate": streaming(line("a"), done(), then=cut)}) as target:
        assert (await probe(target)).reason is Reason.TRUNCATED_STREAM


async def test_a_server_that_hangs_up_or_speaks_no_http_is_protocol() -> None:
    async def nothing(writer: asyncio.StreamWriter) -> None:
        return

    async def smtp(writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")

    for reply_ in (nothing, smtp):
        async with serve_raw(reply_) as target:
            assert (await probe(target)).reason is Reason.PROTOCOL


async def test_many_chunks_in_one_packet_are_one_network_read_and_so_coalesced() -> None:
    async def all_at_once(writer: asyncio.StreamWriter) -> None:
        writer.write(chunked(*(line("x") for _ in range(60)), done(eval_count=60)))

    async with serve_raw(all_at_once) as target:
        result = await probe(target)
    assert result.ok
    assert result.coalesced
    assert result.gaps == ()


async def test_chunks_in_packets_of_their_own_are_reads_of_their_own() -> None:
    async def one_by_one(writer: asyncio.StreamWriter) -> None:
        whole = chunked(*(line("x") for _ in range(8)), done(eval_count=8))
        parts = [part + b"\n\r\n" for part in whole.split(b"\n\r\n")]
        parts[-1] = parts[-1].removesuffix(b"\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.002)  # the packets must not be joined on the way

    async with serve_raw(one_by_one) as target:
        result = await probe(target)
    assert result.ok
    assert not result.coalesced
    assert len(result.gaps) == 7


async def test_the_probe_sends_the_targets_user_agent_and_declines_compression() -> None:
    seen: dict[str, str] = {}

    async def handler(request: web.Request) -> web.Response:
        seen.update(request.headers)
        return web.Response(status=400)

    async with serve({"/api/generate": handler}) as target:
        await probe(target)
    assert seen["User-Agent"] == "llm-vitals"
    assert TARGET.bearer_token is None
    assert "Authorization" not in seen
