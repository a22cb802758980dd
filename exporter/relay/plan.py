"""Decides which series of a page feed which of our series; made once per set of series, used for every page.

A plan is positional: it says which values it wants (slots, numbered by the page's reader), and given them in
that order it yields the values to write out and the text around them.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from exporter.backends import Backend, Feed, Merge, Row
from exporter.catalogue import bound_text, render_labels
from exporter.model import Sample

Labels = tuple[tuple[str, str], ...]

DECIMAL = "0123456789.eE+-"
"""The characters of an ordinary value; with finite floats they make text that may be passed on as it is."""


@dataclass(frozen=True, slots=True)
class Series:
    """One mapped series of a page; `feed` is None for the engine's cache configuration."""

    feed: Feed | None
    labels: Mapping[str, str]

    @property
    def model(self) -> str:
        """The model's name, "" where the engine gives none."""
        return self.labels.get("model_name", "")

    @property
    def engine(self) -> str:
        """The data-parallel rank; engines before 0.8.3 have one and do not name it."""
        return self.labels.get("engine", "0")


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


class Plan:
    """What to do with a page that has exactly the series this was made for.

    `wanted`: slots in the order in which the values are to be given.  `sources`: (family, engine's name).
    `dropped`: series withheld for what they are rather than for their value, by reason.
    """

    def __init__(
        self,
        backend: str,
        target: str,
        outputs: Iterable[Output],
        sources: tuple[tuple[str, str], ...],
        dropped: Mapping[str, int],
    ) -> None:
        self.outputs = tuple(outputs)
        self.sources = sources
        self.dropped = dropped
        passed = [output for output in self.outputs if isinstance(output.value, int)]
        self._computed = [output.value for output in self.outputs if isinstance(output.value, Computed)]
        self._ordered = [*passed, *(output for output in self.outputs if isinstance(output.value, Computed))]
        self._passed = len(passed)
        self.wanted: list[int] = [output.value for output in passed if isinstance(output.value, int)]
        for computed in self._computed:
            self.wanted.extend(computed.slots())
        self._parts = list(_parts(backend, target, self._ordered))
        constants = [output for output in self.outputs if isinstance(output.value, str)]
        self._constants = [(output, str(output.value)) for output in constants]
        self._parts += [
            Part(output.family, _line(backend, target, output, text), 0, 0) for output, text in self._constants
        ]
        self._histograms = list(_histograms(self._ordered))

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

    def blocks(self, out: Sequence[str]) -> dict[str, str]:
        """Return the text lines by family."""
        blocks: dict[str, str] = {}
        for part in self._parts:
            text = part.template % tuple(out[part.start : part.stop])
            blocks[part.family] = blocks[part.family] + text if part.family in blocks else text
        return blocks

    def samples(self, out: Sequence[str]) -> list[Sample]:
        """Return the outputs as samples."""
        pairs = [*zip(self._ordered, out, strict=True), *self._constants]
        return [Sample(output.family, output.name, output.labels, text) for output, text in pairs]

    def _slots_of(self, histogram: Histogram) -> Iterator[int]:
        for output in self._ordered[histogram.start : histogram.count + 1]:
            if isinstance(output.value, int):
                yield output.value
            elif isinstance(output.value, Computed):
                yield from output.value.slots()


def _line(backend: str, target: str, output: Output, value: str) -> str:
    labels = render_labels((("target", target), ("backend", backend), *output.labels))
    return f"{output.name}{{{labels}}}".replace("%", "%%") + f" {value}\n"


def _parts(backend: str, target: str, outputs: Sequence[Output]) -> Iterator[Part]:
    start = 0
    for stop, output in enumerate(outputs, 1):
        if stop == len(outputs) or outputs[stop].family != output.family:
            lines = "".join(_line(backend, target, line, "%s") for line in outputs[start:stop])
            yield Part(output.family, lines, start, stop)
            start = stop


def _histograms(outputs: Sequence[Output]) -> Iterator[Histogram]:
    start = infinite = -1
    for at, output in enumerate(outputs):
        if output.name == output.family + "_bucket":
            start = at if start < 0 else start
            infinite = at
        elif output.name == output.family + "_count":
            yield Histogram(start, infinite, at)
            start = -1


