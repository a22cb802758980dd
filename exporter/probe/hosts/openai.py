"""A server with OpenAI's API: vLLM, SGLang, llama.cpp."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import httpx

from exporter.backends.ollama_api import ApiError, fetch
from exporter.backends.openai import context_length, models_of
from exporter.model import Outcome
from exporter.probe.hosts import Model, wanted
from exporter.settings import Target

LOWEST_PRIORITY = 1_000_000
"""vLLM serves the lowest number first; the default is 0, and users are not expected to go this far."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether the engine sleeps, and a text that changes when it may have been started anew."""

    asleep: bool = False
    run: str = ""


async def unknown_standing() -> Standing:
    """Tell nothing, of a server whose metrics are not read."""
    return Standing()


class OpenAIHost:
    """Models are those of /v1/models, without the adapters and further names of one that is there already.

    `standing` tells whether the engine sleeps, in which case nothing is probed.
    """

    dialect = "openai_completions"
    look_every: float | None = None

    def __init__(
        self,
        target: Target,
        client: httpx.AsyncClient,
        backend: str,
        standing: Callable[[], Awaitable[Standing]] = unknown_standing,
    ) -> None:
        self.backend = backend
        self._target = target
        self._client = client
        self._standing = standing

    async def look(self) -> dict[str, Model]:
        """Return the models served."""
        deadline = asyncio.get_running_loop().time() + self._target.timeout
        answer = await fetch(self._client, self._target, "/v1/models", deadline=deadline)
        rows = answer.content.get("data") if isinstance(answer.content, dict) else None
        if not isinstance(rows, list):
            raise ApiError(Outcome.NOT_LLM_SERVER, f"{self._target.url}/v1/models lists no models; correct `url`")
        standing = await self._standing()
        why_not = "the engine sleeps" if standing.asleep else ""
        identity = f"{standing.run} {why_not}"
        models = self._target.probe.models
        found: dict[str, Model] = {}
        roots: set[str] = set()
        for name, row in models_of(rows):
            root = str(row.get("root") or name)
            if models or (root not in roots and not row.get("parent")):
                roots.add(root)
                found[name] = Model(name, identity, context_length(row), why_not)
        # One that the server does not have is probed all the same, so that the mistake shows as a failure.
        missing = [name for name in models if not any(wanted(known, (name,)) for known in found)]
        return found | {name: Model(name, identity, why_not=why_not) for name in missing}

    def extras(self, max_tokens: int) -> Mapping[str, object]:
        """Return what makes the answer as long as asked for, and, of a vLLM, what makes it wait for users'."""
        length: dict[str, object] = {"ignore_eos": True, "min_tokens": max_tokens}
        return {**length, "priority": LOWEST_PRIORITY} if self.backend == "vllm" else length

    def keep_alive(self, model: str, dialect: str, lasting: float) -> str | int | None:
        """Return None: these servers do not unload."""
        return None

    async def settle(self, model: str, waited: float, *, refused: bool) -> None:
        """Do nothing: a request leaves nothing behind."""
