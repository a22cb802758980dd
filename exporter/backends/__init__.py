"""One file per engine, tables only: which of its names feed which of our families, since and until when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from exporter.catalogue import BY_NAME, SUFFIXES, Type

Merge = Literal["sum", "max"]


@dataclass(frozen=True, slots=True)
class Source:
    """One name of the engine that feeds a family.

    `name` is without the engine's prefix.  `since` and `until` are the first and last version that has it
    (`until=""`: still there); they document and are tested, but a page decides by what is on it.
    `unit="blocks"`: where the page's HELP speaks of blocks, the value is multiplied by the block size.
    """

    name: str
    since: str
    until: str = ""
    unit: Literal["", "blocks"] = ""


@dataclass(frozen=True, slots=True)
class Row:
    """How one family is fed: the first source that a (model, engine) has, in the order given; never a sum.

    `labels`: further labels taken over, as (the engine's name, our name).  `merge`: what becomes of gauges
    that differ only in labels that are not taken over, such as Ray's replicas (counters and histograms are
    summed; a gauge that differs only in the `pid` of an API server is one gauge seen twice: the maximum).
    `where`: take only series with this label and value.  `invert`: report 1 - value.
    """

    family: str
    sources: tuple[Source, ...]
    labels: tuple[tuple[str, str], ...] = ()
    merge: Merge = "sum"
    where: tuple[str, str] | None = None
    invert: bool = False

    @property
    def type(self) -> Type:
        """The family's type, from the catalogue."""
        return BY_NAME[self.family].type


@dataclass(frozen=True, slots=True)
class Feed:
    """What one sample name on a page is for: a row of the table, the rank of the source in it, and the part."""

    row: Row
    rank: int
    source: Source
    suffix: str


@dataclass(frozen=True, slots=True)
class Backend:
    """An engine's table.

    `prefixes`: what its names may begin with, the longest first.  `rows`: what is mapped.  `known`: names,
    or beginnings of names that end in `*`, of families that exist and are not mapped.  `config_info`: the
    family whose labels hold the cache's configuration.  `routers`: families of programs that stand in front
    of the engine and speak in its prefix, with the program's name.
    """

    name: str
    prefixes: tuple[str, ...]
    rows: tuple[Row, ...]
    known: tuple[str, ...]
    config_info: str
    routers: Mapping[str, str]
    silent: str
    feeds: Mapping[str, Feed] = field(init=False)

    def __post_init__(self) -> None:
        """Build the look-up from a sample's name to what it feeds."""
        feeds: dict[str, Feed] = {}
        for row in self.rows:
            for rank, source in enumerate(row.sources):
                # A counter is also found without `_total`: that is how code and OpenMetrics metadata name it.
                endings = {"counter": ("_total", "")}.get(row.type, SUFFIXES.get(row.type, ("",)))
                for alias, ending in enumerate(endings):
                    suffix = ending if row.type == "histogram" else ""
                    order = 2 * rank + (alias if row.type == "counter" else 0)
                    feeds[source.name + ending] = Feed(row, order, source, suffix)
        object.__setattr__(self, "feeds", feeds)

    def strip(self, name: str) -> str | None:
        """Return a name without the engine's prefix, or None where it has none."""
        for prefix in self.prefixes:
            if name.startswith(prefix):
                return name[len(prefix) :]
        return None

    def knows(self, base: str) -> bool:
        """Return whether a family, named without prefix, is in the table at all."""
        return (
            base in self.feeds
            or base == self.config_info
            or any(base.startswith(name[:-1]) if name.endswith("*") else base == name for name in self.known)
        )
