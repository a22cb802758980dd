"""What a verdict is made of, and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exporter.physics import ceiling
from exporter.physics.evidence import Past, Reading, Stretch
from exporter.physics.facts import Bandwidth, Facts
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


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that is known of one model now: the verdict with its evidence, and the figures around it.

    `since`: Unix time from which the cause is held.  `probe`: the last one, if any.  `alone`: the last
    probe that was alone on the server.  `now`: the last minute, None before a second reading.  `down`: as in
    View.
    """

    target: str
    backend: str
    model: str
    at: float
    cause: str
    since: float
    evidence: tuple[str, ...]
    facts: Facts
    bandwidth: Bandwidth
    devices: int
    reading: Reading
    now: Stretch | None
    probe: Probed | None
    alone: Alone | None
    down: str = ""

    @property
    def kv_share(self) -> float | None:
        """The share of a decode step's bytes that are KV, at the present contexts; None where it is not known."""
        now, kv, read = self.now, self.facts.kv, self.facts.read_bytes
        if now is None or kv is None or read is None or not now.running or now.context is None:
            return None
        if read < (self.facts.weight_bytes or read) and now.running > self.reading.engines:
            return None  # The tokens of a batch go through more experts than one does, and how many is not known.
        # Each engine has a copy of the weights, which it reads in each of its steps.
        return ceiling.kv_share(now.running * kv.context_bytes(now.context), read * self.reading.engines)

    @property
    def bandwidth_usage(self) -> float | None:
        """The engine's estimate of bytes read a second over the bandwidth of one device, 0 to 1."""
        if self.now is None or not self.now.read_bytes or self.bandwidth.device is None:
            return None
        return self.now.read_bytes / self.now.seconds / (self.bandwidth.device / self.devices)
