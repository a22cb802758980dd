"""Reads a server with OpenAI's API and no metrics (LM Studio, mlx, llama.cpp): all it tells is its list of models."""

from __future__ import annotations

import asyncio
import time

import httpx

from exporter.access import AccessError, blank
from exporter.backends.ollama_api import ApiError, count, fetch, open_client
from exporter.model import ModelFacts, Outcome, Sample, Snapshot
from exporter.relay.render import SampleReadings
from exporter.settings import Target

BACKEND = "openai"

PATH = "/v1/models"


class OpenAIReader:
    """Reads /v1/models each time."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._client: httpx.AsyncClient | None = None

    @property
    def backend(self) -> str:
        """The engine's name."""
        return BACKEND

    async def close(self) -> None:
        """Close the client."""
        if self._client is not None:
            await self._client.aclose()

    async def read(self, deadline_s: float) -> Snapshot:
        """Return one reading, good or bad, within `deadline_s` seconds; a target's fault is in the snapshot."""
        at, start = time.time(), time.perf_counter()
        deadline = asyncio.get_running_loop().time() + deadline_s
        name = self._target.name
        try:
            self._client = self._client or open_client(self._target)
            answer = await fetch(self._client, self._target, PATH, deadline=deadline)
            samples = self._samples(answer.content)
        except (ApiError, AccessError) as error:
            outcome, status = (error.outcome, error.status) if isinstance(error, ApiError) else (Outcome.TLS, None)
            detail = blank(str(error), self._target)
            return Snapshot(name, BACKEND, outcome, at, time.perf_counter() - start, detail, status)
        took = time.perf_counter() - start
        readings = SampleReadings(name, BACKEND, samples)
        return Snapshot(
            name, BACKEND, Outcome.OK, at, took, status=200, size=answer.size, readings=readings,
            models=_told(answer.content),
        )  # fmt: skip

    def _samples(self, content: object) -> list[Sample]:
        """Return each model's context length where it is told, by vLLM's key or llama.cpp's, whose is a slot's."""
        rows = content.get("data") if isinstance(content, dict) else None
        if not isinstance(rows, list):
            detail = f"{self._target.url}{PATH} lists no models; correct `url` or `backend`"
            raise ApiError(Outcome.NOT_LLM_SERVER, detail)
        family = "vitals_model_context_length_tokens"
        found: dict[str, Sample] = {}
        for row in (row for row in rows if isinstance(row, dict)):
            meta = row.get("meta")
            length = count(row.get("max_model_len")) or count(meta.get("n_ctx") if isinstance(meta, dict) else None)
            if length and isinstance(model := row.get("id"), str) and model:
                found[model] = Sample(family, family, (("model", model),), repr(length))
        return list(found.values())


def _told(content: object) -> dict[str, ModelFacts]:
    """Return the models by name, with the bytes of their weights where the server tells (llama.cpp's meta.size)."""
    rows = content.get("data") if isinstance(content, dict) else None
    found: dict[str, ModelFacts] = {}
    for row in (row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else ():
        meta = row.get("meta")
        if isinstance(model := row.get("id"), str) and model:
            found[model] = ModelFacts(weight_bytes=count(meta.get("size")) if isinstance(meta, dict) else None)
    return found
