"""Probes one Ollama again and again without disturbing it: only what is loaded, and one request at a time."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random, SystemRandom

import httpx

from exporter.access import blank
from exporter.backends.ollama import BACKEND
from exporter.backends.ollama_api import ApiError, LoadedModel, build_request, fetch_details, fetch_loaded
from exporter.probe import prompt, stream
from exporter.probe.dialects import DIALECTS
from exporter.probe.events import Ask
from exporter.probe.instruments import Instruments
from exporter.probe.result import ProbeResult, measure
from exporter.settings import Target

LONGEST_JITTER = 10.0
"""Seconds over which the first probes are spread, or one interval if that is less."""

LEAST_LEFT = 5.0
"""Seconds a model must have left: one about to be unloaded might be gone on arrival, and be loaded again."""

FOR_EVER = 100 * 365 * 86400.0
"""Seconds; Ollama shows keep_alive -1 as an expiry about 290 years from now."""

log = logging.getLogger(__name__)


class Prober:
    """Probes the models that one Ollama has in memory, one after the other, every `target.probe.interval`.

    `last`: by model, the last result for each model still in memory.
    """

    def __init__(
        self,
        target: Target,
        client: httpx.AsyncClient,
        instruments: Instruments,
        *,
        clock: Callable[[], float] = time.perf_counter,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Random | None = None,
    ) -> None:
        self.last: dict[str, ProbeResult] = {}
        self._target = target
        self._client = client
        self._instruments = instruments
        self._clock = clock
        self._wall = wall
        self._sleep = sleep
        self._random = random or SystemRandom()
        self._readable = True
        self._known: dict[str, str] = {}
        self._warm: set[str] = set()
        self._generates: dict[str, bool] = {}

    async def run(self) -> None:
        """Probe until cancelled; a round that lasts longer than the interval makes the next ones fall out."""
        interval = self._target.probe.interval
        await self._sleep(self._random.uniform(0, min(interval, LONGEST_JITTER)))
        due = self._clock()
        while True:
            await self.round()
            now = self._clock()
            due += interval * max(1, math.ceil((now - due) / interval))
            await self._sleep(due - now)

    async def round(self) -> None:
        """Probe each wanted model that is in memory once."""
        try:
            names = [name for name in await self._loaded() if self._wanted(name)]
            for name in names:
                # Read again: during the probe before, which may have taken a minute, it may have been unloaded.
                loaded = await self._loaded()
                if name in loaded and await self._can_generate(loaded[name][0]):
                    await self._probe(*loaded[name])
        except ApiError as fault:
            self._drop_gone({})
            if self._readable:
                log.warning("target %s: not probed: %s", self._target.name, blank(str(fault), self._target))
            self._readable = False

    async def _loaded(self) -> dict[str, tuple[LoadedModel, float]]:
        """Return the models in memory by name, each with the seconds until its expiry (NaN: unknown).

        The server's own clock is taken where it tells it: ours may differ.  Raises ApiError.
        """
        models, answer = await fetch_loaded(self._client, self._target, self._deadline())
        if not self._readable:
            log.info("target %s: probed again", self._target.name)
        self._readable = True
        self._drop_gone({model.name: model.digest for model in models})
        now = self._wall() if answer.server_time is None else answer.server_time
        return {
            model.name: (model, math.nan if model.expires_at is None else model.expires_at - now) for model in models
        }

    def _drop_gone(self, loaded: dict[str, str]) -> None:
        """Forget what was measured of models that are not in memory any more, or in another version."""
        for name, digest in self._known.items():
            if loaded.get(name) != digest:
                self._instruments.drop_gauges(self._target.name, name)
                self.last.pop(name, None)
                self._warm.discard(name)
                self._generates.pop(name, None)
        self._known = loaded

    def _wanted(self, name: str) -> bool:
        models = self._target.probe.models
        return not models or name in models or name.removesuffix(":latest") in models

    async def _can_generate(self, model: LoadedModel) -> bool:
        """Return whether a model makes text, which one for embeddings does not; asked once per load."""
        if model.name not in self._generates:
            try:
                details = await fetch_details(self._client, self._target, model.name, self._deadline())
            except ApiError:
                return True  # The probe itself will tell.
            self._generates[model.name] = details.generates
        return self._generates[model.name]

    async def _probe(self, model: LoadedModel, left: float) -> None:
        if not left >= LEAST_LEFT:
            return
        self._instruments.prepare(self._target.name, BACKEND, model.name)
        settings = self._target.probe
        text = prompt.small(secrets.token_hex(8))
        dialect = DIALECTS["ollama_generate"]()
        keep_alive = -1 if left > FOR_EVER else math.ceil(left)
        ask = Ask(model.name, text.text, settings.max_tokens, keep_alive)
        exchange = await stream.run(
            self._client,
            build_request(self._client, self._target, dialect.path, dialect.body(ask), self._target.timeout),
            dialect,
            self._target,
            stream.Deadlines(settings.first_token_timeout, settings.timeout),
            self._clock,
        )
        warmup = model.name not in self._warm
        result = measure(exchange, at=self._wall(), warmup=warmup, min_prompt_tokens=text.min_tokens)
        result = replace(result, error=blank(result.error, self._target))
        if result.ok:
            self._warm.add(model.name)
        self._log_change(model.name, result)
        self.last[model.name] = result
        self._instruments.observe(self._target.name, BACKEND, model.name, text.label, result)

    def _log_change(self, model: str, result: ProbeResult) -> None:
        before = self.last.get(model)
        if result.reason is not None and (before is None or before.reason != result.reason):
            log.warning("target %s, model %s: probe failed: %s", self._target.name, model, result.error)
        elif result.ok and before is not None and not before.ok:
            log.info("target %s, model %s: probes are good again", self._target.name, model)

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._target.timeout
