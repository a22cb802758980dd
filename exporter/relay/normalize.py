"""Turns an engine's page into our families.

`normalize` is a pure function of the page.  `PageReader` gives the same answers faster: between two pages of
one server all but the values stays the same, so the text before each value is looked up, not parsed.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from exporter.backends import Backend, Feed
from exporter.catalogue import bound_text
from exporter.model import Outcome, Readings, Report, Sample
from exporter.relay.line import NUMBER, parse_comment, parse_line, parse_name
from exporter.relay.plan import Plan, Planner, Series

SHOWN_BAD_LINES = 20
"""How many bad lines a report keeps, each cut to 200 characters; all are counted."""

MAX_PLANS = 8
"""Plans kept per target, so that a value that is now and then NaN does not cost a new plan each time."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a page said."""

    outcome: Outcome
    readings: Readings | None = None
    report: Report = field(default_factory=Report)
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PlannedReadings:
    """The readings of one page: a plan and the texts of its outputs."""

    plan: Plan
    out: Sequence[str]

    def blocks(self) -> Mapping[str, str]:
        """Return the finished text lines by family."""
        return self.plan.blocks(self.out)

    def samples(self) -> Sequence[Sample]:
        """Return the same as samples."""
        return self.plan.samples(self.out)


@dataclass(frozen=True, slots=True)
class _Ignored:
    """Lines that are skipped: their family's name on the page ("" for comments), and what is known of it.

    `metrics`: such a line shows that the page is a metrics page at all; `engine`: that it is this engine's.
    """

    family: str = ""
    metrics: bool = True
    engine: bool = False
    known: bool = True
    router: str = ""


_NOTHING = _Ignored(metrics=False)


@dataclass(frozen=True, slots=True)
class _Steady:
    """What a page looked like that went through well, so that the next one can be checked against it."""

    lines: int
    slots: list[int]
    pick: list[int]
    plan: Plan
    page: Page


class _BadLineError(ValueError):
    pass


def normalize(text: str, backend: Backend, target: str) -> Page:
    """Read one page, without memory."""
    return PageReader(backend, target).read(text)


