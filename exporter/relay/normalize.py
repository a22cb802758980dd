"""Turns an engine's page into our families.

`normalize` is a pure function of the page.  `PageReader` gives the same answers faster: between two pages of
one server all but the values stays the same, so the text before each value is looked up, not parsed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from exporter.backends import Backend
from exporter.model import Outcome, Readings, Report, Sample
from exporter.relay.layout import Layout, Part, blocks
from exporter.relay.line import NUMBER
from exporter.relay.memory import MAX_LINES, BadLineError, Ignored, Memory, Shape

SHOWN_BAD_LINES = 20
"""How many bad lines a report keeps, each cut to 200 characters; all are counted."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a page said."""

    outcome: Outcome
    readings: Readings | None = None
    report: Report = field(default_factory=Report)
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PageReadings:
    """The readings of one page: its layout, the text around the values, and the values' texts."""

    layout: Layout
    parts: tuple[Part, ...]
    out: Sequence[str]

    def blocks(self) -> Mapping[str, str]:
        """Return the finished text lines by family."""
        return blocks(self.parts, self.out)

    def samples(self) -> Sequence[Sample]:
        """Return the same as samples."""
        return self.layout.samples(self.out)


def normalize(text: str, backend: Backend, target: str) -> Page:
    """Read one page, without memory."""
    return PageReader(backend, target, Memory(backend)).read(text)


class PageReader:
    """Reads the pages of one target; the memory is shared by all targets of an engine."""

    def __init__(self, backend: Backend, target: str, memory: Memory) -> None:
        self._backend = backend
        self._target = target
        self._memory = memory
        self._shape: Shape | None = None
        self._parts: tuple[Part, ...] = ()

    def read(self, text: str) -> Page:
        """Read a page; never raises for what is on it."""
        if text.startswith("\ufeff"):
            text = text[1:]
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        lines = text.rstrip("\n").split("\n")
        return self._read_known(lines) or self._read_carefully(text, lines)

    def _read_known(self, lines: list[str]) -> Page | None:
        """Read a page that differs in values alone from one met before, of this target or another; else None."""
        cut = [line.rpartition(" ") for line in lines]
        keys = [piece[0] for piece in cut]
        shape = next((shape for shape in self._known_shapes() if keys == shape.keys), None)
        if shape is None or [lines[at] for at in shape.others_at] != shape.others:
            return None
        try:
            out, infinite, broken = shape.layout.fill([cut[at][2] for at in shape.wanted_at])
        except ValueError:
            return None
        if infinite or broken or not all(NUMBER.fullmatch(cut[at][2]) for at in shape.unwanted_at):
            return None
        self._take(shape)
        return Page(Outcome.OK, PageReadings(shape.layout, self._parts, out), shape.report)

    def _known_shapes(self) -> Iterator[Shape]:
        if self._shape is not None:
            yield self._shape
        yield from self._memory.shapes

    def _take(self, shape: Shape) -> None:
        if shape is not self._shape:
            self._shape = shape
            self._parts = shape.layout.parts(self._backend.name, self._target)

    def _read_carefully(self, text: str, lines: list[str]) -> Page:
        if not text.strip():
            return Page(Outcome.EMPTY, detail="the page is empty")
        if kind := _other_format(text):
            return Page(Outcome.NOT_METRICS, detail=f"the page is {kind}, not metrics; check url and metrics_path")
        memory = self._memory
        if len(lines) > MAX_LINES:
            detail = f"the page has more than {MAX_LINES} lines; check url and metrics_path"
            return Page(Outcome.TOO_LARGE, detail=detail)
        memory.make_room(line.rpartition(" ")[0] for line in lines)
        units: dict[str, str] = {}
        present: dict[int, str] = {}
        ignored: set[int] = set()
        bad: list[str] = []
        dropped: dict[str, int] = defaultdict(int)
        for line in lines:
            key, _, value = line.rpartition(" ")
            slot = memory.slots.get(key)
            try:
                if slot is None or not (NUMBER.fullmatch(value) or line.startswith("#")):
                    slot, value = memory.learn(line, key, units)
            except BadLineError as error:
                bad.append(f"{line[:200]} ({error})")
                if error.ours:
                    ignored.add(memory.skip(Ignored(engine=True)))
                continue
            if slot < 0:
                ignored.add(slot)
            elif slot in present:
                dropped["duplicate"] += 1
            else:
                present[slot] = value
        skipped = [memory.ignored[-1 - slot] for slot in ignored]
        if not present and not any(item.metrics for item in skipped):
            return Page(Outcome.NOT_METRICS, detail="the page holds no metrics; check url and metrics_path")
        report = Report(
            unmapped=tuple(sorted({item.family for item in skipped if item.family})),
            unknown=tuple(sorted({item.family for item in skipped if item.engine and not item.known})),
            bad_lines=tuple(bad[:SHOWN_BAD_LINES]),
            bad_line_count=len(bad),
        )
        if router := next((item.router for item in skipped if item.router), ""):
            detail = f"this is {router}, not an engine: give the URLs of the servers behind it as targets"
            return Page(Outcome.NO_LLM_METRICS, report=report, detail=detail)
        if not present and not any(item.engine for item in skipped):
            detail = f"a metrics page without any of {self._backend.name}'s families: {self._backend.silent}"
            return Page(Outcome.NO_LLM_METRICS, report=report, detail=detail)
        return self._laid_out(lines, present, units, dropped, report)

    def _laid_out(
        self, lines: list[str], present: dict[int, str], units: dict[str, str], dropped: dict[str, int], report: Report
    ) -> Page:
        clean = not dropped and not report.bad_line_count
        order = list(present)
        while True:
            layout = self._memory.layout(frozenset(present), units)
            out, infinite, broken = layout.fill([present[slot] for slot in layout.wanted])
            if not infinite and not broken:
                break
            clean = False
            dropped["not_finite"] += len(infinite)
            dropped["inconsistent_histogram"] += len(broken)
            for slot in infinite | broken:
                del present[slot]
        for reason, count in layout.dropped.items():
            dropped[reason] += count
        dropped = {reason: count for reason, count in dropped.items() if count}
        report = replace(report, sources=layout.sources, dropped=dropped)
        shape = self._shape_of(lines, order, layout, report) if clean else None
        if shape is not None:
            self._memory.add_shape(shape)
            self._take(shape)
        parts = self._parts if shape is not None else layout.parts(self._backend.name, self._target)
        return Page(Outcome.OK, PageReadings(layout, parts, out), report)

    def _shape_of(self, lines: list[str], order: list[int], layout: Layout, report: Report) -> Shape | None:
        """Return a page's shape; None if a series stands on a line with more than a value, such as a timestamp."""
        keys = [line.rpartition(" ")[0] for line in lines]
        slots = [self._memory.slots.get(key) for key in keys]
        at = {slot: number for number, slot in enumerate(slots) if slot is not None and slot >= 0}
        if list(at) != order:
            return None
        others_at = [number for number, slot in enumerate(slots) if slot is None]
        unwanted = at.keys() - set(layout.wanted)
        return Shape(
            keys,
            [lines[number] for number in others_at],
            others_at,
            [at[slot] for slot in layout.wanted],
            sorted(at[slot] for slot in unwanted),
            layout,
            report,
        )


def _other_format(text: str) -> str:
    start = text.lstrip()[:1]
    if start == "<":
        return "HTML or XML"
    if start in "{[":
        try:
            json.loads(text)
        except ValueError:
            return ""
        except RecursionError:  # So deep a nesting is no line of a metrics page.
            pass
        return "JSON"
    return ""
