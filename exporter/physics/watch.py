"""Watches one target: keeps what the verdict needs of its readings, holds the verdict steady, and exports both."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from exporter.model import ModelFacts, Sample, Snapshot
from exporter.physics import evidence, probed
from exporter.physics.causes import causes
from exporter.physics.evidence import Past, Reading
from exporter.physics.facts import Facts, bandwidth, facts
from exporter.physics.probed import Alone, Counted, Probed, Results
from exporter.physics.verdict import judge
from exporter.physics.view import Diagnosis, View
from exporter.probe.result import ProbeResult
from exporter.relay.render import render
from exporter.settings import Target

EVERY = 5.0
"""Seconds between two judgements at least; readings in between are not worth their cost."""

WINDOW = 60.0
"""Seconds that "now" is."""

KEPT = 180.0
"""Seconds for which the count of tokens is kept: a probe may take a minute, and what was before it is compared with."""

STEP = 20.0
"""Seconds of a stretch of the past at least."""

HISTORY = 3600.0
"""Seconds of past that "now" is compared with."""

HOLD = 20.0
"""Seconds for which a cause must have been found before the verdict changes to it."""

IMPATIENCE = 40.0
"""Seconds without the held cause after which the verdict changes, though others took turns."""


class ModelWatch:
    """The readings of one model and the verdict held."""

    def __init__(self, loaded_at: float | None) -> None:
        self.loaded_at = loaded_at
        self.diagnosis: Diagnosis | None = None
        self._readings: deque[Reading] = deque()
        self._counted: deque[Counted] = deque()
        self._past: deque[Past] = deque()
        self._held = "unknown"
        self._since = 0.0
        self._found_at = 0.0
        self._evidence: tuple[str, ...] = ()
        self._candidate = ""
        self._candidate_since = 0.0
        self._made = probed.Tokens(KEPT)
        self._judged: dict[str, float] = {}
        self._alone: dict[str, Alone] = {}
        self._facts: tuple[ModelFacts, Facts] | None = None

    def known(self, target: Target, told: ModelFacts) -> Facts:
        """Return the facts of the model, computed anew only when the server tells something else."""
        if self._facts is None or self._facts[0] != told:
            self._facts = (told, facts(target, told))
        return self._facts[1]

    def add(self, reading: Reading) -> None:
        """Keep a reading; forget all before it if the engine was started anew."""
        if self._readings and (self._readings[-1].at >= reading.at or evidence.restarted(self._readings[-1], reading)):
            self._readings.clear()
            self._counted.clear()
            self._past.clear()
            self._alone.clear()
            self._found_at, self._candidate = reading.at, ""
        self._readings.append(reading)
        while len(self._readings) > 2 and reading.at - self._readings[1].at >= WINDOW:
            self._readings.popleft()  # the one that is left before the window is what its increases are counted from
        self._counted.append(Counted(reading.at, reading.get(evidence.GENERATED), reading.get(evidence.ACCEPTED)))
        while reading.at - self._counted[0].at > KEPT:
            self._counted.popleft()
        while self._past and reading.at - self._past[0].end > HISTORY:
            self._past.popleft()
        since = self._past[-1].end if self._past else self._readings[0].at
        if reading.at - since >= STEP and (stretch := evidence.stretch(self._from(since))) is not None:
            self._past.append(evidence.past(stretch))

    def _from(self, at: float) -> list[Reading]:
        """Return the readings from the last one that is not after `at`, or else from the first."""
        first = max((index for index, reading in enumerate(self._readings) if reading.at <= at), default=0)
        return list(self._readings)[first:]

    def learn(self, results: Mapping[str, ProbeResult]) -> None:
        """Take from new results, by kind of prompt, the decode rates of probes that were alone."""
        self._made.note(results.values())
        for kind, result in results.items():
            rate = probed.decode_rate(result)
            if rate is None or self._judged.get(kind) == result.at:
                continue
            per_reading = probed.alone(result, self._counted, self._made)
            if per_reading is not None:
                self._judged[kind] = result.at
            if per_reading:
                self._alone[kind] = Alone(rate, per_reading)

    @property
    def alone(self) -> Alone | None:
        """The last probe that was alone, with the smallest prompt of them."""
        return next((self._alone[kind] for kind in ("small", "large", "cached") if kind in self._alone), None)

    def view(self, at: float, known: Facts, probe: Probed | None) -> View:
        """Return what the verdict is made of, at a Unix time, while the target answers."""
        window = self._from(at - WINDOW)
        asleep = bool(window) and window[-1].get(evidence.ASLEEP) == 1.0
        return View(
            at=at,
            facts=known,
            now=evidence.stretch(window) if window else None,
            past=self._past,
            probe=probe,
            probe_tokens=self._made.between(window[0].at, at) if window else 0,
            alone=self.alone,
            loaded_for=None if self.loaded_at is None else at - self.loaded_at,
            asleep=asleep,
        )

    @property
    def last(self) -> Reading:
        """The last reading, an empty one before the first."""
        return self._readings[-1] if self._readings else Reading(0.0)

    def judge(self, view: View) -> tuple[str, float, tuple[str, ...]]:
        """Return the cause held, since when, and its evidence."""
        finding = judge(view, self._held)
        if not self._since:
            self._since = self._found_at = view.at
        if finding.cause == self._held:
            self._found_at, self._evidence, self._candidate = view.at, finding.evidence, ""
        elif finding.cause != self._candidate:
            self._candidate, self._candidate_since = finding.cause, view.at
        if self._candidate and (view.at - self._candidate_since >= HOLD or view.at - self._found_at >= IMPATIENCE):
            self._held, self._since = self._candidate, self._candidate_since
            self._found_at, self._evidence, self._candidate = view.at, finding.evidence, ""
        return self._held, self._since, self._evidence


class Watch:
    """Watches one target and holds a verdict for each of its models; `observe` it with the readings that are due."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._bandwidth = bandwidth(target)
        self._models: dict[str, ModelWatch] = {}
        self._answered = False
        self._due = 0.0
        self._verdicts: tuple[list[tuple[str, str]], Mapping[str, str]] = ([], {})
        self._blocks: Mapping[str, str] = {}

    def due(self, at: float) -> bool:
        """Return whether a reading taken at a Unix time should be observed; causes last longer than a few seconds."""
        return not self._due - EVERY <= at < self._due

    def observe(self, snapshot: Snapshot, samples: Sequence[Sample], results: Results) -> None:
        """Take a reading, its numbers with those of the traffic seen, and the last probes' results."""
        self._due = snapshot.at + EVERY
        readings = self._readings(snapshot, samples) if snapshot.up else {}
        if snapshot.up:
            self._models = {model: self._watch(model, snapshot) for model in readings}
            self._answered = True
        for model, watch in (self._models or {"": ModelWatch(None)}).items():
            self._models[model] = watch
            if model in readings:
                watch.add(readings[model])
            watch.diagnosis = self._diagnose(model, watch, snapshot, results)
        figures = render(self._target.name, snapshot.backend, self._figures(samples))
        self._blocks = {**figures, **self._rendered_verdicts(snapshot.backend)}

    def diagnoses(self) -> list[Diagnosis]:
        """Return what is known of each model now."""
        return [watch.diagnosis for watch in self._models.values() if watch.diagnosis is not None]

    def blocks(self) -> Mapping[str, str]:
        """Return the lines to export, by family."""
        return self._blocks

    def _readings(self, snapshot: Snapshot, samples: Sequence[Sample]) -> dict[str, Reading]:
        """Return a reading for each model the target has, one for "" if it has none."""
        found = evidence.read(snapshot.at, samples)
        named = {
            model: reading for model, reading in found.items() if model or reading.get(evidence.RUNNING) is not None
        }
        named |= {model: Reading(snapshot.at) for model in snapshot.models if model not in named}
        return named or {"": Reading(snapshot.at)}

    def _watch(self, model: str, snapshot: Snapshot) -> ModelWatch:
        """Return a model's watch; one that an Ollama had not loaded before was loaded just now."""
        if model in self._models:
            return self._models[model]
        return ModelWatch(snapshot.at if self._answered and model in snapshot.models else None)

    def _diagnose(self, model: str, watch: ModelWatch, snapshot: Snapshot, results: Results) -> Diagnosis:
        own = {kind: result for (name, kind), result in results.items() if name == model}
        known = watch.known(self._target, snapshot.models.get(model, ModelFacts()))
        probe = probed.last(results, model, self._target.probe)
        if snapshot.up:
            watch.learn(own)
            view = watch.view(snapshot.at, known, probe)
            if snapshot.backend == "ollama" and not snapshot.models:
                view = View(snapshot.at, known, empty=True)
        else:
            view = View(snapshot.at, known, down=snapshot.detail or str(snapshot.outcome))
        cause, since, seen = watch.judge(view)
        return Diagnosis(
            self._target.name, snapshot.backend, model, snapshot.at, cause, since, seen, known, self._bandwidth,
            self._target.devices, watch.last, view.now, probe, watch.alone, view.down,
        )  # fmt: skip

    def _rendered_verdicts(self, backend: str) -> Mapping[str, str]:
        """Return the lines of the verdicts; they are many and seldom change, so they are kept as text."""
        held = [(backend, ""), *((diagnosis.model, diagnosis.cause) for diagnosis in self.diagnoses())]
        if self._verdicts[0] != held:
            samples = (
                sample
                for model, holds in held[1:]
                for cause in causes()
                for sample in _one("verdict", float(cause == holds), ("model", model), ("cause", cause))
            )
            self._verdicts = (held, render(self._target.name, backend, samples))
        return self._verdicts[1]

    def _figures(self, samples: Sequence[Sample]) -> Iterator[Sample]:
        for memory, speed in (("device", self._bandwidth.device), ("ram", self._bandwidth.ram)):
            yield from _one("memory_bandwidth_bytes_per_second", speed, ("memory", memory))
        if self._bandwidth.device is not None:
            yield from _one("devices", self._target.devices)
        for diagnosis in self.diagnoses():
            yield from _figures(diagnosis)
            yield from _capacities(diagnosis, samples)


