"""Ollama's HTTP API as far as it is read: one bounded request, and what /api/ps and /api/show answer."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime

import httpx

from exporter import words
from exporter.access import AccessError, request_headers, ssl_context
from exporter.model import Outcome
from exporter.relay.scrape import remedy_refused
from exporter.settings import Target

MAX_BODY = 16 * 2**20

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""JSON's escape for one of the two halves of a character; both together are good."""


class ApiError(Exception):
    """A request that did not give what was asked for; `str()` is one line with the remedy."""

    def __init__(self, outcome: Outcome, detail: str, status: int | None = None) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.status = status


@dataclass(frozen=True, slots=True)
class Answer:
    """A good answer: its JSON, its size in bytes, and the server's Unix time (whole seconds) if it told."""

    content: object
    size: int
    server_time: float | None


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory, from /api/ps: sizes in bytes, `expires_at` a Unix time in seconds.

    What the server did not tell is None or empty, except `size_vram`: Ollama leaves that out where it is 0.
    """

    name: str
    digest: str
    size: int | None
    size_vram: int
    context_length: int | None
    expires_at: float | None
    family: str = ""
    parameter_size: str = ""
    quantization: str = ""


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """What /api/show tells of a model; `generates` is False for one that only makes embeddings.

    `info` is its GGUF metadata.
    """

    max_context_length: int | None
    parameters: int | None
    generates: bool
    info: Mapping[str, object]


def open_client(target: Target) -> httpx.AsyncClient:
    """Return the HTTP client for one target, to be closed by the caller; raises AccessError.

    It keeps no idle connection, so that every probe's connection set-up is seen and none is stale, and has no
    time limits of its own: every use stands under a deadline.
    """
    # A plain http target has no context, and nothing to verify: False only spares loading the CA bundle.
    return httpx.AsyncClient(
        verify=ssl_context(target) or False,
        timeout=None,  # noqa: S113
        headers={"User-Agent": "llm-vitals"},
        trust_env=False,
        limits=httpx.Limits(max_keepalive_connections=0),
    )


def build_request(
    client: httpx.AsyncClient, target: Target, path: str, payload: object, connect_s: float
) -> httpx.Request:
    """Return a request with the target's credentials: a GET, or a POST where there is a payload.

    It gives up connecting after `connect_s` seconds; every other deadline is the caller's.  Compression is
    declined because it would hold tokens back.  Raises ApiError for unreadable credentials and impossible names.
    """
    try:
        headers = request_headers(target)
    except AccessError as exc:
        raise ApiError(Outcome.AUTH, str(exc)) from exc
    try:
        return client.build_request(
            "GET" if payload is None else "POST",
            target.url + path,
            json=payload,
            headers={**headers, "Accept-Encoding": "identity"},
            extensions={"sni_hostname": target.tls.server_name} if target.tls.server_name else None,
            # The client's own limit, not a cancellation from outside, after which it leaves the socket of an
            # unfinished TLS handshake open. TCP and TLS get it one after the other, hence half for each.
            timeout=httpx.Timeout(None, connect=connect_s / 2),
        )
    except (httpx.InvalidURL, UnicodeError):
        raise ApiError(Outcome.DNS, f"the host of {target.url} is no name that can be; correct `url`") from None


async def fetch(
    client: httpx.AsyncClient, target: Target, path: str, *, deadline: float, payload: object = None
) -> Answer:
    """Ask for `path` until `deadline` (in the event loop's time) and return the JSON, whatever its type.

    Raises ApiError, with the kind of fault as its outcome.
    """
    left = max(deadline - asyncio.get_running_loop().time(), 0.0)
    request = build_request(client, target, path, payload, connect_s=left)
    try:
        async with asyncio.timeout_at(deadline):
            response = await client.send(request, stream=True)
            try:
                body = await read_bounded(response, MAX_BODY)
            finally:
                await response.aclose()
    except TimeoutError:
        raise ApiError(
            Outcome.TIMEOUT,
            f"{target.url}{path} did not answer in time; raise `timeout` if the server is slow",
        ) from None
    except httpx.HTTPError as exc:
        raise ApiError(*explain(exc, target)) from exc
    if body is None:
        raise ApiError(Outcome.TOO_LARGE, f"{target.url}{path} sent more than {MAX_BODY >> 20} MiB; is it an Ollama?")
    if response.status_code != httpx.codes.OK:
        raise _refusal(response, body, target, path)
    try:
        content = _json(body)
    except (ValueError, RecursionError):
        if body.lstrip()[:1] == b"<":
            raise ApiError(Outcome.NOT_LLM_SERVER, f"{target.url}{path} is a web page; is it an Ollama?") from None
        raise ApiError(Outcome.PROTOCOL, f"{target.url}{path} sent no valid JSON; is a proxy in between?") from None
    return Answer(content, len(body), _date(response.headers.get("Date", "")))


def _json(body: bytes) -> object:
    """Return the JSON, in which a number that fits no 64 bits is null; raises ValueError or RecursionError."""
    content: object = json.loads(body.decode("utf-8-sig"), parse_int=_whole_number)
    if _HALF.search(body):
        json.dumps(content, ensure_ascii=False).encode()  # Half a character alone cannot be written, not even here.
    return content


def _whole_number(digits: str) -> int | None:
    number = int(digits)
    return number if -(2**63) <= number < 2**63 else None


async def read_bounded(response: httpx.Response, limit: int) -> bytes | None:
    """Return a response's body, or None if it has more than `limit` bytes."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > limit:
            return None
    return bytes(body)


def explain(exc: httpx.HTTPError, target: Target) -> tuple[Outcome, str]:
    """Return what kind of fault an httpx error is, and one line that names the remedy."""
    if isinstance(exc, httpx.TimeoutException):
        return Outcome.TIMEOUT, f"no connection to {target.url} in time; check the address and the firewall"
    causes = tuple(_causes(exc))
    if any(isinstance(cause, socket.gaierror) for cause in causes):
        return Outcome.DNS, f"the host name of {target.url} does not resolve; correct `url`"
    if error := next((cause for cause in causes if isinstance(cause, ssl.SSLError)), None):
        hint = "use http:// if the server speaks no TLS, else set `tls.ca_file` or `tls.server_name`"
        return Outcome.TLS, f"TLS with {target.url} failed ({error.reason or error}); {hint}"
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return Outcome.CONNECT, f"nothing listens on {target.url}; {remedy_refused(httpx.URL(target.url).host)}"
    if isinstance(exc, httpx.ConnectError):
        return Outcome.CONNECT, f"cannot connect to {target.url} ({exc}); check the address and the firewall"
    return (
        Outcome.PROTOCOL,
        f"{target.url} broke off or speaks no HTTP ({exc or type(exc).__name__}); see its log",
    )


def error_text(body: bytes) -> str:
    """Return the message of an error body, `{"error": "..."}` or `{"error": {"message": "..."}}`, else its start."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    error = content.get("error") if isinstance(content, dict) else None
    if isinstance(error, dict):
        error = error.get("message")
    text = error if isinstance(error, str) else body[:400].decode(errors="replace")
    return " ".join(text.split())[:200]


async def fetch_loaded(
    client: httpx.AsyncClient, target: Target, deadline: float
) -> tuple[tuple[LoadedModel, ...], Answer]:
    """Return the models in memory, from /api/ps, and the answer they were in; raises ApiError."""
    answer = await fetch(client, target, "/api/ps", deadline=deadline)
    if not (isinstance(answer.content, dict) and "models" in answer.content):
        raise ApiError(Outcome.NOT_LLM_SERVER, f"{target.url}/api/ps is not an Ollama's; correct `url` or `backend`")
    rows = answer.content["models"]
    models: dict[str, LoadedModel] = {}
    for row in rows if isinstance(rows, list) else []:
        model = _loaded_model(row)
        if model:
            models.setdefault(model.name, model)
    return tuple(models.values()), answer


async def fetch_details(client: httpx.AsyncClient, target: Target, model: str, deadline: float) -> ModelDetails:
    """Return what /api/show tells of a model; raises ApiError."""
    answer = await fetch(client, target, "/api/show", deadline=deadline, payload={"model": model})
    content = answer.content if isinstance(answer.content, dict) else {}
    info = content.get("model_info")
    info = info if isinstance(info, dict) else {}
    capabilities = content.get("capabilities")
    return ModelDetails(
        max_context_length=count(info.get(f"{info.get('general.architecture')}.context_length")),
        parameters=count(info.get("general.parameter_count")),
        generates=not isinstance(capabilities, list) or "completion" in capabilities,
        info={key: value for key, value in info.items() if not key.startswith("tokenizer.")},
    )


def count(value: object) -> int | None:
    """Return a JSON value if it is a whole number from 0 on, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _loaded_model(row: object) -> LoadedModel | None:
    if not isinstance(row, dict):
        return None
    name, details = words.name(row.get("name")) or words.name(row.get("model")), row.get("details")
    details = details if isinstance(details, dict) else {}
    if not name:
        return None
    return LoadedModel(
        name=name,
        digest=_text(row, "digest"),
        size=count(row.get("size")),
        size_vram=count(row.get("size_vram")) or 0,
        context_length=count(row.get("context_length")),
        expires_at=_timestamp(_text(row, "expires_at")),
        family=words.name(details.get("family")),
        parameter_size=words.name(details.get("parameter_size")),
        quantization=words.name(details.get("quantization_level")),
    )


def _refusal(response: httpx.Response, body: bytes, target: Target, path: str) -> ApiError:
    status, place = response.status_code, f"{target.url}{path}"
    if status == httpx.codes.FORBIDDEN and not body:
        remedy = "set OLLAMA_HOST=0.0.0.0 (and OLLAMA_ORIGINS) there, or let the proxy in front send Host: localhost"
        return ApiError(Outcome.HTTP_STATUS, f"{place}: 403, Ollama refuses this host name; {remedy}", status)
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return ApiError(Outcome.AUTH, f"{place}: {status}; check `bearer_token` or `basic_auth`", status)
    if response.is_redirect:
        return ApiError(Outcome.REDIRECT, f"{place}: {status} to another address; use that as `url`", status)
    return ApiError(Outcome.HTTP_STATUS, f"{place}: {status} {error_text(body)}; see the server's log", status)


def _causes(exc: BaseException) -> Iterator[BaseException]:
    """Yield an exception, what it came from, and the members of groups on the way."""
    yield exc
    if isinstance(exc, BaseExceptionGroup):
        for member in exc.exceptions:
            yield from _causes(member)
    if earlier := exc.__cause__ or exc.__context__:
        yield from _causes(earlier)


def _text(row: Mapping[str, object], key: str) -> str:
    value = row.get(key)
    return value if isinstance(value, str) else ""


def _timestamp(text: str) -> float | None:
    """Return an RFC 3339 time as Unix time; None for a bad one, one without zone, and Go's zero time (year 1)."""
    try:
        moment = datetime.fromisoformat(text)
        seconds = moment.timestamp() if moment.tzinfo else 0.0
    except (ValueError, OverflowError):
        return None
    return seconds if seconds > 0 else None


def _date(header: str) -> float | None:
    try:
        return parsedate_to_datetime(header).timestamp()
    except (ValueError, OverflowError):
        return None
