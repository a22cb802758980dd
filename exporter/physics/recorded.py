"""A diagnosis of the past, from the series that a Prometheus keeps of the exporter."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from exporter.catalogue import BY_NAME
from exporter.model import Sample
from exporter.physics import evidence
from exporter.physics.causes import causes
from exporter.physics.facts import Bandwidth, Facts
from exporter.physics.kv import Kv
from exporter.physics.probed import Alone, Probed
from exporter.physics.verdict import EASE, TESTS
from exporter.physics.view import Diagnosis
from exporter.physics.watch import HISTORY, ModelWatch
from exporter.probe.result import COLD_LOAD

RANGE = HISTORY + 120.0
"""Seconds of series that a diagnosis wants."""

FAMILIES = (
    *sorted(evidence.FAMILIES), "vitals_verdict", "vitals_memory_bandwidth_bytes_per_second",
    "vitals_devices", "vitals_model_weight_bytes", "vitals_decode_read_bytes_per_token",
    "vitals_decode_ceiling_tokens_per_second", "vitals_kv_cache_bytes_per_token", "vitals_kv_cache_capacity_bytes",
    "vitals_probe_alone_decode_tokens_per_second", "vitals_probe_phase_seconds",
    "vitals_probe_last_success_timestamp_seconds",
)  # fmt: skip

_NAMES = {name: family for family in FAMILIES for name in BY_NAME[family].sample_names}
_FOREIGN = ("__name__", "target", "backend", "instance", "job")


def selector(target: str) -> str:
    """Return the PromQL of everything that a diagnosis of a target wants, as a range."""
    names = "|".join(_NAMES)
    quoted = target.replace("\\", "\\\\").replace('"', '\\"')
    return f'{{__name__=~"{names}",target="{quoted}"}}[{RANGE:.0f}s]'


def diagnoses(matrix: Sequence[Mapping[str, Any]]) -> list[Diagnosis]:
    """Return the diagnoses, at the last scrape, of the one target whose series are in a range query's result."""
    scrapes: dict[float, list[Sample]] = defaultdict(list)
    target = backend = ""
    for series in matrix:
        metric = series["metric"]
        family = _NAMES[metric["__name__"]]
        target, backend = metric["target"], metric.get("backend", backend)
        labels = tuple((name, value) for name, value in sorted(metric.items()) if name not in _FOREIGN and name != "le")
        labels += (("le", metric["le"]),) if "le" in metric else ()  # a bucket's bound is its last label
        for moment, value in series["values"]:
            scrapes[float(moment)].append(Sample(family, metric["__name__"], labels, value))
    watches: dict[str, ModelWatch] = {}
    for moment in sorted(scrapes):
        for model, reading in evidence.read(moment, scrapes[moment]).items():
            watches.setdefault(model, ModelWatch(None)).add(reading)
    last = scrapes[max(scrapes)] if scrapes else []
    models = sorted({dict(sample.labels).get("model", "") for sample in last if sample.family == "vitals_verdict"})
    return [_diagnosis(target, backend, model, watches.get(model, ModelWatch(None)), scrapes) for model in models]


def _diagnosis(
    target: str, backend: str, model: str, watch: ModelWatch, scrapes: Mapping[float, Sequence[Sample]]
) -> Diagnosis:
    latest = max(scrapes)
    figures = _Figures(scrapes[latest], model)
    cause = figures.cause
    since = latest
    for moment in sorted(scrapes, reverse=True):
        if _Figures(scrapes[moment], model).cause != cause:
            break
        since = moment
    view = watch.view(latest, figures.facts, figures.probe())
    if rate := figures.one("vitals_probe_alone_decode_tokens_per_second"):
        view = replace(view, alone=Alone(rate))
    if cause == "idle" and view.now is not None and view.now.generated_tokens:
        # The recorded verdict knew that these were the probes'.
        view = replace(view, probe_tokens=int(view.now.generated_tokens))
    seen = TESTS[cause](view, EASE) if cause in TESTS else ()
    bandwidth = Bandwidth(*(figures.memory(memory) for memory in ("device", "ram")))
    return Diagnosis(
        target, backend, model, latest, cause, since, seen or ("the recorded verdict; its evidence is not recorded",),
        view.facts, bandwidth, int(figures.one("vitals_devices") or 1), watch.last, view.now,
        view.probe, view.alone,
    )  # fmt: skip


class _Figures:
    """The figures of one model in one scrape."""

    def __init__(self, samples: Sequence[Sample], model: str) -> None:
        self._samples = [(sample, dict(sample.labels)) for sample in samples]
        self._model = model

    @property
    def cause(self) -> str:
        """The verdict that was recorded, "unknown" where there is none."""
        found = [labels for _, labels in self._of("vitals_verdict", value=1.0)]
        return next((labels["cause"] for labels in found if labels["cause"] in causes()), "unknown")

    @property
    def facts(self) -> Facts:
        """What was known of the model and the device."""
        kv = self.one("vitals_kv_cache_bytes_per_token")
        # Of a model with sliding windows the capacity in bytes was not exported, nor are its windows known here.
        whole = any(self._of("vitals_kv_cache_capacity_bytes"))
        return Facts(
            self.one("vitals_model_weight_bytes"),
            self.one("vitals_decode_read_bytes_per_token"),
            self.one("vitals_decode_ceiling_tokens_per_second"),
            Kv(kv) if kv is not None and whole else None,
        )

    def probe(self) -> Probed | None:
        """Return the last good probe, as far as its figures are recorded."""
        at = self.one("vitals_probe_last_success_timestamp_seconds")
        if at is None:
            return None
        kinds: dict[str, dict[str, float]] = defaultdict(dict)
        for sample, labels in self._of("vitals_probe_phase_seconds"):
            kinds[labels.get("prompt", "")][labels["phase"]] = sample.value
        first = {
            kind: sum(phases.get(name, 0.0) for name in ("queue", "load", "prefill")) for kind, phases in kinds.items()
        }
        slowest = max(first, key=lambda kind: first[kind], default="")
        phases = kinds.get(slowest, {})
        return Probed(at, math.inf, first.get(slowest), None, phases, phases.get("load", 0.0) > COLD_LOAD, False, True)

    def one(self, family: str) -> float | None:
        """Return the model's value of a family, or the target's where the family is not of models."""
        return next((sample.value for sample, _ in self._of(family)), None)

    def memory(self, memory: str) -> float | None:
        """Return the bandwidth of a memory in bytes/s."""
        found = self._of("vitals_memory_bandwidth_bytes_per_second")
        return next((sample.value for sample, labels in found if labels["memory"] == memory), None)

    def _of(self, family: str, value: float | None = None) -> Iterator[tuple[Sample, Mapping[str, str]]]:
        for sample, labels in self._samples:
            of_model = "model" not in BY_NAME[family].labels or labels.get("model", "") == self._model
            if sample.family == family and of_model and value in (None, sample.value):
                yield sample, labels
