"""Sends one request and stamps what comes back: each network read, before anything else is done with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import httpx

from exporter.backends.ollama_api import build_request, error_text, explain, read_bounded
from exporter.model import Outcome
from exporter.probe.events import Dialect, Done, Error, Token
from exporter.probe.result import Exchange, Failure, Read, Reason, is_overload
from exporter.settings import Target

MAX_ERROR_BODY = 64 * 2**10

_REASONS: Mapping[Outcome, Reason] = {
    Outcome.DNS: Reason.CONNECT,
    Outcome.CONNECT: Reason.CONNECT,
    Outcome.TLS: Reason.TLS,
    Outcome.TIMEOUT: Reason.TIMEOUT_CONNECT,
    Outcome.PROTOCOL: Reason.PROTOCOL,
}


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds: from the connection to the first token, and for everything."""

    first_token: float
    total: float


class Sender(Protocol):
    """Something that sends a request of a dialect to a target and tells what was seen of it."""

    async def __call__(
        self, target: Target, dialect: Dialect, body: Mapping[str, object], deadlines: Deadlines
    ) -> Exchange:
        """Return the exchange; ApiError if a credential cannot be read."""
        ...


def sender(client: httpx.AsyncClient, clock: Callable[[], float] = time.perf_counter) -> Sender:
    """Return a sender that uses this client, in the event loop that it is called from."""

    async def send(target: Target, dialect: Dialect, body: Mapping[str, object], deadlines: Deadlines) -> Exchange:
        request = build_request(client, target, dialect.path, body, target.timeout)
        return await run(client, request, dialect, target, deadlines, clock)

    return send


async def run(
    client: httpx.AsyncClient,
    request: httpx.Request,
    dialect: Dialect,
    target: Target,
    deadlines: Deadlines,
    clock: Callable[[], float],
) -> Exchange:
    """Send a request and return what was seen of it; a server's fault is in the exchange, never raised.

    The request has its own limit for connecting.
    """
    start = clock()
    exchange = Exchange(started=start, sent=start)
    try:
        async with asyncio.timeout(deadlines.total), asyncio.timeout(None) as stage:
            request.extensions["trace"] = _trace(exchange, stage, deadlines, clock)
            response = await client.send(request, stream=True)
            try:
                await _receive(response, exchange, dialect, stage, clock)
            finally:
                await response.aclose()
    except TimeoutError:
        exchange.failure = exchange.failure or _timed_out(exchange, deadlines)
    except httpx.HTTPError as exc:
        outcome, text = explain(exc, target)
        reason = _REASONS[outcome] if exchange.status is None else Reason.TRUNCATED_STREAM
        exchange.failure = exchange.failure or Failure(reason, text)
    exchange.ended = clock()
    return exchange


def _trace(
    exchange: Exchange, stage: asyncio.Timeout, deadlines: Deadlines, clock: Callable[[], float]
) -> Callable[[str, Mapping[str, object]], Awaitable[None]]:
    """Return httpx's `trace` extension: it tells when the connection is ready and the last byte has been sent."""

    async def trace(event: str, info: Mapping[str, object]) -> None:
        if event == "http11.send_request_headers.started":
            exchange.ready = True
            stage.reschedule(asyncio.get_running_loop().time() + deadlines.first_token)
        elif event == "http11.send_request_body.complete":
            exchange.sent = clock()

    return trace


async def _receive(
    response: httpx.Response,
    exchange: Exchange,
    dialect: Dialect,
    stage: asyncio.Timeout,
    clock: Callable[[], float],
) -> None:
    """Read the answer to its proper end, or to the first error in it."""
    exchange.status = response.status_code
    if response.status_code != httpx.codes.OK:
        # Known before its body is read: a body that never ends must not look like a late token.
        exchange.failure = _refused(response.status_code, b"")
        exchange.failure = _refused(response.status_code, await read_bounded(response, MAX_ERROR_BODY) or b"")
        return
    async for at, data in _stamped(response, clock):
        events = tuple(dialect.feed(data))
        if exchange.reads and exchange.reads[-1].at == at:
            events = exchange.reads.pop().events + events
        exchange.reads.append(Read(at, events))
        if any(isinstance(event, Token) for event in events):
            stage.reschedule(None)
        if any(isinstance(event, Error) for event in events):
            return
    if exchange.reads:
        last = exchange.reads.pop()
        exchange.reads.append(Read(last.at, (*last.events, *dialect.finish())))


async def _stamped(response: httpx.Response, clock: Callable[[], float]) -> AsyncIterator[tuple[float, bytes]]:
    """Yield the chunks of a body, each with the time of the network read that brought it.

    One read can bring several chunks. They come out one after the other without a turn of the event loop in
    between, while a read from the network always takes one; that tells the two apart whatever the speed.
    """
    loop = asyncio.get_running_loop()
    turned = True

    def turn() -> None:
        nonlocal turned
        turned = True

    at = 0.0
    async for data in response.aiter_raw():
        now = clock()
        if turned:
            at, turned = now, False
            loop.call_soon(turn)
        yield at, data


def _timed_out(exchange: Exchange, deadlines: Deadlines) -> Failure:
    if not exchange.ready:
        return Failure(Reason.TIMEOUT_CONNECT, f"no connection within {deadlines.total:g} s; raise `probe.timeout`")
    if not any(isinstance(event, Token) for event in exchange.events()):
        waited = min(deadlines.first_token, deadlines.total)
        return Failure(
            Reason.TIMEOUT_FIRST_TOKEN,
            f"no token within {waited:g} s; the server is busy, or raise `probe.first_token_timeout`",
        )
    done = any(isinstance(event, Done) for event in exchange.events())
    what = "the answer did not end properly" if done else "the answer was not complete"
    return Failure(Reason.TIMEOUT_TOTAL, f"{what} within {deadlines.total:g} s; lower `probe.max_tokens`")


def _refused(status: int, body: bytes) -> Failure:
    text = error_text(body)
    line = f"HTTP {status} {text}".rstrip()
    if status in (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE) or is_overload(text):
        return Failure(Reason.OVERLOAD, f"{line}; the server's queue is full, or it is not ready yet")
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return Failure(Reason.AUTH, f"{line}; check `bearer_token` or `basic_auth`, and OLLAMA_HOST there")
    if status == httpx.codes.NOT_FOUND and "model" in text:
        return Failure(Reason.MODEL_NOT_FOUND, f"{line}; correct `probe.models`, or pull the model")
    if httpx.codes.is_server_error(status):
        return Failure(Reason.HTTP_5XX, f"{line}; see the server's log")
    if httpx.codes.is_client_error(status):
        remedy = "the server refuses the request" if text else "is a proxy in between?"
        if status in (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED):
            remedy = "set `probe.dialect` to one that it speaks"
        return Failure(Reason.HTTP_4XX, f"{line}; {remedy}")
    return Failure(Reason.PROTOCOL, f"{line}; a stream begins with 200")
