"""POST /v1/responses, OpenAI's newer API, as far as a watcher reads it: events that name their type."""

from __future__ import annotations

from exporter.probe.dialects.lines import count, json_object, mapping, text
from exporter.probe.dialects.openai_completions import OpenAICompletions
from exporter.probe.events import Done, Error, Event, Token, Usage

_TEXT = frozenset(
    f"response.{kind}.delta"
    for kind in ("output_text", "refusal", "function_call_arguments", "reasoning_text", "reasoning_summary_text")
)


class OpenAIResponses(OpenAICompletions):
    """Reads the events; the last one holds the whole response with its usage."""

    path = "/v1/responses"

    def _event(self, data: bytes) -> list[Event]:
        row = json_object(data)
        if isinstance(row, Error):
            return [row]
        kind, response = text(row, "type"), mapping(row, "response")
        if kind in _TEXT:
            return [Token(text(row, "delta"), thinking="reasoning" in kind)]
        if kind in ("error", "response.failed") or text(response, "status") == "failed":
            return [Error(text(row, "message") or text(mapping(response, "error"), "message"))]
        if kind not in ("response.completed", "response.incomplete"):
            return []
        usage = mapping(response, "usage")
        known = Usage(
            prompt_tokens=count(usage, "input_tokens"),
            cached_tokens=count(mapping(usage, "input_tokens_details"), "cached_tokens"),
            output_tokens=count(usage, "output_tokens"),
        )
        cut = text(mapping(response, "incomplete_details"), "reason") == "max_output_tokens"
        return [known, Done("length" if cut else "stop")]
