"""Reads a target that has a metrics page of its own: fetch, normalize, and now and then ask for the version."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable
from typing import Protocol

import aiohttp

from exporter import access, words
from exporter.backends import Backend
from exporter.config import Target
from exporter.model import Outcome, Snapshot
from exporter.relay import scrape
from exporter.relay.memory import Memory
from exporter.relay.normalize import Page, PageReader

VERSION_EVERY = 60.0
"""Seconds between two questions for an engine's version; it changes only with a restart."""

_MEMORIES: dict[str, Memory] = {}
"""What was parsed, by engine, for the process: a cache, which never changes an answer."""


class Reader(Protocol):
    """Reads one target; the seam at which engines differ.  `backend` is the engine's name."""

    @property
    def backend(self) -> str: ...  # noqa: D102 - the class says it

    async def read(self, deadline_s: float) -> Snapshot:
        """Read the target within `deadline_s` seconds; a fault of the target's is an outcome, never an exception."""
        ...

    async def close(self) -> None:
        """Let go of what it holds open."""
        ...


class PageTargetReader:
    """Reads the metrics page of one target."""

    def __init__(
        self,
        backend: Backend,
        target: Target,
        session: aiohttp.ClientSession,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the engine's table; `clock` gives seconds for the intervals between version requests."""
        self._backend = backend.name
        self._target = target
        self._session = session
        self._clock = clock
        if backend.name not in _MEMORIES:
            _MEMORIES[backend.name] = Memory(backend)
        self._pages = PageReader(backend, target.name, _MEMORIES[backend.name])
        self._tls: ssl.SSLContext | None = None
        self._version = ""
        self._version_due = 0.0

    @property
    def backend(self) -> str:
        """The engine's name."""
        return self._backend

    async def close(self) -> None:
        """Hold nothing open: the session is the caller's."""

    async def read(self, deadline_s: float) -> Snapshot:
        """Read the target's page within `deadline_s` seconds."""
        at, start = time.time(), time.perf_counter()
        try:
            self._tls = access.ssl_context(self._target)
        except access.AccessError as error:
            return Snapshot(self._target.name, self.backend, Outcome.TLS, at, 0.0, str(error))
        fetched = await self._fetch(self._target.metrics_path, deadline_s)
        page = Page(fetched.outcome, detail=fetched.detail)
        if fetched.outcome is Outcome.OK:
            page = self._pages.read(fetched.text)
        if page.outcome is not Outcome.OK:
            self._version_due = 0.0  # What comes back may be another version.
        elif self._clock() >= self._version_due:
            await self._ask_version(deadline_s - (time.perf_counter() - start))
        return Snapshot(
            self._target.name,
            self.backend,
            page.outcome,
            at,
            time.perf_counter() - start,
            page.detail,
            fetched.status,
            fetched.size,
            self._version,
            page.readings,
            page.report,
        )

    async def _fetch(self, path: str, deadline_s: float) -> scrape.Fetched:
        return await scrape.fetch(self._session, self._target, self._tls, path, deadline_s)

    async def _ask_version(self, deadline_s: float) -> None:
        self._version_due = self._clock() + VERSION_EVERY
        # Half of what is left at most: a page that was read must not be lost to a version that does not come.
        answer = await self._fetch("/version", min(deadline_s / 2, 1.0))
        try:
            self._version = words.version(json.loads(answer.text)["version"]) or self._version
        except (ValueError, LookupError, TypeError, RecursionError):
            return
