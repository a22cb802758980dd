"""The causes that a verdict can name, causes.yml: what they mean, their evidence, and what to change."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

import yaml


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause; `change` has by engine (vllm, ollama) what to change first, second and third."""

    name: str
    title: str
    feels: str
    means: str
    evidence: tuple[str, ...]
    change: Mapping[str, tuple[str, ...]]
    leave: str

    def advice(self, backend: str) -> tuple[str, ...]:
        """Return what to change; an engine without advice of its own gets vLLM's, whose terms others follow."""
        return self.change.get(backend, self.change["vllm"])


@functools.cache
def causes() -> Mapping[str, Cause]:
    """Return the causes by name, in the file's order."""
    text = resources.files(__package__).joinpath("causes.yml").read_text(encoding="utf-8")
    return {
        name: Cause(
            name,
            row["title"],
            row["feels"],
            row["means"],
            tuple(row["evidence"]),
            {backend: tuple(steps) for backend, steps in row["change"].items()},
            row["leave"],
        )
        for name, row in yaml.safe_load(text).items()
    }


def markdown() -> str:
    """Return docs/causes.md."""
    out = [
        "# Causes",
        "",
        "Why a server is as it is, as `vitals_verdict` and `llm-vitals explain` name it, and what to change first,",
        "second and third.  Generated from `exporter/physics/causes.yml` by `make docs`; a test keeps the two equal.",
        "The verdict is the first of these causes whose evidence is seen.",
    ]
    for cause in causes().values():
        out += ["", f"## {cause.name}", "", f"{cause.title[0].upper()}{cause.title[1:]}.", ""]
        out += [f"**Felt.** {cause.feels}", "", f"**Means.** {cause.means}", "", "**Evidence.**", ""]
        out += [f"- {sentence}" for sentence in cause.evidence]
        for backend, title in (("vllm", "vLLM"), ("ollama", "Ollama")):
            out += ["", f"**{title}.**", "", *(f"{n}. {step}" for n, step in enumerate(cause.change[backend], 1))]
        out += ["", f"**Leave.** {cause.leave}"]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")  # noqa: T201
