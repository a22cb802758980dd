"""What a verdict is made of, and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exporter.physics.evidence import Past, Stretch
from exporter.physics.facts import Facts
from exporter.physics.probed import Alone, Probed


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause and what was seen of it, a sentence each."""

    cause: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class View:
    """All that a verdict is made of.

    `at`: Unix time.  `down`: why the target gave nothing, "" if it answered.  `now`: the last minute; `past`:
    stretches of the last hour.  `probe`: the last probe.  `probe_tokens`: made for probes in `now`.  `alone`:
    the last probe that was alone on the server.  `loaded_for`: seconds since the model was seen to come
    into memory.  `asleep`: the engine sleeps; `empty`: no model is in memory.
    """

    at: float
    facts: Facts
    now: Stretch | None = None
    past: Sequence[Past] = ()
    probe: Probed | None = None
    probe_tokens: int = 0
    alone: Alone | None = None
    loaded_for: float | None = None
    down: str = ""
    asleep: bool = False
    empty: bool = False

    @property
    def recent_probe(self) -> Probed | None:
        """The last probe if it speaks of now."""
        return self.probe if self.probe is not None and self.at <= self.probe.until else None
