"""Ollama's POST /api/generate: a stream of JSON objects, one a line, the last with `done: true` and the counts."""

from __future__ import annotations

import json
import math

from exporter.probe.events import Ask, Done, Error, Event, Token, Usage

MAX_LINE = 4 * 2**20
"""Bytes of one line: the last one lists every token of the context, about 7 bytes each."""

NANOSECOND = 1e-9


class OllamaGenerate:
    """Reads the stream line by line; lines and characters may be split between reads."""

    path = "/api/generate"

    def __init__(self) -> None:
        self._rest = b""

    def body(self, ask: Ask) -> dict[str, object]:
        """Return the request; no option in it makes Ollama reload the model, as num_ctx would.

        The temperature keeps a small model out of a loop: Ollama ends an answer that repeats one token 30 times.
        """
        return {
            "model": ask.model,
            "prompt": ask.prompt,
            "stream": True,
            "keep_alive": ask.keep_alive,
            "options": {"temperature": 0.8, "seed": 1, "num_predict": ask.max_tokens},
        }

    def feed(self, data: bytes) -> list[Event]:
        """Return the events of the lines that these bytes complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = [event for line in lines for event in _events(line)]
        if len(self._rest) > MAX_LINE:
            self._rest = b""
            events.append(Error(f"a line of more than {MAX_LINE >> 20} MiB", malformed=True))
        return events

    def finish(self) -> list[Event]:
        """Return the events of a last line without a line feed."""
        line, self._rest = self._rest, b""
        return _events(line)


def _events(line: bytes) -> list[Event]:
    if not line.strip():
        return []
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        return [Error(f"no JSON object: {line[:80].decode(errors='replace')}", malformed=True)]
    if row.get("error") is not None:
        return [Error(str(row["error"]))]
    events: list[Event] = []
    thinking, response = (text if isinstance(text, str) else "" for text in (row.get("thinking"), row.get("response")))
    if thinking or response:
        # A line is one piece of text, also the one that ends the thinking and begins the answer.
        events.append(Token(thinking + response, thinking=not response))
    if row.get("done") is True:
        events += [_usage(row), Done(str(row.get("done_reason", "")))]
    return events


def _usage(row: dict[str, object]) -> Usage:
    def number(key: str, unit: float = 1.0) -> float | None:
        match row.get(key):
            case bool():
                return None
            case int() | float() as value if 0 <= value < math.inf:
                return value * unit
        return None

    def count(key: str) -> int | None:
        value = number(key)
        return None if value is None else int(value)

    return Usage(
        prompt_tokens=count("prompt_eval_count"),
        cached_tokens=count("prompt_eval_cached_count"),
        output_tokens=count("eval_count"),
        load_s=number("load_duration", NANOSECOND),
        prefill_s=number("prompt_eval_duration", NANOSECOND),
        decode_s=number("eval_duration", NANOSECOND),
    )
