"""Writes what was read as text for Prometheus: each family once, with the lines of every target under it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from exporter.catalogue import BY_NAME, FAMILIES, Family, header, render_labels
from exporter.model import Sample

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def render(target: str, backend: str, samples: Iterable[Sample]) -> dict[str, str]:
    """Return the text lines of samples by family, with `target` and `backend` before their own labels.

    Raises KeyError for a family that is not in the catalogue.
    """
    blocks: dict[str, str] = {}
    for sample in samples:
        own = (("target", target), ("backend", backend)) if BY_NAME[sample.family].per_target else ()
        line = f"{sample.name}{{{render_labels((*own, *sample.labels))}}} {sample.text}\n"
        blocks[sample.family] = blocks.get(sample.family, "") + line
    return blocks


class SampleReadings:
    """Readings that were made as samples, not from an engine's metrics page."""

    def __init__(self, target: str, backend: str, samples: Sequence[Sample]) -> None:
        self._target = target
        self._backend = backend
        self._samples = samples

    @cached_property
    def _blocks(self) -> dict[str, str]:
        return render(self._target, self._backend, self._samples)

    def blocks(self) -> Mapping[str, str]:
        """Return the finished text lines by family."""
        return self._blocks

    def samples(self) -> Sequence[Sample]:
        """Return the samples."""
        return self._samples


def exposition(
    blocks: Sequence[Mapping[str, str]], openmetrics: bool, names: frozenset[str] | None = None
) -> Iterator[str]:
    """Yield one piece of text a family, in the catalogue's order, with every target's lines under one HELP.

    `names`: only these families or sample names (Prometheus's `name[]`); None for all.
    """
    for family in FAMILIES:
        prefixes = _prefixes(family, names)
        lines = "".join([mine[family.name] for mine in blocks if family.name in mine]) if prefixes else ""
        if names is not None:
            # Only a line feed ends a line; splitlines() would also cut where a label has another line separator.
            lines = "".join(f"{line}\n" for line in lines.split("\n") if line.startswith(prefixes))
        if lines:
            yield header(family, openmetrics) + lines


def _prefixes(family: Family, names: frozenset[str] | None) -> tuple[str, ...]:
    """Return what the lines of a family that are wanted begin with; nothing if none is."""
    if names is None or family.name in names:
        return (family.name,)
    return tuple(name + "{" for name in family.sample_names if name in names)
