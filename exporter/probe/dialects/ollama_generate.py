"""Ollama's POST /api/generate: a stream of JSON objects, one a line, the last with `done: true` and the counts."""

from __future__ import annotations

from collections.abc import Mapping

from exporter.probe.dialects.lines import NANOSECOND, Lines, count, json_object, seconds, text
from exporter.probe.events import Ask, Done, Error, Event, Token, Usage


class OllamaGenerate:
    """Reads the stream line by line; lines and characters may be split between reads."""

    path = "/api/generate"

    def __init__(self) -> None:
        self._lines = Lines()

    def body(self, ask: Ask) -> dict[str, object]:
        """Return the request; no option in it makes Ollama reload the model, as num_ctx would."""
        return {"prompt": ask.prompt, **common_body(ask)}

    def answer(self, row: Mapping[str, object]) -> tuple[str, str]:
        """Return a line's thinking and its answer."""
        return text(row, "thinking"), text(row, "response")

    def feed(self, data: bytes) -> list[Event]:
        """Return the events of the lines that these bytes complete."""
        try:
            lines = self._lines.feed(data)
        except ValueError as error:
            return [Error(str(error), malformed=True)]
        return [event for line in lines for event in self._events(line)]

    def finish(self) -> list[Event]:
        """Return the events of a last line without a line feed."""
        return [event for line in self._lines.finish() for event in self._events(line)]

    def _events(self, line: bytes) -> list[Event]:
        if not line.strip():
            return []
        row = json_object(line)
        if isinstance(row, Error):
            return [row]
        events: list[Event] = []
        thinking, answer = self.answer(row)
        if thinking or answer:
            # A line is one piece of text, also the one that ends the thinking and begins the answer.
            events.append(Token(thinking + answer, thinking=not answer))
        if row.get("done") is True:
            events += [_usage(row), Done(text(row, "done_reason"))]
        return events


def common_body(ask: Ask) -> dict[str, object]:
    """Return what requests to /api/generate and /api/chat share.

    The temperature keeps a small model out of a loop: Ollama ends an answer that repeats one token 30 times.
    """
    body: dict[str, object] = {
        "model": ask.model,
        "stream": True,
        "options": {"temperature": 0.8, "seed": 1, "num_predict": ask.max_tokens},
    }
    return body if ask.keep_alive is None else body | {"keep_alive": ask.keep_alive}


def _usage(row: Mapping[str, object]) -> Usage:
    return Usage(
        prompt_tokens=count(row, "prompt_eval_count"),
        cached_tokens=count(row, "prompt_eval_cached_count"),
        output_tokens=count(row, "eval_count"),
        load_s=seconds(row, "load_duration", NANOSECOND),
        prefill_s=seconds(row, "prompt_eval_duration", NANOSECOND),
        decode_s=seconds(row, "eval_duration", NANOSECOND),
    )
