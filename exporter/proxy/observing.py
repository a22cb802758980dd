"""A target's proxy as a whole: the listener, the numbers it gathers and the names it may use."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from exporter.model import Sample
from exporter.proxy.exchange import watch
from exporter.proxy.names import Names, fetch_names
from exporter.proxy.observed import Observed
from exporter.proxy.proxy import Proxy, report_failure
from exporter.proxy.watching import Notes
from exporter.settings import Target

NAMES_FIRST = 1.0
"""Seconds that clients wait for a server that does not tell its models."""


class ObservingProxy:
    """The proxy of a target with `proxy.listen`.

    `contexts` returns the context length of one slot in tokens, by model in memory; `clock` gives seconds.
    """

    def __init__(
        self, target: Target, contexts: Callable[[], Mapping[str, float]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        settings = target.proxy
        self._target = target
        self._observed = Observed(target.name, settings.slots, contexts, settings.context_length)
        self._names = Names(partial(fetch_names, target))
        self._notes = Notes(partial(watch, self._observed, self._names.label))
        self._proxy = Proxy(target, self._notes, clock)
        self._naming: asyncio.Task[None] | None = None

    @property
    def where(self) -> str:
        """The address that clients connect to, empty while there is none."""
        return self._proxy.where

    @property
    def busy(self) -> bool:
        """Whether there are clients connected."""
        return self._proxy.busy

    async def start(self) -> None:
        """Begin, unless it has begun: the names first, so that the first users' requests are under theirs."""
        if self._naming is None:
            self._naming = asyncio.create_task(self._names.run(), name=f"model names of {self._target.name}")
            self._naming.add_done_callback(report_failure)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(NAMES_FIRST):
                    await self._names.tried.wait()
            await self._proxy.start()

    async def retire(self) -> None:
        """Take no more clients; requests under way go on to their end."""
        await self._proxy.retire()
        if self._naming is not None:
            self._naming.cancel()
            await asyncio.wait({self._naming})

    async def close(self, grace_s: float) -> None:
        """End within some seconds."""
        await self.retire()
        await self._proxy.close(grace_s)
        self._notes.hear()

    def samples(self) -> Sequence[Sample]:
        """Return the numbers as samples."""
        self._notes.hear()
        return self._observed.samples()

    def blocks(self, backend: str) -> Mapping[str, str]:
        """Return the numbers as finished text lines by family."""
        self._notes.hear()
        return self._observed.blocks(backend)
