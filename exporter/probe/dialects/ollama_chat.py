"""Ollama's POST /api/chat: as /api/generate, but what is said stands in `message`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from exporter.probe.dialects.lines import mapping, text
from exporter.probe.dialects.ollama_generate import OllamaGenerate, common_body
from exporter.probe.events import Ask


class OllamaChat(OllamaGenerate):
    """Reads the stream line by line."""

    path = "/api/chat"

    def body(self, ask: Ask) -> dict[str, object]:
        """Return the request: the prompt is the only message."""
        return {"messages": [{"role": "user", "content": ask.prompt}], **common_body(ask)}

    def answer(self, row: Mapping[str, object]) -> tuple[str, str]:
        """Return a line's thinking and its answer; the call of a tool is an answer too."""
        message = mapping(row, "message")
        calls = message.get("tool_calls")
        return text(message, "thinking"), text(message, "content") + (json.dumps(calls) if calls else "")
