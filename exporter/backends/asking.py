"""Reads a server by asking its API: what all such readers share, above all how a fault becomes a snapshot."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx

from exporter import words
from exporter.access import AccessError, blank
from exporter.backends.ollama_api import ApiError, open_client
from exporter.model import ModelFacts, Outcome, Sample, Snapshot
from exporter.relay.render import SampleReadings
from exporter.settings import Target, Tls


@dataclass(frozen=True, slots=True)
class Told:
    """What a server told in one reading; `size` is that of its answers, in bytes."""

    size: int
    samples: Sequence[Sample]
    models: Mapping[str, ModelFacts]
    version: str = ""


class AskingReader(ABC):
    """Reads one server by `ask`.  The client is opened at the first reading if none is given."""

    backend: str
    """The engine's name."""

    def __init__(self, target: Target, client: httpx.AsyncClient | None = None) -> None:
        self._target = target
        self._client = client

    @abstractmethod
    async def ask(self, client: httpx.AsyncClient, deadline: float) -> Told:
        """Ask until `deadline`, in the event loop's time; raises ApiError."""

    async def close(self) -> None:
        """Close the client; a further reading opens another."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def read(self, deadline_s: float) -> Snapshot:
        """Return one reading, good or bad, within `deadline_s` seconds; a target's fault is in the snapshot."""
        at, start = time.time(), time.perf_counter()
        deadline = asyncio.get_running_loop().time() + deadline_s
        name = self._target.name
        try:
            self._client = self._client or open_client(self._target)
            told = await self.ask(self._client, deadline)
        except (ApiError, AccessError) as error:
            outcome, status = (error.outcome, error.status) if isinstance(error, ApiError) else (Outcome.TLS, None)
            detail = words.line(blank(str(error), self._target))
            if outcome is Outcome.TLS and self._target.tls != Tls():
                await self.close()  # The files may have been renewed since the client read them.
            return Snapshot(name, self.backend, outcome, at, time.perf_counter() - start, detail, status)
        return Snapshot(
            name,
            self.backend,
            Outcome.OK,
            at,
            time.perf_counter() - start,
            status=httpx.codes.OK,
            size=told.size,
            version=told.version,
            readings=SampleReadings(name, self.backend, told.samples),
            models=told.models,
        )
