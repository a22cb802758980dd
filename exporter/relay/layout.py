"""What to do with the values of a page: made once per set of series, used for every page that has them.

A layout is positional: it says which values it wants (slots, numbered by the page's reader), and given them in
that order it yields the values to write out and the text around them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from exporter.backends import Merge
from exporter.catalogue import render_labels
from exporter.model import Sample

Labels = tuple[tuple[str, str], ...]

PLACE = "{\n"
"""Where a target's own labels go: within a line of the text format there is no line feed, so nothing else looks so."""

DECIMAL = "0123456789.eE+-"
"""The characters of an ordinary value; with finite floats they make text that may be passed on as it is."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A value made of several: the maximum in each group, then sum or maximum of those, times a factor.

    `groups` holds slots.  `invert` reports 1 - value.
    """

    groups: tuple[tuple[int, ...], ...]
    merge: Merge
    factor: float = 1.0
    invert: bool = False

    def slots(self) -> Iterator[int]:
        """Yield the slots in the order in which value() wants their values."""
        for group in self.groups:
            yield from group

    def value(self, values: Sequence[float]) -> float:
        """Compute from the slots' values."""
        at, tops = 0, []
        for group in self.groups:
            tops.append(max(values[at : at + len(group)]))
            at += len(group)
        value = self.factor * (sum(tops) if self.merge == "sum" else max(tops))
        return 1.0 - value if self.invert else value


@dataclass(frozen=True, slots=True)
class Output:
    """One series to write: its name and labels, and where its value comes from."""

    family: str
    name: str
    labels: Labels
    value: int | Computed | str


@dataclass(frozen=True, slots=True)
class Histogram:
    """Where a histogram stands in the plan's outputs: its buckets, the last of them +Inf, and its count."""

    start: int
    infinite: int
    count: int


@dataclass(frozen=True, slots=True)
class Part:
    """The text of consecutive outputs of one family, with `%s` for each value."""

    family: str
    template: str
    start: int
    stop: int


class Layout:
    """What to do with the values of a page that has exactly the series this was made for, whichever target's.

    `wanted`: slots in the order in which the values are to be given.  `sources`: (family, engine's name).
    `dropped`: series withheld for what they are rather than for their value, by reason.
    """

    def __init__(
        self, outputs: Iterable[Output], sources: tuple[tuple[str, str], ...], dropped: Mapping[str, int]
    ) -> None:
        self.sources = sources
        self.dropped = dropped
        outputs = list(outputs)
        passed = [output for output in outputs if isinstance(output.value, int)]
        self._passed = len(passed)
        self._ordered = passed + [output for output in outputs if isinstance(output.value, Computed)]
        self._computed = [output.value for output in outputs if isinstance(output.value, Computed)]
        self._constants = [(output, output.value) for output in outputs if isinstance(output.value, str)]
        self._histograms = list(_histograms(self._ordered))
        self._parts = tuple(self._without_target())
        self.wanted: list[int] = [output.value for output in passed if isinstance(output.value, int)]
        for computed in self._computed:
            self.wanted.extend(computed.slots())

    def fill(self, texts: Sequence[str]) -> tuple[list[str], set[int], set[int]]:
        """Return the outputs' texts, the slots whose value is not finite, and those of inconsistent histograms.

        `texts` are the wanted slots' values.  Where a set is not empty the outputs must not be used.
        Raises ValueError where a text is no number, or none that may be passed on as it is.
        """
        floats = list(map(float, texts))
        if not math.isfinite(sum(floats)) and (
            bad := {slot for slot, value in zip(self.wanted, floats, strict=True) if not math.isfinite(value)}
        ):
            return [], bad, set()
        if "".join(texts).strip(DECIMAL):
            raise ValueError("a value is spelled in a way that Prometheus does not read")
        out = list(texts[: self._passed])
        numbers = floats[: self._passed]
        at = self._passed
        for computed in self._computed:
            width = sum(map(len, computed.groups))
            numbers.append(computed.value(floats[at : at + width]))
            out.append(repr(numbers[-1]))
            at += width
        broken: set[int] = set()
        for histogram in self._histograms:
            buckets = numbers[histogram.start : histogram.infinite + 1]
            if buckets[-1] != numbers[histogram.count] or any(map(operator.gt, buckets, buckets[1:])):
                broken.update(self._slots_of(histogram))
        return out, set(), broken

    def samples(self, out: Sequence[str]) -> list[Sample]:
        """Return the outputs as samples."""
        pairs = [*zip(self._ordered, out, strict=True), *self._constants]
        return [Sample(output.family, output.name, output.labels, text) for output, text in pairs]

    def parts(self, backend: str, target: str) -> tuple[Part, ...]:
        """Return the text around the values, with a target's labels."""
        own = render_labels((("target", target), ("backend", backend))).replace("%", "%%")
        return tuple(replace(part, template=part.template.replace(PLACE, "{" + own)) for part in self._parts)

    def _without_target(self) -> Iterator[Part]:
        start = 0
        for stop, output in enumerate(self._ordered, 1):
            if stop == len(self._ordered) or self._ordered[stop].family != output.family:
                template = "".join(_line(item, "%s") for item in self._ordered[start:stop])
                yield Part(output.family, template, start, stop)
                start = stop
        for output, value in self._constants:
            yield Part(output.family, _line(output, value), 0, 0)

    def _slots_of(self, histogram: Histogram) -> Iterator[int]:
        for output in self._ordered[histogram.start : histogram.count + 1]:
            if isinstance(output.value, int):
                yield output.value
            elif isinstance(output.value, Computed):
                yield from output.value.slots()


def _line(output: Output, value: str) -> str:
    labels = render_labels(output.labels)
    return (output.name + PLACE + ("," if labels else "") + labels + "} ").replace("%", "%%") + value + "\n"


def blocks(parts: Iterable[Part], out: Sequence[str]) -> dict[str, str]:
    """Return the text lines by family: a layout's parts with the outputs' texts in them."""
    lines: dict[str, str] = {}
    for part in parts:
        text = part.template % tuple(out[part.start : part.stop])
        lines[part.family] = lines[part.family] + text if part.family in lines else text
    return lines


def _histograms(outputs: Sequence[Output]) -> Iterator[Histogram]:
    start = infinite = -1
    for at, output in enumerate(outputs):
        if output.name == output.family + "_bucket":
            start = at if start < 0 else start
            infinite = at
        elif output.name == output.family + "_count":
            yield Histogram(start, infinite, at)
            start = -1
