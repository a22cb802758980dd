"""The table of dialects that probes speak: one file for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from exporter.probe.dialects.ollama_chat import OllamaChat
from exporter.probe.dialects.ollama_generate import OllamaGenerate
from exporter.probe.dialects.openai_chat import OpenAIChat
from exporter.probe.dialects.openai_completions import OpenAICompletions
from exporter.probe.events import Dialect

DIALECTS: Mapping[str, Callable[[], Dialect]] = {
    "ollama_generate": OllamaGenerate,
    "ollama_chat": OllamaChat,
    "openai_completions": OpenAICompletions,
    "openai_chat": OpenAIChat,
}