class Planner:
    """Makes the plan for one set of series of one target's page."""

    def __init__(self, backend: Backend, target: str, series: Mapping[int, Series], units: Mapping[str, str]) -> None:
        """Take the series by slot; `units` says what HELP calls the unit of a source that has changed it."""
        self._backend = backend
        self._target = target
        self._series = series
        self._units = units
        self._configs = [item for item in series.values() if item.feed is None]
        self._dropped: dict[str, int] = defaultdict(int)
        self._sources: dict[tuple[str, str], None] = {}

    def plan(self) -> Plan:
        """Apply the backend's table."""
        rows: dict[str, dict[tuple[str, str], list[int]]] = defaultdict(lambda: defaultdict(list))
        for slot, item in self._series.items():
            if item.feed is not None:
                rows[item.feed.row.family][item.model, item.engine].append(slot)
        outputs: list[Output] = []
        for row in self._backend.rows:
            for (model, engine), slots in rows[row.family].items():
                outputs += self._outputs(row, (("model", model), ("engine", engine)), slots)
        outputs += self._capacity()
        return Plan(self._backend.name, self._target, outputs, tuple(self._sources), dict(self._dropped))

    def _feed(self, slot: int) -> Feed:
        feed = self._series[slot].feed
        assert feed is not None
        return feed

    def _outputs(self, row: Row, labels: Labels, slots: list[int]) -> list[Output]:
        best = min(self._feed(slot).rank for slot in slots)
        slots = [slot for slot in slots if self._feed(slot).rank == best]
        source = self._feed(slots[0]).source
        factor = 1.0
        if source.unit == "blocks":
            unit = self._units.get(source.name)
            size = self._number(self._config(labels[1][1]), "block_size") if unit == "blocks" else None
            if unit is None or (unit == "blocks" and size is None):
                self._dropped["unit"] += len(slots)
                return []
            factor = size if size is not None else 1.0
        self._sources[row.family, source.name] = None
        if row.where:
            slots = [slot for slot in slots if self._series[slot].labels.get(row.where[0]) == row.where[1]]
        if row.type == "histogram":
            return self._histogram(row, labels, slots)
        groups: dict[Labels, list[int]] = defaultdict(list)
        for slot in slots:
            own = self._series[slot].labels
            groups[tuple((ours, own.get(theirs, "")) for theirs, ours in row.labels)].append(slot)
        merge = row.merge if row.type == "gauge" else "sum"
        return [
            Output(row.family, row.family, labels + extra, self._value(group, merge, factor, row.invert))
            for extra, group in groups.items()
        ]

    def _value(self, slots: list[int], merge: Merge, factor: float = 1.0, invert: bool = False) -> int | Computed:
        if len(slots) == 1 and factor == 1.0 and not invert:
            return slots[0]
        # The same gauge seen by several API servers differs only in `pid`; so do not add those up.
        by_process: dict[Labels, list[int]] = defaultdict(list)
        for slot in slots:
            rest = {name: value for name, value in self._series[slot].labels.items() if name != "pid"}
            gauge = self._feed(slot).row.type == "gauge"
            by_process[tuple(rest.items()) if gauge else (("", str(slot)),)].append(slot)
        return Computed(tuple(map(tuple, by_process.values())), merge, factor, invert)

    def _histogram(self, row: Row, labels: Labels, slots: list[int]) -> list[Output]:
        parts: dict[tuple[str, float], list[int]] = defaultdict(list)
        for slot in slots:
            suffix = self._feed(slot).suffix
            bound = float(self._series[slot].labels["le"]) if suffix == "_bucket" else 0.0
            parts[suffix, bound].append(slot)
        count, infinite = parts.pop(("_count", 0.0), None), parts.pop(("_bucket", math.inf), None)
        total = parts.pop(("_sum", 0.0), None)
        # Each of +Inf and count is defined as the other, so either serves for both.
        count, infinite = count or infinite, infinite or count
        if count is None or infinite is None:
            self._dropped["inconsistent_histogram"] += 1
            return []
        # Where several series are merged, only bounds that all of them have can be added up exactly.
        bounds = sorted((bound, bucket) for (suffix, bound), bucket in parts.items() if len(bucket) == len(infinite))
        series: list[tuple[str, Labels, list[int]]] = [
            ("_bucket", (("le", bound_text(bound)),), bucket) for bound, bucket in bounds
        ]
        series.append(("_bucket", (("le", bound_text(math.inf)),), infinite))
        if total is not None and len(total) == len(count):
            series.append(("_sum", (), total))
        series.append(("_count", (), count))
        return [
            Output(row.family, row.family + suffix, labels + le, self._value(group, "sum"))
            for suffix, le, group in series
        ]

    def _config(self, engine: str) -> Mapping[str, str]:
        return next((item.labels for item in self._configs if item.engine == engine), {})

    @staticmethod
    def _number(labels: Mapping[str, str], name: str) -> float | None:
        text = labels.get(name, "")
        return float(text) if text.isascii() and text.isdigit() else None

    def _capacity(self) -> Iterator[Output]:
        """Yield each engine's KV capacity in tokens; the configuration carries no model name, so it is looked up."""
        engines = {item.engine: item.labels for item in self._configs}
        for engine, config in engines.items():
            models = {item.model for item in self._series.values() if item.feed and item.engine == engine}
            model = models.pop() if len(models) == 1 else ""
            tokens = self._number(config, "kv_cache_size_tokens")
            blocks, size = self._number(config, "num_gpu_blocks"), self._number(config, "block_size")
            if tokens is None and blocks is not None and size is not None:
                # num_gpu_blocks is the sum over the data-parallel engines, and each of them reports the sum.
                tokens = blocks * size / len(engines)
            if tokens is not None:
                labels = (("model", model), ("engine", engine))
                yield Output("vitals_kv_cache_capacity_tokens", "vitals_kv_cache_capacity_tokens", labels, repr(tokens))
