"""POST /v1/completions as OpenAI defined it and vLLM, llama.cpp, SGLang and Ollama serve it: server-sent events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from exporter.probe.dialects.lines import MILLISECOND, Lines, count, json_object, mapping, reported, seconds, text
from exporter.probe.events import Ask, Done, Error, Event, Token, Usage

END = b"[DONE]"


class OpenAICompletions:
    """Reads the events; lines and characters may be split between reads."""

    path = "/v1/completions"

    def __init__(self) -> None:
        self._lines = Lines()
        self._data: list[bytes] = []
        self._usage = Usage()
        self._reason = ""

    def body(self, ask: Ask) -> dict[str, object]:
        """Return the request."""
        return {"prompt": ask.prompt, **common_body(ask)}

    def answer(self, choice: Mapping[str, object]) -> tuple[str, str]:
        """Return a choice's thinking and its answer."""
        return "", text(choice, "text")

    def feed(self, data: bytes) -> list[Event]:
        """Return what the events say that these bytes complete."""
        try:
            lines = self._lines.feed(data)
        except ValueError as error:
            return [Error(str(error), malformed=True)]
        return [event for line in lines for event in self._line(line)]

    def finish(self) -> list[Event]:
        """Return what the last event says where it lacks its blank line."""
        return [event for line in (*self._lines.finish(), b"") for event in self._line(line)]

    def _line(self, line: bytes) -> list[Event]:
        """Take in a line (WHATWG, server-sent events): a blank one ends an event, which is nothing without data."""
        line = line.removesuffix(b"\r")
        name, _, value = line.partition(b":")
        if line:
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            elif name == b"error":  # llama.cpp up to 2025
                row = json_object(value)
                return [row if isinstance(row, Error) else reported(row)]
            elif name not in (b"", b"event", b"id", b"retry"):
                return [self._no_event(line)]
            return []
        data, self._data = b"\n".join(self._data), []
        return self._event(data) if data else []

    def _no_event(self, line: bytes) -> Error:
        """Read a bare line: some servers answer 200 and a plain JSON error; anything else is another protocol."""
        row = json_object(line)
        if isinstance(row, Error):
            return row
        return Error(f"no server-sent event: {line[:80].decode(errors='replace')}", malformed=True)

    def _event(self, data: bytes) -> list[Event]:
        if data.strip() == END:
            return [self._usage, Done(self._reason)]
        row = json_object(data)
        if isinstance(row, Error):
            return [row]
        # The usage may come with choices, without any, or with zeros before the end.
        self._usage = _merge(self._usage, row)
        choices = row.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        self._reason = text(choice, "finish_reason") or self._reason
        thinking, answer = self.answer(choice)
        return [Token(thinking + answer, thinking=not answer)] if thinking or answer else []


def common_body(ask: Ask) -> dict[str, object]:
    """Return what requests to both endpoints share; the usage comes with a last event only where it is asked for."""
    body: dict[str, object] = {"model": ask.model, "max_tokens": ask.max_tokens, "stream": True, "temperature": 0.8}
    return {**body, "stream_options": {"include_usage": True}, **ask.extras}


def _merge(known: Usage, row: Mapping[str, object]) -> Usage:
    """Return the usage with what an event adds: OpenAI's `usage`, llama.cpp's `timings`, vLLM's `metrics`.

    llama.cpp: prompt_n are the tokens computed and cache_n those that were not; predicted_ms is the time after
    the first token.  vLLM (with --enable-per-request-metrics): time_to_first_token_ms runs from scheduling.
    """
    usage, timings, metrics = mapping(row, "usage"), mapping(row, "timings"), mapping(row, "metrics")
    if timings:
        computed, cached = count(timings, "prompt_n"), count(timings, "cache_n")
        known = replace(
            known,
            prompt_tokens=None if computed is None else computed + (cached or 0),
            cached_tokens=cached,
            output_tokens=count(timings, "predicted_n"),
            prefill_s=seconds(timings, "prompt_ms", MILLISECOND),
            decode_s=seconds(timings, "predicted_ms", MILLISECOND),
        )
    if metrics:
        known = replace(
            known,
            prefill_s=seconds(metrics, "time_to_first_token_ms", MILLISECOND),
            decode_s=seconds(metrics, "generation_time_ms", MILLISECOND),
        )
    if count(usage, "completion_tokens"):
        cached = count(mapping(usage, "prompt_tokens_details"), "cached_tokens")
        known = replace(
            known,
            prompt_tokens=count(usage, "prompt_tokens"),
            cached_tokens=known.cached_tokens if cached is None else cached,
            output_tokens=count(usage, "completion_tokens"),
        )
    return known
