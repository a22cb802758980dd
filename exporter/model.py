"""What passes between fetching, normalizing and emitting: samples, outcomes and snapshots."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


class Outcome(enum.StrEnum):
    """How one attempt to read a target ended; the `reason` label of `vitals_scrape_failures_total`."""

    OK = "ok"
    DNS = "dns"
    CONNECT = "connect"
    TLS = "tls"
    TIMEOUT = "timeout"
    AUTH = "auth"
    HTTP_STATUS = "http_status"
    REDIRECT = "redirect"
    TOO_LARGE = "too_large"
    TRUNCATED = "truncated"
    PROTOCOL = "protocol"
    EMPTY = "empty"
    NOT_METRICS = "not_metrics"
    NO_LLM_METRICS = "no_llm_metrics"
    NOT_LLM_SERVER = "not_llm_server"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Sample:
    """One output series and its value.

    `name` is the sample's name: the family's own, or with `_bucket`, `_sum`, `_count` for a histogram.
    `labels` are in output order without `target` and `backend`, which the renderer adds.
    `text` is the value as it is written out: a finite decimal number that Prometheus accepts.
    """

    family: str
    name: str
    labels: tuple[tuple[str, str], ...]
    text: str

    @property
    def value(self) -> float:
        """The value as a number."""
        return float(self.text)


class Readings(Protocol):
    """What one good reading of a target holds."""

    def blocks(self) -> Mapping[str, str]:
        """Return, by family name, the finished text lines (each ended by a newline) of this target."""
        ...

    def samples(self) -> Sequence[Sample]:
        """Return the same as samples, for a reader that wants numbers."""
        ...


@dataclass(frozen=True, slots=True)
class Report:
    """What a reading says about itself: /debug/TARGET shows it.

    `sources`: (family, source name on the page) for each family that was fed.
    `unmapped`: the page's families that feed nothing; `unknown`: those of them that the engine's table
    does not know either (drift).  `bad_lines`: the first of the lines that could not be read;
    `bad_line_count`: how many there were.  `dropped`: samples withheld, by reason.
    """

    sources: tuple[tuple[str, str], ...] = ()
    unmapped: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    bad_lines: tuple[str, ...] = ()
    bad_line_count: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a server tells of a model beside its metrics; None and empty is what it does not tell.

    `weight_bytes`: of its file; `vram_share`: 0 to 1, how much of it is in the device's memory and not in RAM;
    `info`: its GGUF metadata.
    """

    weight_bytes: int | None = None
    vram_share: float | None = None
    info: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One attempt to read one target, successful or not.

    `at` is a Unix time in seconds, `duration` is in seconds, `size` is the body's bytes after
    decompression.  `detail` is one line for a person, with the remedy; no secret is ever in it.  `models` has, by
    name, those models of which the server tells more than numbers.
    """

    target: str
    backend: str
    outcome: Outcome
    at: float
    duration: float
    detail: str = ""
    status: int | None = None
    size: int = 0
    version: str = ""
    readings: Readings | None = None
    report: Report = field(default_factory=Report)
    models: Mapping[str, ModelFacts] = field(default_factory=dict)

    @property
    def up(self) -> bool:
        """Whether the target gave what it was asked for."""
        return self.outcome is Outcome.OK
