"""Reads what an Ollama tells of itself, which is no metrics page but a few JSON answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import httpx

from exporter import words
from exporter.backends.asking import AskingReader, Told
from exporter.backends.ollama_api import (
    Answer,
    ApiError,
    LoadedModel,
    ModelDetails,
    count,
    fetch,
    fetch_details,
    fetch_loaded,
)
from exporter.model import ModelFacts, Outcome, Sample
from exporter.settings import Target

BACKEND = "ollama"

RARELY = 60.0
"""Seconds between two readings of /api/tags, and before a failed /api/show is asked for again."""


class OllamaReader(AskingReader):
    """Reads one Ollama: /api/version and /api/ps each time, /api/tags and /api/show rarely.

    `loaded` holds the models that were in memory at the last reading, none if it failed; `clock` gives seconds.
    """

    backend = BACKEND

    def __init__(
        self,
        target: Target,
        client: httpx.AsyncClient | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(target, client)
        self.loaded: tuple[LoadedModel, ...] = ()
        self._clock = clock
        self._installed: dict[str, int | None] | None = None
        self._tags_due = float("-inf")
        self._details: dict[str, ModelDetails] = {}
        self._show_due: dict[str, float] = {}

    async def ask(self, client: httpx.AsyncClient, deadline: float) -> Told:
        """Bring everything up to date."""
        try:
            version, size = await self._read_all(client, deadline)
        except ApiError:
            self.loaded, self._tags_due = (), float("-inf")
            raise
        return Told(size, self._samples(), {model.name: self._facts(model) for model in self.loaded}, version)

    async def _read_all(self, client: httpx.AsyncClient, deadline: float) -> tuple[str, int]:
        """Return the version and the bytes read each time."""
        version, ps, tags = await asyncio.gather(
            fetch(client, self._target, "/api/version", deadline=deadline),
            fetch_loaded(client, self._target, deadline),
            self._refresh_installed(client, _half_way(deadline)),
            return_exceptions=True,
        )
        # The version's fault comes first: it tells best whether this is an Ollama at all.
        if isinstance(version, BaseException):
            raise self._no_ollama(version)
        text = self._version(version)
        if isinstance(ps, BaseException):
            raise ps
        if isinstance(tags, BaseException):
            raise tags
        self.loaded, answer = ps
        await self._refresh_details(client, _half_way(deadline))
        return text, version.size + answer.size

    def _no_ollama(self, fault: BaseException) -> BaseException:
        """Read a 404 of /api/version, which every Ollama has, as the sign of another server."""
        if isinstance(fault, ApiError) and fault.status == httpx.codes.NOT_FOUND:
            return ApiError(
                Outcome.NOT_LLM_SERVER,
                f"{self._target.url} answers, but is no Ollama (it has no /api/version); correct `url` or `backend`",
                fault.status,
            )
        return fault

    def _version(self, answer: Answer) -> str:
        version = answer.content.get("version") if isinstance(answer.content, dict) else None
        if not isinstance(version, str):
            raise ApiError(
                Outcome.NOT_LLM_SERVER,
                f"{self._target.url}/api/version is not an Ollama's; correct `url` or `backend`",
            )
        return words.version(version)

    async def _refresh_installed(self, client: httpx.AsyncClient, deadline: float) -> None:
        if self._clock() < self._tags_due:
            return
        self._tags_due = self._clock() + RARELY
        self._installed = None
        try:
            answer = await fetch(client, self._target, "/api/tags", deadline=deadline)
        except ApiError:
            return
        models = answer.content.get("models") if isinstance(answer.content, dict) else None
        if isinstance(models, list):
            rows = [row for row in models if isinstance(row, dict)]
            self._installed = {str(row.get("name") or row.get("model")): count(row.get("size")) for row in rows}

    async def _refresh_details(self, client: httpx.AsyncClient, deadline: float) -> None:
        """Ask /api/show once for each digest in memory and forget the digests that left it."""
        names = {model.digest: model.name for model in self.loaded if model.digest}
        self._details = {digest: known for digest, known in self._details.items() if digest in names}
        self._show_due = {digest: due for digest, due in self._show_due.items() if digest in names}
        await asyncio.gather(
            *(
                self._fetch_details(client, digest, name, deadline)
                for digest, name in names.items()
                if digest not in self._details and self._clock() >= self._show_due.get(digest, float("-inf"))
            )
        )

    async def _fetch_details(self, client: httpx.AsyncClient, digest: str, name: str, deadline: float) -> None:
        self._show_due[digest] = self._clock() + RARELY
        try:
            self._details[digest] = await fetch_details(client, self._target, name, deadline)
        except ApiError:
            return

    def _facts(self, model: LoadedModel) -> ModelFacts:
        details = self._details.get(model.digest)
        return ModelFacts(
            weight_bytes=(self._installed or {}).get(model.name),
            vram_share=min(model.size_vram / model.size, 1.0) if model.size else None,
            info={} if details is None else details.info,
        )

    def _samples(self) -> list[Sample]:
        samples: list[Sample] = []

        def add(name: str, value: float | None, **labels: str) -> None:
            if value is not None:
                family = f"vitals_{name}"
                samples.append(Sample(family, family, tuple(labels.items()), repr(value)))

        add("models_installed", None if self._installed is None else len(self._installed))
        for model in self.loaded:
            name, details = model.name, self._details.get(model.digest)
            add("model_loaded", 1, model=name)
            add(
                "model_info",
                1,
                model=name,
                family=model.family,
                parameter_size=model.parameter_size,
                quantization=model.quantization,
            )
            if model.size is not None:
                add("model_memory_bytes", model.size_vram, model=name, memory="vram")
                add("model_memory_bytes", max(model.size - model.size_vram, 0), model=name, memory="ram")
            add("model_context_length_tokens", model.context_length, model=name)
            if details is not None:
                add("model_max_context_length_tokens", details.max_context_length, model=name)
                add("model_parameters", details.parameters, model=name)
            add("model_expiry_timestamp_seconds", model.expires_at, model=name)
        return samples


def _half_way(deadline: float) -> float:
    """Return the middle of the time left: what was read must not be lost to what is only asked for besides."""
    return (asyncio.get_running_loop().time() + deadline) / 2
