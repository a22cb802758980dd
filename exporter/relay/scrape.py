"""Gets one page from a target under a deadline; whatever goes wrong is an Outcome with a line for a person."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from yarl import URL

from exporter import access
from exporter.config import Target
from exporter.model import Outcome

MAX_BODY = 16 * 1024 * 1024
"""Bytes of a page after decompression; a big vLLM page has 0.1 MB."""

ACCEPT = "text/plain;version=0.0.4"
"""vLLM answers with text whatever is asked; others mangle names in OpenMetrics (prometheus_client >= 0.23)."""

_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True, slots=True)
class Fetched:
    """One GET: how it ended, the body where it ended well, and one line about it.

    `duration` is in seconds, `size` in bytes after decompression.
    """

    outcome: Outcome
    duration: float
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
        headers={"User-Agent": "llm-vitals"},
        auto_decompress=True,
    )


async def fetch(
    session: aiohttp.ClientSession, target: Target, tls: ssl.SSLContext | None, path: str, deadline_s: float
) -> Fetched:
    """GET a path of the target within `deadline_s` seconds, following at most one redirect.

    Never raises for the target's fault; a credential never follows a redirect to another origin.
    """
    start = time.perf_counter()

    def ended(outcome: Outcome, detail: str, status: int | None = None) -> Fetched:
        return Fetched(outcome, time.perf_counter() - start, status, detail=access.blank(detail, target))

    try:
        async with asyncio.timeout(deadline_s):
            status, body = await _get(session, target, tls, URL(target.url + path))
    except _FetchError as error:
        return ended(error.outcome, str(error), error.status)
    except access.AccessError as error:
        return ended(Outcome.AUTH, str(error))
    except TimeoutError:
        return ended(Outcome.TIMEOUT, f"no complete answer within {deadline_s:.3g} s; is the server overloaded?")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return ended(*explain(error, target.url))
    text = body.decode("utf-8", errors="replace")
    return Fetched(Outcome.OK, time.perf_counter() - start, status, text, len(body))


async def _get(
    session: aiohttp.ClientSession, target: Target, tls: ssl.SSLContext | None, url: URL
) -> tuple[int, bytes]:
    headers: Mapping[str, str] = {**access.request_headers(target), "Accept": ACCEPT}
    for hop in range(2):
        async with session.get(
            url,
            headers=headers,
            allow_redirects=False,
            ssl=tls if tls is not None else True,
            server_hostname=target.tls.server_name,
        ) as response:
            location = response.headers.get("Location", "")
            if response.status not in _REDIRECTS or not location:
                _check_status(response.status, url.path)
                return response.status, await _read(response)
            following = url.join(URL(location))
            if hop or following.scheme not in ("http", "https"):
                raise _FetchError(
                    Outcome.REDIRECT, "redirected more than once; give the final address as url", response.status
                )
            if following.origin() != url.origin():
                headers = {"Accept": ACCEPT}
            url = following
    raise AssertionError("the loop returns or raises")


def _check_status(status: int, path: str) -> None:
    if status in (401, 403):
        raise _FetchError(
            Outcome.AUTH, f"HTTP {status} for {path}; give the target its bearer_token, basic_auth or headers", status
        )
    if status != 200:
        remedy = {404: "; check metrics_path", 501: "; the server was started without its metrics"}.get(status, "")
        raise _FetchError(Outcome.HTTP_STATUS, f"HTTP {status} for {path}{remedy}", status)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > MAX_BODY:
            raise _FetchError(
                Outcome.TOO_LARGE, f"the page is larger than {MAX_BODY // 2**20} MiB; is it metrics?", response.status
            )
        chunks.append(chunk)
    return b"".join(chunks)


def explain(error: Exception, url: str) -> tuple[Outcome, str]:
    """Say how a client's exception is called, and one line with the remedy."""
    place = URL(url)
    where = f"{place.host}:{place.port}"
    match error:
        case aiohttp.ClientConnectorDNSError():
            return Outcome.DNS, f"the name {place.host} is not known; check the spelling, or the container's network"
        case aiohttp.ClientConnectorCertificateError():
            return Outcome.TLS, f"the certificate of {where} is not trusted ({_short(error)}); set tls.ca_file"
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return Outcome.TLS, f"no TLS with {where} ({_short(error)}); does the server speak http, not https?"
        case aiohttp.ClientConnectorError() | ConnectionError() if not isinstance(
            error, aiohttp.ServerDisconnectedError
        ):
            return Outcome.CONNECT, f"no connection to {where} ({_short(error)}); {remedy_refused(place.host or '')}"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError() | ConnectionError():
            return Outcome.TRUNCATED, f"{where} ended the connection before the answer was complete"
        case _:
            return Outcome.PROTOCOL, f"{where} does not answer in HTTP ({type(error).__name__}); check the port"


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
    return os.strerror(number) if number else str(cause).split("\n", 1)[0][:160]
