"""What a body of /v1/completions or /v1/chat/completions asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exporter.simulator import words
from exporter.simulator.server import BodyError


@dataclass(frozen=True, slots=True)
class Asks:
    """A request's parameters; `max_tokens` None is the server's default, `usage` whether a last chunk tells it."""

    model: str
    prompt: list[int]
    chat: bool
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stream: bool
    usage: bool
    continuous_usage: bool


def read(body: Mapping[str, object], chat: bool) -> Asks:
    """Read a body; BodyError with the field's name if a field is not what it should be."""
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise BodyError("stream_options must be an object")
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if body.get("max_tokens") == 0:
        limit = 0
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise BodyError(f"max_tokens must be at least 1, got {limit}.")
    if body.get("n") not in (None, 1):
        raise BodyError("n must be 1: the simulator gives one answer a request")
    minimum = body.get("min_tokens") or 0
    if not isinstance(minimum, int) or minimum < 0:
        raise BodyError("min_tokens must be 0 or more")
    return Asks(
        model=str(body.get("model") or ""),
        prompt=words.encode_chat(messages(body.get("messages"))) if chat else _prompt(body.get("prompt")),
        chat=chat,
        max_tokens=limit,
        min_tokens=minimum,
        ignore_eos=bool(body.get("ignore_eos")),
        stream=bool(body.get("stream")),
        usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
    )


def messages(value: object) -> list[tuple[str, str]]:
    """Read chat messages as (role, text); parts that are not text are left out."""
    if not isinstance(value, list):
        raise BodyError("messages must be a list of objects with role and content")
    out = []
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BodyError("each message needs a role")
        content = message.get("content") or ""
        if isinstance(content, list):
            content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
        out.append((message["role"], str(content)))
    return out


def _prompt(value: object) -> list[int]:
    if isinstance(value, list) and len(value) == 1 and not isinstance(value[0], int):
        value = value[0]
    if isinstance(value, str):
        return words.encode(value)
    if isinstance(value, list) and all(type(token) is int for token in value):
        return list(value)
    raise BodyError("prompt must be a string or a list of token ids: the simulator takes one prompt a request")
