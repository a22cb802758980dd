"""The HTTP side: /metrics, health, readiness, reload, the landing page and the debug pages."""

from __future__ import annotations

import asyncio
import gzip
import math
import re
import zlib
from collections.abc import Awaitable, Callable, Iterator

from aiohttp import web
from prometheus_client.exposition import generate_latest as text_of
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_of

from exporter import pages
from exporter.app import App
from exporter.catalogue import BY_NAME
from exporter.physics.explain import explanation
from exporter.relay.render import OPENMETRICS, TEXT, exposition

DEFAULT_TIMEOUT = 10.0
"""Seconds for a scrape whose scraper names none; Prometheus's own default."""

MARGIN = 0.5
"""Seconds of the scraper's timeout kept for writing the answer; at most a fifth of it."""

FRESH = 2.0
"""Seconds during which the pages for people show a reading without asking again."""

DEFAULT_CONTEXT = 8000
"""Tokens of the contexts that are counted for /-/explain."""

APP = web.AppKey("app", App)

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_web(app: App, enable_lifecycle: bool) -> web.Application:
    """Return the web application; `enable_lifecycle` allows POST /-/reload."""
    server = web.Application(middlewares=[_harden])
    server[APP] = app
    server.router.add_get("/", landing)
    server.router.add_get("/metrics", metrics)
    server.router.add_get("/debug/{name}", debug)
    server.router.add_get("/-/explain", explain)
    server.router.add_get("/-/healthy", healthy)
    server.router.add_get("/-/ready", ready)
    server.router.add_post("/-/reload", reload if enable_lifecycle else reload_forbidden)
    return server


@web.middleware
async def _harden(request: web.Request, handler: _Handler) -> web.StreamResponse:
    response = await handler(request)
    if response.content_type == "text/html":
        response.headers["Content-Security-Policy"] = "default-src 'none'; style-src 'unsafe-inline'"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


async def metrics(request: web.Request) -> web.Response:
    """Read every target and answer with all series, in the scraper's format, within the scraper's time."""
    app = request.app[APP]
    openmetrics = prefers_openmetrics(request.headers.get("Accept", ""))
    names = frozenset(request.query.getall("name[]", [])) or None
    readings = await app.poll(budget(request.headers.get("X-Prometheus-Scrape-Timeout-Seconds", "")))
    pieces: list[str] = []
    for piece in exposition(app.blocks(readings), openmetrics, names):
        pieces.append(piece)
        await asyncio.sleep(0)  # With many targets a family is long, and probes must be stamped on time.
    body = "".join(pieces).encode() + _measured(app, openmetrics, names)
    headers = {"Content-Type": OPENMETRICS if openmetrics else TEXT, "Vary": "Accept, Accept-Encoding"}
    if _weights(request.headers.get("Accept-Encoding", "")).get("gzip"):
        headers["Content-Encoding"] = "gzip"
        # Level 1 takes a third of the time of the default for a few per cent more bytes.
        body = await asyncio.to_thread(gzip.compress, body, zlib.Z_BEST_SPEED, mtime=0)
    return web.Response(body=body, headers=headers)


def _measured(app: App, openmetrics: bool, names: frozenset[str] | None) -> bytes:
    registry = app.registry
    if names is not None:
        wanted = {sample for name in names for sample in _sample_names(name)}
        registry = registry.restricted_registry(wanted)  # type: ignore[assignment]  # it has collect(), all that is used
    body = openmetrics_of(registry) if openmetrics else text_of(registry)  # type: ignore[no-untyped-call]  # not annotated
    return bytes(body)


def _sample_names(name: str) -> Iterator[str]:
    yield name
    if name in BY_NAME:
        yield from BY_NAME[name].sample_names


def prefers_openmetrics(accept: str) -> bool:
    """Return whether an Accept header ranks OpenMetrics at least as high as the text format (RFC 9110, 12.5.1)."""
    weights = _weights(accept)
    openmetrics = weights.get("application/openmetrics-text", 0.0)
    return openmetrics > 0 and openmetrics >= weights.get("text/plain", 0.0)


def _weights(header: str) -> dict[str, float]:
    """Return, in lower case, what a header such as Accept or Accept-Encoding lists, with its weight from 0 to 1."""
    found: dict[str, float] = {}
    for part in header.lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        values = [re.fullmatch(r"q\s*=\s*([01](?:\.\d{0,3})?)", parameter) for parameter in parameters]
        weight = next((float(match[1]) for match in values if match), 1.0)
        found[kind] = max(found.get(kind, 0.0), weight)
    return found


def budget(header: str) -> float:
    """Return the seconds that reading the targets may take, from the scraper's timeout header less a margin."""
    try:
        timeout = float(header)
    except ValueError:
        timeout = DEFAULT_TIMEOUT
    if not math.isfinite(timeout) or timeout <= 0:
        timeout = DEFAULT_TIMEOUT
    return timeout - min(MARGIN, timeout / 5)


async def landing(request: web.Request) -> web.Response:
    """Show each target with its five numbers."""
    app = request.app[APP]
    readings = await app.poll(DEFAULT_TIMEOUT, at_most_old=FRESH)
    return web.Response(text=pages.landing(app, readings), content_type="text/html")


async def debug(request: web.Request) -> web.Response:
    """Show the last reading of one target in full."""
    app = request.app[APP]
    state = app.states.get(request.match_info["name"])
    if state is None:
        known = ", ".join(app.states) or "none"
        return web.Response(status=404, text=f"no such target; there are: {known}\n")
    await state.poll(state.target.timeout)
    return web.Response(text=pages.debug(state), content_type="text/html")


async def explain(request: web.Request) -> web.Response:
    """Answer with what is known of each target's models now, for `llm-vitals explain`; `context` is in tokens."""
    context = request.query.get("context", "")
    tokens = int(context) if re.fullmatch("[1-9][0-9]{0,8}", context) else DEFAULT_CONTEXT
    readings = await request.app[APP].poll(DEFAULT_TIMEOUT, at_most_old=FRESH)
    found = [
        explanation(diagnosis, tokens) for state, _ in readings if state.wanted for diagnosis in state.watch.diagnoses()
    ]
    return web.json_response(found)


async def healthy(request: web.Request) -> web.Response:
    """Answer while the process serves."""
    return web.Response(text="llm-vitals is healthy.\n")


async def ready(request: web.Request) -> web.Response:
    """Answer 200 when every target was tried once, before that 503."""
    if request.app[APP].ready:
        return web.Response(text="llm-vitals is ready.\n")
    return web.Response(status=503, text="Not every target was tried yet.\n")


async def reload(request: web.Request) -> web.Response:
    """Read the configuration again."""
    problems = await request.app[APP].reload()
    if problems:
        return web.Response(status=400, text="".join(f"{problem}\n" for problem in problems))
    return web.Response(text="The configuration was read again.\n")


async def reload_forbidden(request: web.Request) -> web.Response:
    """Refuse to reload."""
    return web.Response(status=403, text="Start llm-vitals with --enable-lifecycle to allow this, or send SIGHUP.\n")
