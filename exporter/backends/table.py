"""The one list of engines that are read through a metrics page of their own."""

from __future__ import annotations

from exporter.backends import Backend
from exporter.backends.vllm import VLLM

PAGES: dict[str, Backend] = {VLLM.name: VLLM}

RENAMED = frozenset(row.family for backend in PAGES.values() for row in backend.rows if len(row.sources) > 1)
"""Families that have had more than one name; which one is in use is exported."""
