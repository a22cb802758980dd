"""The table of dialects that probes speak: one file for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from exporter.probe.dialects.ollama_generate import OllamaGenerate
from exporter.probe.events import Dialect

DIALECTS: Mapping[str, Callable[[], Dialect]] = {
    "ollama_generate": OllamaGenerate,
}