class PageReader:
    """Reads the pages of one target, remembering what it has parsed.

    Slots number what is remembered: from 0 up the series that feed something, below 0 the families that
    are skipped (slot -1 - i is `_ignored[i]`).
    """

    def __init__(self, backend: Backend, target: str) -> None:
        self._backend = backend
        self._target = target
        self._forget()

    def _forget(self) -> None:
        self._slots: dict[str, int] = {}
        self._whole: set[str] = set()
        self._series: list[Series] = []
        self._index: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
        self._ignored: list[_Ignored] = []
        self._ignored_index: dict[_Ignored, int] = {}
        self._units: dict[str, str] = {}
        self._plans: dict[frozenset[int], Plan] = {}
        self._steady: _Steady | None = None

    def read(self, text: str) -> Page:
        """Read a page; never raises for what is on it."""
        if text.startswith("\ufeff"):
            text = text[1:]
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        lines = text.rstrip("\n").split("\n")
        return self._read_steady(lines) or self._read_carefully(text, lines)

    def _read_steady(self, lines: list[str]) -> Page | None:
        """Read a page that differs from the last one in values alone; None if it does not."""
        steady = self._steady
        if steady is None or len(lines) != steady.lines:
            return None
        find, whole = self._slots.get, self._whole
        slots: list[int] = []
        texts: list[str] = []
        for line in lines:
            key, _, text = line.rpartition(" ")
            slot = find(key)
            if slot is None:
                if line not in whole:
                    return None
            elif slot >= 0:
                slots.append(slot)
                texts.append(text)
        if slots != steady.slots:
            return None
        try:
            out, infinite, broken = steady.plan.fill([texts[at] for at in steady.pick])
        except ValueError:
            return None
        if infinite or broken:
            return None
        return replace(steady.page, readings=PlannedReadings(steady.plan, out))

    def _read_carefully(self, text: str, lines: list[str]) -> Page:
        self._steady = None
        if not text.strip():
            return Page(Outcome.EMPTY, detail="the page is empty")
        if kind := _other_format(text):
            return Page(Outcome.NOT_METRICS, detail=f"the page is {kind}, not metrics; check url and metrics_path")
        if len(self._slots) > 4 * len(lines) + 1000:
            self._forget()  # A server that keeps changing its labels must not fill our memory.
        present: dict[int, str] = {}
        ignored: set[int] = set()
        bad: list[str] = []
        dropped: dict[str, int] = defaultdict(int)
        for line in lines:
            key, _, value = line.rpartition(" ")
            slot = self._slots.get(key)
            try:
                if slot is None or (slot >= 0 and not NUMBER.fullmatch(value)):
                    slot, value = self._learn(line, key)
            except _BadLineError as error:
                bad.append(f"{line[:200]} ({error})")
                continue
            if slot < 0:
                ignored.add(slot)
            elif slot in present:
                dropped["duplicate"] += 1
            else:
                present[slot] = value
        skipped = [self._ignored[-1 - slot] for slot in ignored]
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
        return self._planned(lines, present, dropped, report)

    def _planned(self, lines: list[str], present: dict[int, str], dropped: dict[str, int], report: Report) -> Page:
        clean = not dropped and not report.bad_line_count
        order = list(present)
        while True:
            plan = self._plan(frozenset(present))
            out, infinite, broken = plan.fill([present[slot] for slot in plan.wanted])
            if not infinite and not broken:
                break
            clean = False
            dropped["not_finite"] += len(infinite)
            dropped["inconsistent_histogram"] += len({self._histogram_of(slot) for slot in broken})
            for slot in infinite | broken:
                del present[slot]
        for reason, count in plan.dropped.items():
            dropped[reason] += count
        report = replace(
            report, sources=plan.sources, dropped={reason: count for reason, count in dropped.items() if count}
        )
        page = Page(Outcome.OK, PlannedReadings(plan, out), report)
        if clean:
            at = {slot: position for position, slot in enumerate(order)}
            self._steady = _Steady(len(lines), order, [at[slot] for slot in plan.wanted], plan, page)
        return page

    def _histogram_of(self, slot: int) -> tuple[str, str, str]:
        series = self._series[slot]
        return (series.feed.row.family if series.feed else "", series.model, series.engine)

    def _plan(self, present: frozenset[int]) -> Plan:
        plan = self._plans.get(present)
        if plan is None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            series = {slot: self._series[slot] for slot in sorted(present)}
            plan = self._plans[present] = Planner(self._backend, self._target, series, self._units).plan()
        return plan

    def _learn(self, line: str, key: str) -> tuple[int, str]:
        """Parse a line not seen before; remember what may be remembered of it.

        Returns its slot and the text of its value.  Raises _BadLineError if it cannot be read.
        """
        stripped = line.strip(" \t")
        if not stripped:
            self._whole.add(line)
            return self._skip(_NOTHING), ""
        if stripped.startswith("#"):
            return self._learn_comment(line, key), ""
        name = parse_name(line)
        if name is None:
            raise _BadLineError("no metric name")
        base = self._backend.strip(name)
        feed = self._backend.feeds.get(base) if base is not None else None
        mapped = feed is not None or base == self._backend.config_info
        try:
            parsed = parse_line(line) if name else None
        except ValueError as error:
            if mapped:
                raise _BadLineError(str(error)) from None
            # A line that is not ours may hold what it likes, but it does not make the page a metrics page.
            return self._skip(_NOTHING), ""
        slot = self._skip(self._unmapped(name, base))
        if mapped and base is not None and parsed is not None:
            slot = self._number(base, feed, parsed.labels)
        if parsed is None or parsed.plain:
            self._slots[sys.intern(key)] = slot
        return slot, parsed.text if parsed else ""

    def _number(self, base: str, feed: Feed | None, labels: tuple[tuple[str, str], ...]) -> int:
        if feed is not None and feed.suffix == "_bucket":
            labels = _with_float_bound(labels)
        place = (base, labels)
        if place not in self._index:
            self._index[place] = len(self._series)
            self._series.append(Series(feed, dict(labels)))
        return self._index[place]

    def _learn_comment(self, line: str, key: str) -> int:
        comment = parse_comment(line)
        base = self._backend.strip(comment.name) if comment else None
        slot = self._skip(_Ignored(engine=base is not None) if comment else _NOTHING)
        if comment and comment.keyword == "HELP" and base is not None:
            feed = self._backend.feeds.get(base) or self._backend.feeds.get(base + "_total")
            if feed is not None and feed.source.unit:
                unit = "blocks" if "block" in comment.text else "tokens"
                if self._units.get(feed.source.name) != unit:
                    self._units[feed.source.name] = unit
                    self._plans.clear()
                self._whole.add(line)  # Its last word may be the unit, so it is not remembered without it.
                return slot
        self._slots[sys.intern(key)] = slot
        return slot

    def _skip(self, item: _Ignored) -> int:
        if item not in self._ignored_index:
            self._ignored_index[item] = -1 - len(self._ignored)
            self._ignored.append(item)
        return self._ignored_index[item]

    def _unmapped(self, name: str, base: str | None) -> _Ignored:
        if base is None:
            return _Ignored(family=_family(name) or "(quoted name)")
        if base.endswith("_created"):
            return _Ignored(engine=True)
        family = _family(base)
        return _Ignored(
            family=_family(name),
            engine=True,
            known=self._backend.knows(family) or self._backend.knows(base),
            router=self._backend.routers.get(family, ""),
        )


def _family(name: str) -> str:
    for suffix in ("_bucket", "_sum", "_count", "_total", "_created"):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def _with_float_bound(labels: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Write `le` in one spelling; raises _BadLineError where it is none."""
    bound = dict(labels).get("le", "")
    if not NUMBER.fullmatch(bound) or "nan" in bound.lower():
        raise _BadLineError("a bucket without a bound")
    return tuple((name, bound_text(float(value)) if name == "le" else value) for name, value in labels)


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