def _figures(diagnosis: Diagnosis) -> Iterator[Sample]:
    label = ("model", diagnosis.model)
    known = diagnosis.facts
    yield from _one("model_weight_bytes", known.weight_bytes, label)
    yield from _one("decode_read_bytes_per_token", known.read_bytes, label)
    yield from _one("decode_ceiling_tokens_per_second", known.ceiling, label)
    if known.kv is not None:
        yield from _one("kv_cache_bytes_per_token", known.kv.per_token, label)
    yield from _one("decode_kv_share_ratio", diagnosis.kv_share, label)
    if diagnosis.alone is not None:
        yield from _one("probe_alone_decode_tokens_per_second", diagnosis.alone.rate, label)


def _capacities(diagnosis: Diagnosis, samples: Sequence[Sample]) -> Iterator[Sample]:
    """Yield the KV capacity in bytes of each engine of a model whose layers all keep all tokens."""
    kv = diagnosis.facts.kv
    if kv is None or kv.windows:
        return
    for sample in samples:
        if sample.family == evidence.CAPACITY and dict(sample.labels).get("model", "") == diagnosis.model:
            yield from _one("kv_cache_capacity_bytes", sample.value * kv.per_token, *sample.labels)


def _one(family: str, value: float | None, *labels: tuple[str, str]) -> Iterator[Sample]:
    if value is not None:
        yield Sample(f"vitals_{family}", f"vitals_{family}", labels, repr(float(value)))
