"""Turns an engine's page into our families.

`normalize` is a pure function of the page.  `PageReader` gives the same answers faster: between two pages of
one server all but the values stays the same, so the text before each value is looked up, not parsed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from exporter.backends import Backend
from exporter.model import Outcome, Readings, Report, Sample
from exporter.relay.layout import Layout, Part, blocks
from exporter.relay.line import NUMBER
from exporter.relay.memory import BadLineError, Ignored, Memory

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


@dataclass(frozen=True, slots=True)
class _Steady:
    """What a page looked like that went through well, so that the next one can be checked against it.

    `others`: the lines that are not known by what stands before their last blank.  `slots`: the series in the
    page's order, and `pick`: where in that order the values are that the layout wants.
    """

    lines: int
    others: list[str]
    slots: list[int]
    pick: list[int]
    layout: Layout
    parts: tuple[Part, ...]
    page: Page


def normalize(text: str, backend: Backend, target: str) -> Page:
    """Read one page, without memory."""
    return PageReader(backend, target, Memory(backend)).read(text)


class PageReader:
    """Reads the pages of one target; the memory is shared by all targets of an engine."""

    def __init__(self, backend: Backend, target: str, memory: Memory) -> None:
        self._backend = backend
        self._target = target
        self._memory = memory
        self._generation = memory.generation
        self._steady: _Steady | None = None

    def read(self, text: str) -> Page:
        """Read a page; never raises for what is on it."""
        if text.startswith("\ufeff"):
            text = text[1:]
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        lines = text.rstrip("\n").split("\n")
        if self._generation != self._memory.generation:
            self._generation, self._steady = self._memory.generation, None
        return self._read_steady(lines) or self._read_carefully(text, lines)

    def _read_steady(self, lines: list[str]) -> Page | None:
        """Read a page that differs from the last one in values alone; None if it does not."""
        steady = self._steady
        if steady is None or len(lines) != steady.lines:
            return None
        find = self._memory.slots.get
        slots: list[int] = []
        others: list[str] = []
        texts: list[str] = []
        for line in lines:
            key, _, text = line.rpartition(" ")
            slot = find(key)
            if slot is None:
                others.append(line)
            elif slot >= 0:
                slots.append(slot)
                texts.append(text)
        if slots != steady.slots or others != steady.others:
            return None
        try:
            out, infinite, broken = steady.layout.fill([texts[at] for at in steady.pick])
        except ValueError:
            return None
        if infinite or broken:
            return None
        return replace(steady.page, readings=PageReadings(steady.layout, steady.parts, out))

    def _read_carefully(self, text: str, lines: list[str]) -> Page:
        self._steady = None
        if not text.strip():
            return Page(Outcome.EMPTY, detail="the page is empty")
        if kind := _other_format(text):
            return Page(Outcome.NOT_METRICS, detail=f"the page is {kind}, not metrics; check url and metrics_path")
        memory = self._memory
        memory.make_room(len(lines))
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
        parts = layout.parts(self._backend.name, self._target)
        report = replace(report, sources=layout.sources, dropped=dropped)
        page = Page(Outcome.OK, PageReadings(layout, parts, out), report)
        if clean:
            self._remember(lines, order, layout, parts, page)
        return page

    def _remember(
        self, lines: list[str], order: list[int], layout: Layout, parts: tuple[Part, ...], page: Page
    ) -> None:
        found = [(line, self._memory.slots.get(line.rpartition(" ")[0])) for line in lines]
        slots = [slot for _, slot in found if slot is not None and slot >= 0]
        if slots == order:  # Else a series stands on a line that cannot be remembered, such as one with a timestamp.
            others = [line for line, slot in found if slot is None]
            at = {slot: position for position, slot in enumerate(order)}
            pick = [at[slot] for slot in layout.wanted]
            self._steady = _Steady(len(lines), others, order, pick, layout, parts, page)


def _other_format(text: str) -> str:
    start = text.lstrip()[:1]
    if start == "<":
        return "HTML or XML"
    if start in "{[":
        try:
            json.loads(text)
        except ValueError:
            return ""
        return "JSON"
    return ""
