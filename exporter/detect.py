"""Which reader a target gets; for `backend: auto`, finds out what answers there and notices when that changes."""

from __future__ import annotations

import time
from dataclasses import replace

import aiohttp

from exporter.backends.table import PAGES
from exporter.config import Target
from exporter.model import Outcome, Snapshot
from exporter.relay.engine import PageTargetReader, Reader

UNKNOWN = "unknown"
"""The `backend` label of a target that has not yet answered as anything."""

_NOBODY = (Outcome.DNS, Outcome.CONNECT, Outcome.TLS, Outcome.TIMEOUT, Outcome.TRUNCATED, Outcome.INTERNAL)
"""Outcomes that say nothing about what program answers."""

_TELLING = (Outcome.AUTH, Outcome.NO_LLM_METRICS, Outcome.EMPTY, Outcome.TOO_LARGE, Outcome.REDIRECT)
"""Outcomes of the metrics page that explain more than "no LLM server" would."""

_BROKEN = (500, 502, 503, 504)
"""Status codes of a server, or of a proxy in front of one, that does not work at present: so they do too."""


def make_reader(target: Target, session: aiohttp.ClientSession) -> Reader:
    """Return the reader for a target's `backend`."""
    if target.backend == "auto":
        return AutoReader(target, session)
    if target.backend in PAGES:
        return PageTargetReader(PAGES[target.backend], target, session)
    # Imported late: httpx costs memory and start-up time that only its users should pay.
    from exporter.backends.ollama import OllamaReader
    from exporter.backends.openai import OpenAIReader

    return OpenAIReader(target) if target.backend == "openai" else OllamaReader(target)


class AutoReader:
    """Tries each engine in turn and stays with the one that answered."""

    def __init__(self, target: Target, session: aiohttp.ClientSession) -> None:
        self._target = target
        self._session = session
        self._candidates: dict[str, Reader] = {}
        self.chosen: Reader | None = None

    @property
    def backend(self) -> str:
        """The engine found, "unknown" before one was."""
        return self.chosen.backend if self.chosen else UNKNOWN

    async def read(self, deadline_s: float) -> Snapshot:
        """Read the target, finding out first what it is if need be."""
        start = time.perf_counter()
        known = await self.chosen.read(deadline_s) if self.chosen is not None else None
        if known is not None and (known.up or known.outcome in _NOBODY):
            return known
        found: list[Snapshot] = []
        for name in (*PAGES, "ollama"):
            if name not in self._candidates:
                self._candidates[name] = make_reader(replace(self._target, backend=name), self._session)
            reader = self._candidates[name]
            snapshot = await reader.read(deadline_s - (time.perf_counter() - start))
            if snapshot.up:
                self.chosen = reader
                return snapshot
            found.append(snapshot)
            if snapshot.outcome in _NOBODY:
                break
        # While nothing else turns up there it is the engine that it was, and what that says of its fault counts.
        return known or _nothing(found)

    async def close(self) -> None:
        """Close what the readers hold open."""
        for reader in self._candidates.values():
            await reader.close()


def _nothing(found: list[Snapshot]) -> Snapshot:
    """Return the reading that tells most of a server that is none of the engines, from all that were tried."""
    telling = next((item for item in found if item.outcome in _TELLING or item.status in _BROKEN), None)
    if telling is None and found[-1].outcome in _NOBODY:
        telling = found[-1]
    if telling is not None:
        return replace(telling, backend=UNKNOWN)
    detail = "answers, but not an LLM server that llm-vitals knows: " + "; ".join(
        f"as {item.backend}: {item.detail}" for item in found
    )
    return replace(found[0], backend=UNKNOWN, outcome=Outcome.NOT_LLM_SERVER, detail=detail)
