"""Decides which series of a page feed which of our series, by the engine's table."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from exporter.backends import Backend, Feed, Merge, Row
from exporter.catalogue import bound_text
from exporter.relay.layout import Computed, Labels, Layout, Output


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


class Planner:
    """Makes the layout for one set of series."""

    def __init__(self, backend: Backend, series: Mapping[int, Series], units: Mapping[str, str]) -> None:
        """Take the series by slot; `units` says what HELP calls the unit of a source that has changed it."""
        self._backend = backend
        self._series = series
        self._units = units
        self._configs = [item for item in series.values() if item.feed is None]
        self._dropped: dict[str, int] = defaultdict(int)
        self._sources: dict[tuple[str, str], None] = {}

    def layout(self) -> Layout:
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
        return Layout(outputs, tuple(self._sources), dict(self._dropped))

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
            self._dropped["inconsistent_histogram"] += len(slots)
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
