"""What a stream says, whatever its dialect: Token, Usage, Done and Error events, and the shape of a dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of text as the server cut it, usually one token; `thinking` for text before the answer proper."""

    text: str
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """The server's own count of tokens and its own times in seconds; None is what it did not tell.

    `prompt_tokens` includes `cached_tokens`; `output_tokens` is all that was generated, thinking included.
    `decode_s` runs from the first token to the last.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    load_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The server's word that the answer is complete, with its reason (stop, length, ...)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Error:
    """An error that the server sent in the stream, or, if `malformed`, bytes that are not the dialect."""

    text: str
    malformed: bool = False


Event = Token | Usage | Done | Error


@dataclass(frozen=True, slots=True)
class Ask:
    """What one probe asks for: at most `max_tokens` tokens of an answer to `prompt`.

    `keep_alive` is Ollama's: a duration such as "4.5s", -1 for ever, None to leave it out.  `extras` are
    further keys of the request that not every server of the dialect knows.
    """

    model: str
    prompt: str
    max_tokens: int
    keep_alive: str | int | None = None
    extras: Mapping[str, object] = field(default_factory=dict)


class Dialect(Protocol):
    """How one API is asked and its stream read; an instance reads one stream."""

    path: str

    def body(self, ask: Ask) -> Mapping[str, object]:
        """Return the JSON to POST to `path`."""
        ...

    def feed(self, data: bytes) -> list[Event]:
        """Return the events completed by these bytes, which may begin and end anywhere."""
        ...

    def finish(self) -> list[Event]:
        """Return the events in what is left when the stream has ended."""
        ...
