"""A metrics page in Prometheus's text format, byte for byte as prometheus_client writes one with `_created` series.

The library itself knows only for a whole process whether it writes them, and the demonstration's exporter, which
does not, shares the process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Literal

from prometheus_client.utils import floatToGoString

Kind = Literal["counter", "gauge", "histogram", "summary"]


class Child:
    """One series, or those of one histogram or summary: `total` is its value or sum, `counts` are by bucket."""

    __slots__ = ("_bounds", "_created", "_names", "_of_created", "counts", "total")

    def __init__(
        self, name: str, kind: Kind, labels: Mapping[str, str], bounds: tuple[float, ...], created: float
    ) -> None:
        self.total = 0.0
        self.counts = [0] * (len(bounds) + 1)
        self._bounds = bounds
        self._created = number(created)
        self._of_created = _series(f"{name}_created", labels)
        if kind in ("counter", "gauge"):
            self._names = [_series(f"{name}_total" if kind == "counter" else name, labels)]
        else:
            les = [*map(number, bounds), "+Inf"] if kind == "histogram" else []
            self._names = [_series(f"{name}_bucket", {**labels, "le": le}) for le in les]
            self._names += [_series(f"{name}_count", labels), _series(f"{name}_sum", labels)]

    def add(self, amount: float) -> None:
        """Increase a counter."""
        self.total += amount

    def set(self, value: float) -> None:
        """Set a gauge."""
        self.total = value

    def observe(self, amount: float) -> None:
        """Count an observation of a histogram or summary."""
        self.total += amount
        self.counts[bisect_left(self._bounds, amount)] += 1

    def lines(self) -> list[str]:
        """Return its lines, without those of its creation."""
        if len(self._names) == 1:
            return [self._names[0] + number(self.total)]
        running, values = 0, []
        for count in self.counts:
            running += count
            values.append(number(running))
        if len(self._names) == 2:  # a summary has no buckets
            values = []
        return [a + b for a, b in zip(self._names, [*values, number(running), number(self.total)], strict=True)]

    def created_line(self) -> str:
        """Return the line that says when it was made."""
        return self._of_created + self._created


class Metric:
    """One family; `now` gives the Unix time that its series are made at, None if the page does not say."""

    def __init__(
        self, name: str, kind: Kind, text: str, now: Callable[[], float] | None, bounds: tuple[float, ...] = ()
    ) -> None:
        self._name = name
        self._kind = kind
        self._text = text
        self._now = now
        self._bounds = bounds
        self._children: dict[tuple[str, ...], Child] = {}

    def labels(self, labels: Mapping[str, str]) -> Child:
        """Return the series with these labels, made at the first call; all of a family have the same names."""
        key = tuple(labels.values())
        if key not in self._children:
            created = self._now() if self._now is not None else 0.0
            self._children[key] = Child(self._name, self._kind, labels, self._bounds, created)
        return self._children[key]

    def render(self, samples: bool = True) -> str:
        """Return its block of the page; without `samples` only what names it."""
        name = f"{self._name}_total" if self._kind == "counter" else self._name
        lines = [f"# HELP {name} {self._text}", f"# TYPE {name} {self._kind}"]
        if samples:
            children = list(self._children.values())
            for child in children:
                lines += child.lines()
            if self._now is not None and self._kind != "gauge" and children:
                lines += [f"# HELP {self._name}_created {self._text}", f"# TYPE {self._name}_created gauge"]
                lines += [child.created_line() for child in children]
        return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """Return a value as it is written on a page."""
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]  # the library has no types here


def _series(name: str, labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{label}="{_escaped(labels[label])}"' for label in sorted(labels))
    return f"{name}{{{inside}}} " if inside else f"{name} "


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
