"""What a body of Ollama's API asks for, in its own dialect or OpenAI's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from exporter.simulator import openai_request, words
from exporter.simulator.ollama_runner import FOREVER
from exporter.simulator.server import BodyError

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(-?)((?:\d+(?:\.\d*)?(?:ns|us|µs|ms|s|m|h))+)")
_BEGIN = words.token_id("<|begin|>")


class OptionError(Exception):
    """An option has the wrong type, which Ollama answers with status 500."""


@dataclass(frozen=True, slots=True)
class OllamaAsks:
    """A request's parameters; an empty `prompt` asks to load the model, or with `keep_alive` 0 to unload it.

    `num_predict` None: as long as the model likes.  `keep_alive` is in seconds, None: leave it as it is.
    """

    model: str
    prompt: list[int]
    stream: bool
    num_predict: int | None
    num_ctx: int | None
    keep_alive: float | None
    think: bool | None
    truncate: bool


def native(body: Mapping[str, object], chat: bool) -> OllamaAsks:
    """Read a body of /api/generate or /api/chat; BodyError (400) or OptionError (500) with the reason."""
    options = body.get("options") or {}
    if not isinstance(options, dict):
        raise BodyError("json: cannot unmarshal options into Go struct field of type map[string]interface {}")
    if chat:
        messages = openai_request.messages(body.get("messages") or [])
        prompt = words.encode_chat(messages) if messages else []
    else:
        text = body.get("prompt") or ""
        if not isinstance(text, str):
            raise BodyError("json: cannot unmarshal prompt into Go struct field GenerateRequest.prompt of type string")
        prompt = [_BEGIN, *words.encode(text)] if text else []
    predict = _whole(options, "num_predict")
    think = body.get("think")
    return OllamaAsks(
        model=str(body.get("model") or ""),
        prompt=prompt,
        stream=body.get("stream") is not False,
        num_predict=predict if predict is not None and predict > 0 else None,
        num_ctx=_whole(options, "num_ctx"),
        keep_alive=_keep_alive(body.get("keep_alive")),
        think=None if think is None else bool(think),
        truncate=body.get("truncate") is not False,
    )


def openai(body: Mapping[str, object], chat: bool) -> tuple[OllamaAsks, bool]:
    """Read a body of /v1/chat/completions or /v1/completions; also tell whether usage was asked for."""
    asks = openai_request.read(body, chat)
    effort = body.get("reasoning_effort")
    return (
        OllamaAsks(
            model=asks.model,
            prompt=asks.prompt if chat else [_BEGIN, *asks.prompt],
            stream=asks.stream,
            num_predict=asks.max_tokens,
            num_ctx=None,
            keep_alive=None,
            think=None if effort is None else effort != "none",
            truncate=True,
        ),
        asks.usage,
    )


def _whole(options: Mapping[str, object], name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(f'option "{name}" must be of type integer')
    return int(value)


def _keep_alive(value: object) -> float | None:
    """Read seconds or a Go duration; anything below 0 is for ever."""
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        match = _DURATION.fullmatch(str(value))
        if match is None:
            raise BodyError(f'time: invalid duration "{value}"')
        parts = re.findall(r"(\d+(?:\.\d*)?)(ns|us|µs|ms|s|m|h)", match[2])
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts) * (-1 if match[1] else 1)
    return FOREVER if seconds < 0 else seconds
