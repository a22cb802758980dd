"""An Ollama: what it has in memory, and how to leave that as it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import httpx

from exporter.backends.ollama import BACKEND
from exporter.backends.ollama_api import ApiError, LoadedModel, fetch, fetch_details, fetch_loaded
from exporter.probe.expiry import LEAST_LEFT, LOOK, Expiry
from exporter.probe.hosts import Model, wanted
from exporter.settings import Target

QUEUED = 0.2
"""Seconds from which a wait for one's turn means that somebody else was being served."""


class OllamaHost:
    """Models are those in memory; each keeps the expiry that it would have without us.

    `wall` gives Unix time; the server's is taken instead where the two differ.
    """

    backend = BACKEND
    dialect = "ollama_generate"
    look_every: float | None = LOOK

    def __init__(self, target: Target, client: httpx.AsyncClient, wall: Callable[[], float] = time.time) -> None:
        self._target = target
        self._client = client
        self._wall = wall
        self._offset = 0.0
        self._expiries: dict[str, Expiry] | None = None
        self._digests: dict[str, str] = {}
        self._generates: dict[str, bool] = {}

    async def look(self) -> dict[str, Model]:
        """Return the models in memory, and those that the configuration wants; put right what users' requests left."""
        models = await self._see()
        for name, expiry in (self._expiries or {}).items():
            if expiry.wrong(self._now()):
                await self._repair(name, expiry)
        found = {model.name: await self._judge(model) for model in models}
        for name in self._target.probe.models:
            if not any(wanted(known, (name,)) for known in found):
                full = name if ":" in name else f"{name}:latest"
                found[full] = Model(full, why_not="" if self._target.probe.load else "not in memory")
        return found

    def extras(self, max_tokens: int) -> Mapping[str, object]:
        """Return nothing: an option too many might reload the model."""
        return {}

    def keep_alive(self, model: str, dialect: str, lasting: float) -> str | int | None:
        """Return what is left until the model's expiry; None for one that is not in memory or cannot be told."""
        expiry = (self._expiries or {}).get(model)
        if expiry is None:
            return None
        if not dialect.startswith("ollama_"):
            expiry.ask_without(self._now())
            return None
        return expiry.ask(self._now(), lasting)

    async def settle(self, model: str, waited: float, *, refused: bool) -> None:
        """Look at once, so that what follows is not taken for ours, and repair the expiry."""
        expiry = (self._expiries or {}).get(model)
        if expiry is not None and refused:
            expiry.refused()
        if expiry is not None and waited > QUEUED:
            expiry.used(self._now())
        await self.look()

    async def _see(self) -> tuple[LoadedModel, ...]:
        models, answer = await fetch_loaded(self._client, self._target, self._deadline())
        # The header has whole seconds: within that, both clocks are right and ours is the finer one.
        ahead = 0.0 if answer.server_time is None else answer.server_time + 0.5 - self._wall()
        self._offset = ahead if abs(ahead) > 1.5 else 0.0
        before, self._expiries = self._expiries, {}
        for model in models:
            if model.expires_at is None:
                continue
            expiry = (before or {}).get(model.name)
            if expiry is None or self._digests.get(model.name) != model.digest:
                expiry = Expiry(model.expires_at, self._now(), watched=before is not None)
            else:
                expiry.see(model.expires_at, self._now())
            self._expiries[model.name] = expiry
        self._digests = {model.name: model.digest for model in models}
        return models

    async def _repair(self, name: str, expiry: Expiry) -> None:
        """Set an expiry by a request without a prompt, which computes nothing (seen: done_reason "load")."""
        payload = {"model": name, "stream": False, "keep_alive": expiry.ask(self._now(), 0.0)}
        await fetch(self._client, self._target, "/api/generate", deadline=self._deadline(), payload=payload)
        await self._see()

    async def _judge(self, model: LoadedModel) -> Model:
        expiry = (self._expiries or {}).get(model.name)
        if expiry is None:
            why_not = "its expiry is not known"
        elif expiry.left(self._now()) < LEAST_LEFT:
            why_not = "about to be unloaded, or busy beyond its expiry"
        elif not await self._can_generate(model):
            why_not = "it makes no text"
        else:
            why_not = ""
        return Model(model.name, model.digest, model.context_length, why_not)

    async def _can_generate(self, model: LoadedModel) -> bool:
        """Return whether a model makes text, which one for embeddings does not; asked once for each version."""
        if model.digest not in self._generates:
            try:
                details = await fetch_details(self._client, self._target, model.name, self._deadline())
            except ApiError:
                return True  # The probe itself will tell.
            self._generates[model.digest] = details.generates
        return self._generates[model.digest]

    def _now(self) -> float:
        return self._wall() + self._offset

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._target.timeout
