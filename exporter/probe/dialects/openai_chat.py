"""POST /v1/chat/completions: as /v1/completions, but what is said stands in `delta`."""

from __future__ import annotations

from collections.abc import Mapping

from exporter.probe.dialects.lines import mapping, text
from exporter.probe.dialects.openai_completions import OpenAICompletions, common_body
from exporter.probe.events import Ask


class OpenAIChat(OpenAICompletions):
    """Reads the events; a first one that only gives the role has no text, and so is no token."""

    path = "/v1/chat/completions"

    def body(self, ask: Ask) -> dict[str, object]:
        """Return the request: the prompt is the only message."""
        return {"messages": [{"role": "user", "content": ask.prompt}], **common_body(ask)}

    def answer(self, choice: Mapping[str, object]) -> tuple[str, str]:
        """Return a choice's thinking (vLLM and Ollama: reasoning; others: reasoning_content) and its answer."""
        delta = mapping(choice, "delta")
        calls = calls if isinstance(calls := delta.get("tool_calls"), list) else ()
        functions = [mapping(call, "function") for call in calls if isinstance(call, dict)]
        arguments = "".join(text(function, "name", "arguments") for function in functions)
        return text(delta, "reasoning") or text(delta, "reasoning_content"), text(delta, "content") + arguments
