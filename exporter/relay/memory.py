"""What is remembered of an engine's lines, so that a line seen before is looked up and not parsed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from exporter import words
from exporter.backends import Backend, Feed
from exporter.catalogue import bound_text
from exporter.model import Report
from exporter.relay.layout import Layout
from exporter.relay.line import NUMBER, parse_comment, parse_line, parse_name
from exporter.relay.planner import Planner, Series

MAX_LINES = 100_000
"""Lines remembered per engine, about 30 MB; then all is forgotten, so that changing labels cannot fill the memory.

A page of more lines is refused: to learn it anew each time would keep everything else waiting for seconds.
"""

MAX_SIZE = 32 * 2**20
"""Characters of the lines remembered per engine, for those that are long."""

MAX_SHAPES = 16
"""Shapes that a page of unknown shape is compared with: as many kinds of server as a fleet is likely to have."""

MAX_LAYOUTS = 256
"""Layouts kept per engine: one for each set of series that pages have or had."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """Lines that are skipped: their family's name on the page ("" for comments), and what is known of it.

    `metrics`: such a line shows that the page is a metrics page at all; `engine`: that it is this engine's.
    """

    family: str = ""
    metrics: bool = True
    engine: bool = False
    known: bool = True
    router: str = ""


NOTHING = Ignored(metrics=False)


class BadLineError(ValueError):
    """A line that cannot be read; `ours` where its name is one that feeds something."""

    def __init__(self, why: str, ours: bool = True) -> None:
        super().__init__(why)
        self.ours = ours


@dataclass(frozen=True, slots=True)
class Shape:
    """All but the values of a page that was read without a fault; a page of the same shape needs no reading of lines.

    `keys`: what stands before the last blank, line by line.  `others`: lines that are only the same if they
    are so to the end (blank lines, and comments whose last word matters), with their numbers in `others_at`.
    `wanted_at`: the lines whose values the layout wants, in its order; `unwanted_at`: mapped lines that it does not.
    """

    keys: list[str]
    others: list[str]
    others_at: list[int]
    wanted_at: list[int]
    unwanted_at: list[int]
    layout: Layout
    report: Report


class Memory:
    """The lines of one engine's pages, whichever target's: servers of one model have the same.

    Slots number what is remembered: from 0 up the series that feed something (`series`), below 0 the
    families that are skipped (slot -1 - i is `ignored[i]`).  `slots` finds them by what stands before a line's
    last blank.  `shapes`: the last shapes of pages that were met, the newest first.
    """

    def __init__(self, backend: Backend, max_lines: int = MAX_LINES, max_size: int = MAX_SIZE) -> None:
        self._backend = backend
        self._max_lines = max_lines
        self._max_size = max_size
        self._forget()

    def _forget(self) -> None:
        self._size = 0
        self.slots: dict[str, int] = {}
        self.series: list[Series] = []
        self.ignored: list[Ignored] = []
        self.shapes: list[Shape] = []
        self._series_index: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
        self._ignored_index: dict[Ignored, int] = {}
        self._layouts: dict[tuple[frozenset[int], frozenset[tuple[str, str]]], Layout] = {}
        self._families: dict[str, Ignored] = {}

    def make_room(self, keys: Iterable[str]) -> None:
        """Forget everything if what is new of these lines could be too much."""
        new = [len(key) for key in keys if key not in self.slots]
        lines = max(map(len, (self.slots, self.series, self.ignored, self._families)))
        if lines + len(new) > self._max_lines or self._size + sum(new) > self._max_size:
            self._forget()
        self._size += sum(new)

    def add_shape(self, shape: Shape) -> None:
        """Remember a shape, so that another target's page may be found to have it."""
        self.shapes = [shape, *self.shapes[: MAX_SHAPES - 1]]

    def layout(self, present: frozenset[int], units: dict[str, str]) -> Layout:
        """Return the layout for a set of series; `units`: what HELP calls the unit of sources that have changed it."""
        key = (present, frozenset(units.items()))
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            series = {slot: self.series[slot] for slot in sorted(present)}
            layout = self._layouts[key] = Planner(self._backend, series, units).layout()
        return layout

    def learn(self, line: str, key: str, units: dict[str, str]) -> tuple[int, str]:
        """Parse a line not seen before; remember what may be remembered of it, and note a unit that HELP gives.

        Returns its slot and the text of its value.  Raises BadLineError if it cannot be read.
        """
        stripped = line.strip(" \t")
        if not stripped:
            return self.skip(NOTHING), ""
        if stripped.startswith("#"):
            return self._learn_comment(line, key, units), ""
        name = parse_name(line)
        if name is None:
            raise BadLineError("no metric name", ours=False)
        base = self._backend.strip(name)
        feed = self._backend.feeds.get(base) if base is not None else None
        mapped = feed is not None or base == self._backend.config_info
        try:
            parsed = parse_line(line) if name else None
        except ValueError as error:
            if mapped:
                raise BadLineError(str(error)) from None
            # A line that is not ours may hold what it likes, but it does not make the page a metrics page.
            return self.skip(replace(self._unmapped(name, base), metrics=False)), ""
        if mapped and base is not None and parsed is not None:
            slot = self._number(base, feed, parsed.labels)
        else:
            slot = self.skip(self._unmapped(name, base))
        if parsed is None or parsed.plain:
            self.slots[key] = slot
        return slot, parsed.text if parsed else ""

    def _number(self, base: str, feed: Feed | None, labels: tuple[tuple[str, str], ...]) -> int:
        if feed is not None and any(len(value) > words.NAME_LENGTH for _, value in labels):
            raise BadLineError(f"a label longer than {words.NAME_LENGTH} characters")
        if feed is not None and feed.suffix == "_bucket":
            labels = _with_float_bound(labels)
        place = (base, labels)
        if place not in self._series_index:
            self._series_index[place] = len(self.series)
            self.series.append(Series(feed, dict(labels)))
        return self._series_index[place]

    def _learn_comment(self, line: str, key: str, units: dict[str, str]) -> int:
        comment = parse_comment(line)
        base = self._backend.strip(comment.name) if comment else None
        slot = self.skip(Ignored(engine=base is not None) if comment else NOTHING)
        if comment and comment.keyword == "HELP" and base is not None:
            feed = self._backend.feeds.get(base) or self._backend.feeds.get(base + "_total")
            if feed is not None and feed.source.unit:
                # Its last word may be the unit, so it is not remembered without it.
                units[feed.source.name] = "blocks" if "block" in comment.text else "tokens"
                return slot
        self.slots[key] = slot
        return slot

    def skip(self, item: Ignored) -> int:
        """Return the slot of a family that is skipped."""
        if item not in self._ignored_index:
            self._ignored_index[item] = -1 - len(self.ignored)
            self.ignored.append(item)
        return self._ignored_index[item]

    def _unmapped(self, name: str, base: str | None) -> Ignored:
        if name not in self._families:
            self._families[name] = self._look_up(name, base)
        return self._families[name]

    def _look_up(self, name: str, base: str | None) -> Ignored:
        if base is None:
            return Ignored(family=_family(name) or "(quoted name)")
        if base.endswith("_created"):
            return Ignored(engine=True)
        family = _family(base)
        return Ignored(
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
    """Write `le` in one spelling; raises BadLineError where it is none."""
    bound = dict(labels).get("le", "")
    if not NUMBER.fullmatch(bound) or "nan" in bound.lower():
        raise BadLineError("a bucket without a bound")
    return tuple((name, bound_text(float(value)) if name == "le" else value) for name, value in labels)
