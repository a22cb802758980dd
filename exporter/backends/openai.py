"""Reads a server with OpenAI's API and no metrics (LM Studio, mlx, llama.cpp): all it tells is its list of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import httpx

from exporter import words
from exporter.backends.asking import AskingReader, Told
from exporter.backends.ollama_api import ApiError, count, fetch
from exporter.model import ModelFacts, Outcome, Sample

PATH = "/v1/models"

_CONTEXT = "vitals_model_context_length_tokens"


class OpenAIReader(AskingReader):
    """Reads /v1/models each time."""

    backend = "openai"

    async def ask(self, client: httpx.AsyncClient, deadline: float) -> Told:
        """Return each model's context length and bytes where they are told."""
        answer = await fetch(client, self._target, PATH, deadline=deadline)
        rows = answer.content.get("data") if isinstance(answer.content, dict) else None
        if not isinstance(rows, list):
            detail = f"{self._target.url}{PATH} lists no models; correct `url` or `backend`"
            raise ApiError(Outcome.NOT_LLM_SERVER, detail)
        models = dict(models_of(rows))
        lengths = {model: context_length(row) for model, row in models.items()}
        samples = [
            Sample(_CONTEXT, _CONTEXT, (("model", model),), repr(length)) for model, length in lengths.items() if length
        ]
        facts = {model: ModelFacts(weight_bytes=count(_meta(row).get("size"))) for model, row in models.items()}
        return Told(answer.size, samples, facts)


def models_of(rows: list[object]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the models of /v1/models' `data` whose names can be labels, each with its row."""
    for row in rows:
        if isinstance(row, dict) and words.is_name(model := row.get("id")):
            yield model, row


def context_length(row: Mapping[str, object]) -> int | None:
    """Return a row's context length in tokens, by vLLM's key or llama.cpp's, whose is a slot's; None if not told."""
    return count(row.get("max_model_len")) or count(_meta(row).get("n_ctx"))


def _meta(row: Mapping[str, object]) -> Mapping[str, object]:
    """Return what llama.cpp tells of a model."""
    meta = row.get("meta")
    return meta if isinstance(meta, dict) else {}
