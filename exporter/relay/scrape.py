"""Gets one page from a target under a deadline; whatever goes wrong is an Outcome with a line for a person."""

from __future__ import annotations

import asyncio
import os
import ssl
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import aiohttp
from yarl import URL

from exporter import access, words
from exporter.config import Target
from exporter.model import Outcome
from exporter.relay.inflate import Inflate

MAX_BODY = 16 * 1024 * 1024
"""Bytes of a page after decompression; a big vLLM page has 0.1 MB."""

ACCEPT = "text/plain;version=0.0.4"
"""vLLM answers with text whatever is asked; others mangle names in OpenMetrics (prometheus_client >= 0.23)."""

_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True, slots=True)
class Fetched:
    """One GET: how it ended, the body where it ended well, and one line about it; `size` is in decompressed bytes."""

    outcome: Outcome
    status: int | None = None
    text: str = ""
    size: int = 0
    detail: str = ""


class _FetchError(Exception):
    def __init__(self, outcome: Outcome, detail: str, status: int | None = None) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.status = status


def new_session() -> aiohttp.ClientSession:
    """Return the client for all targets: one connection pool, no cookies, no environment proxies, no own timeouts."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=30),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        headers={"User-Agent": "llm-vitals", "Accept-Encoding": "gzip, deflate"},
        auto_decompress=False,  # It takes a gzip body that ends too early for a whole one.
    )


async def fetch(
    session: aiohttp.ClientSession, target: Target, tls: ssl.SSLContext | None, path: str, deadline_s: float
) -> Fetched:
    """GET a path of the target within `deadline_s` seconds, following at most one redirect.

    Never raises for the target's fault; a credential never follows a redirect to another origin.
    """

    def ended(outcome: Outcome, detail: str, status: int | None = None) -> Fetched:
        return Fetched(outcome, status, detail=words.line(access.blank(detail, target)))

    try:
        async with asyncio.timeout(deadline_s):
            status, body = await _get(session, target, tls, URL(target.url + path))
    except _FetchError as error:
        return ended(error.outcome, str(error), error.status)
    except access.AccessError as error:
        return ended(Outcome.AUTH, str(error))
    except TimeoutError:
        detail = f"{_place(URL(target.url))} gave no complete answer within {deadline_s:.3g} s; is it overloaded?"
        return ended(Outcome.TIMEOUT, detail)
    text = body.decode("utf-8", errors="replace")
    return Fetched(Outcome.OK, status, text, len(body))


async def _get(
    session: aiohttp.ClientSession, target: Target, tls: ssl.SSLContext | None, url: URL
) -> tuple[int, bytes]:
    headers: Mapping[str, str] = {**access.request_headers(target), "Accept": ACCEPT}
    server_name = target.tls.server_name
    for hop in range(2):
        try:
            async with session.get(
                url,
                headers=headers,
                allow_redirects=False,
                ssl=tls if tls is not None else True,
                server_hostname=server_name,
            ) as response:
                location = response.headers.get("Location", "")
                if response.status not in _REDIRECTS or not location:
                    _check_status(response.status, url)
                    return response.status, await _read(response, url)
                following = _following(url, location, hop, response.status)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _FetchError(*explain(error, url)) from error
        if following.origin() != url.origin():
            headers, server_name = {"Accept": ACCEPT}, None
            if target.tls.cert_file is not None:
                tls = access.ssl_context(replace(target, tls=replace(target.tls, cert_file=None, key_file=None)))
        url = following
    raise AssertionError("the loop returns or raises")


def _following(url: URL, location: str, hop: int, status: int) -> URL:
    """Return where a redirect leads to, if it may be followed."""
    if hop:
        raise _FetchError(Outcome.REDIRECT, f"{_place(url)} redirects again; give the final address as url", status)
    try:
        following = url.join(URL(location))
    except ValueError:
        following = URL()
    if following.scheme not in ("http", "https") or not following.raw_host:
        raise _FetchError(Outcome.REDIRECT, f"{_place(url)} redirects to no http address; correct url", status)
    return following


def _check_status(status: int, url: URL) -> None:
    answer = f"HTTP {status} from {_place(url)}{url.raw_path}"
    if status in (401, 403):
        detail = f"{answer}; give the target its bearer_token (without a file: VLLM_API_KEY), basic_auth or headers"
        raise _FetchError(Outcome.AUTH, detail, status)
    if status != 200:
        remedies = {404: "check metrics_path", 501: "the server was started without its metrics"}
        remedy = remedies.get(status, "see the server's log")
        raise _FetchError(Outcome.HTTP_STATUS, f"{answer}; {remedy}", status)


async def _read(response: aiohttp.ClientResponse, url: URL) -> bytes:
    pieces: list[bytes] = []
    size = 0
    try:
        inflate = Inflate(response.headers.get("Content-Encoding", ""))
        async for chunk in response.content.iter_any():
            for piece in inflate.feed(chunk):
                size += len(piece)
                if size > MAX_BODY:
                    detail = f"the page of {_place(url)} is larger than {MAX_BODY // 2**20} MiB"
                    raise _FetchError(Outcome.TOO_LARGE, f"{detail}; check url and metrics_path", response.status)
                pieces.append(piece)
    except zlib.error as error:
        detail = f"the page of {_place(url)} cannot be decompressed ({error}); is there a broken proxy in between?"
        raise _FetchError(Outcome.PROTOCOL, detail, response.status) from error
    if not inflate.whole:
        detail = f"the compressed page of {_place(url)} lacks its end; did a proxy in between cut it short?"
        raise _FetchError(Outcome.TRUNCATED, detail, response.status)
    return b"".join(pieces)


def explain(error: Exception, url: URL) -> tuple[Outcome, str]:
    """Say how a client's exception for a request to `url` is called, and one line with the remedy."""
    where = _place(url)
    match error:
        case aiohttp.ClientConnectorDNSError() | UnicodeError():  # The latter: a label is too long, or no punycode.
            return Outcome.DNS, f"the name {url.raw_host} is not known; check the spelling, or the container's network"
        case aiohttp.ClientConnectorCertificateError():
            why = _short(error)
            remedy = "tls.server_name" if "mismatch" in why else "tls.ca_file"
            return Outcome.TLS, f"the certificate of {where} is not trusted ({why}); set {remedy}"
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return Outcome.TLS, f"no TLS with {where} ({_short(error)}); does the server speak http, not https?"
        case aiohttp.ClientConnectorError():
            return Outcome.CONNECT, f"no connection to {where} ({_short(error)}); {remedy_refused(url.raw_host or '')}"
        case aiohttp.ServerDisconnectedError():
            remedy = "does it want tls.cert_file?" if url.scheme == "https" else "does it speak https, not http?"
            return Outcome.TRUNCATED, f"{where} ended the connection without an answer; {remedy}"
        case aiohttp.ClientPayloadError() | aiohttp.ClientOSError():
            detail = f"{where} ended the connection before the answer was complete; was the server restarted?"
            return Outcome.TRUNCATED, detail
        case _:
            return Outcome.PROTOCOL, f"{where} does not answer in valid HTTP; check the port"


def _place(url: URL) -> str:
    """Return host and port."""
    return f"{url.host_subcomponent}:{url.port}"


def remedy_refused(host: str) -> str:
    """Say what to do when nothing accepts a connection at a host."""
    if host in ("localhost", "127.0.0.1", "::1"):
        return "is the server running? In a container this address is the container itself: use host.docker.internal"
    if host in ("host.docker.internal", "172.17.0.1"):
        return (
            "a server that listens on 127.0.0.1 only is not seen from a container: start it with --host 0.0.0.0"
            " (vLLM) or OLLAMA_HOST=0.0.0.0 (Ollama)"
        )
    return "is the server running, and does it listen on more than 127.0.0.1?"


def _short(error: BaseException) -> str:
    """Say in a few words what the system or the TLS library said."""
    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    if isinstance(cause, ssl.SSLError):
        return str(getattr(cause, "verify_message", "") or cause.reason or cause)
    number = getattr(cause, "errno", None)
    return os.strerror(number) if number and number > 0 else str(cause).split("\n", 1)[0][:160]
