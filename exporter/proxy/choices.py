"""OpenAI's streams as a watcher reads them, who does not know of how many choices they are.

There are several where n > 1, or where several prompts were sent; their tokens come between each other.
"""

from __future__ import annotations

from collections.abc import Mapping

from exporter.probe.dialects.openai_chat import OpenAIChat
from exporter.probe.dialects.openai_completions import OpenAICompletions


class Choices:
    """`several` is true once more than one choice is known of."""

    several = False


class ChoicesOfCompletions(OpenAICompletions, Choices):
    """Reads the events, and looks for a second choice."""

    def answer(self, choice: Mapping[str, object]) -> tuple[str, str]:
        """Return a choice's thinking and its answer."""
        if choice.get("index"):
            self.several = True
        return super().answer(choice)


class ChoicesOfChat(OpenAIChat, Choices):
    """Reads the events, and looks for a second choice."""

    def answer(self, choice: Mapping[str, object]) -> tuple[str, str]:
        """Return a choice's thinking and its answer."""
        if choice.get("index"):
            self.several = True
        return super().answer(choice)
