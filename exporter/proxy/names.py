"""Which model names the server itself lists: no other name that a client sends becomes a label."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from exporter import words
from exporter.access import AccessError
from exporter.settings import Target

OTHER = "other"

EVERY = 60.0
"""Seconds between two readings of the list while every name is known."""

SPACING = 1.0
"""Seconds between two readings at least, however many unknown names come."""

FETCH_TIME = 5.0

Fetch = Callable[[], Awaitable[frozenset[str] | None]]
"""Returns the names listed, None if the list could not be read."""


class Names:
    """The names as last read; `run` keeps them fresh, and sets `tried` after the first try."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._listed: frozenset[str] = frozenset()
        self._unknown = asyncio.Event()
        self.tried = asyncio.Event()

    def label(self, name: object) -> str:
        """Return the listed name that a request's name means, or `other`; an unknown one is looked for soon."""
        if isinstance(name, str):
            for listed in (name, f"{name}:latest"):  # Ollama's short form.
                if listed in self._listed:
                    return listed
            self._unknown.set()
        return OTHER

    async def run(self) -> None:
        """Read the list now, every minute, and soon after an unknown name; until cancelled."""
        while True:
            # Cleared before the reading: a name that comes during it may have come too late for it.
            self._unknown.clear()
            listed = await self._fetch()
            if listed is not None:
                self._listed = listed
            self.tried.set()
            await asyncio.sleep(SPACING)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY):
                    await self._unknown.wait()


async def fetch_names(target: Target) -> frozenset[str] | None:
    """Return what /v1/models lists, or Ollama's /api/tags where that is not there; None if neither answers."""
    # Imported late: httpx costs memory and start-up time that only its users should pay.
    from exporter.backends.ollama_api import ApiError, fetch, open_client

    try:
        opened = open_client(target)
    except AccessError:
        return None  # Whoever reads the target says what is wrong with its certificates.
    async with opened as client:
        for path, rows_key, name_key in (("/v1/models", "data", "id"), ("/api/tags", "models", "name")):
            deadline = asyncio.get_running_loop().time() + FETCH_TIME
            try:
                content = (await fetch(client, target, path, deadline=deadline)).content
            except ApiError:
                continue
            rows = content.get(rows_key) if isinstance(content, dict) else None
            if isinstance(rows, list):
                names = (row.get(name_key) for row in rows if isinstance(row, dict))
                return frozenset(name for name in names if words.is_name(name))
    return None
