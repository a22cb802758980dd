"""From consecutive readings of one model to what happened between them: the evidence that a verdict stands on."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from exporter.model import Sample
from exporter.vitals import ITL, TTFT, Latency, quantile

QUEUE = "vitals_request_queue_seconds"
PREFILL = "vitals_request_prefill_seconds"
DECODE = "vitals_request_decode_seconds"
PROMPT = "vitals_prompt_tokens_total"
CACHED = "vitals_cached_prompt_tokens_total"
GENERATED = "vitals_generation_tokens_total"
ACCEPTED = "vitals_spec_decode_accepted_tokens_total"
FINISHED = "vitals_requests_finished_total"
PREEMPTED = "vitals_preemptions_total"
READ_BYTES = "vitals_estimated_read_bytes_per_gpu_total"
RUNNING = "vitals_requests_running"
WAITING = "vitals_requests_waiting"
USAGE = "vitals_kv_cache_usage_ratio"
CAPACITY = "vitals_kv_cache_capacity_tokens"
ASLEEP = "vitals_engine_asleep"

_SPREAD = (TTFT, ITL)
"""Histograms whose buckets are read."""

_MEANS = (QUEUE, PREFILL, DECODE)
"""Histograms of which only the mean is."""

_SUMMED = (PROMPT, CACHED, GENERATED, ACCEPTED, FINISHED, PREEMPTED, RUNNING, WAITING, CAPACITY)
_HIGHEST = (USAGE, READ_BYTES)
_LOWEST = (ASLEEP,)
_COUNTERS = (PROMPT, GENERATED, FINISHED, PREEMPTED)

ENOUGH = 20
"""Observations from which a stretch's ITL counts."""

FAMILIES = frozenset({*_SPREAD, *_MEANS, *_SUMMED, *_HIGHEST, *_LOWEST})
"""All that a reading is made of."""

_MERGE: dict[str, Callable[[float, float], float]] = {
    **{f"{family}{part}": operator.add for family in (*_SPREAD, *_MEANS) for part in ("_sum", "_count")},
    **dict.fromkeys(_SUMMED, operator.add),
    **dict.fromkeys(_HIGHEST, max),
    **dict.fromkeys(_LOWEST, min),
}
"""By sample name, how the values of a model's engines become one."""

Labels = tuple[tuple[str, str], ...]

_BUCKETS = {f"{family}_bucket": family for family in _SPREAD}


@dataclass(slots=True)
class Reading:
    """One model's figures at Unix time `at`: values by sample name, and cumulative counts by family and upper bound.

    Engines are summed, but for KV usage and bytes read, of which the highest is taken; asleep are they only all.
    `engines`: how many there are; `kept`: the tokens in the KV caches of all of them, None if they do not tell.
    """

    at: float
    values: dict[str, float] = field(default_factory=dict)
    buckets: dict[str, dict[float, float]] = field(default_factory=dict)
    engines: int = 1
    kept: float | None = None

    def get(self, name: str) -> float | None:
        """Return a value; None where the engine does not report it."""
        return self.values.get(name)

    @property
    def in_flight(self) -> float | None:
        """How many requests run or wait."""
        running = self.get(RUNNING)
        return None if running is None else running + self.values.get(WAITING, 0.0)


def read(at: float, samples: Iterable[Sample]) -> dict[str, Reading]:
    """Return the readings by model of a target's samples, "" for an engine that names no model."""
    readings: dict[str, Reading] = {}
    caches: dict[str, dict[Labels, dict[str, float]]] = {}
    for sample in samples:
        name = sample.name
        merge, family = _MERGE.get(name), _BUCKETS.get(name)
        if merge is None and family is None:
            continue
        model = next((value for label, value in sample.labels if label == "model"), "")
        reading = readings.get(model) or readings.setdefault(model, Reading(at))
        value = float(sample.text)
        if merge is not None:
            reading.values[name] = merge(reading.values[name], value) if name in reading.values else value
            if name in (USAGE, CAPACITY):
                caches.setdefault(model, {}).setdefault(sample.labels, {})[name] = value
        elif family is not None:
            buckets = reading.buckets.setdefault(family, {})
            bound = float(sample.labels[-1][1])
            buckets[bound] = buckets.get(bound, 0.0) + value
    for model, engines in caches.items():
        readings[model].engines = len(engines)
        kept = [cache[USAGE] * cache[CAPACITY] for cache in engines.values() if len(cache) == 2]
        readings[model].kept = sum(kept) if kept else None
    return readings


@dataclass(frozen=True, slots=True)
class Stretch:
    """What happened over `seconds` up to Unix time `end`; None is what the engine does not report.

    `running`: the mean of the readings in which any ran, 0 if none did; `context`: KV tokens of each of them.
    `waiting_share`: the share of the readings in which requests waited; `usage`: the highest KV-cache usage, 0 to 1.
    Tokens, finished requests, preemptions and bytes are increases; `preempting`: in how many steps from reading to
    reading preemptions rose.  `per_step`: tokens that one stream gets of an engine step, more than 1 with speculative
    decoding only.
    """

    end: float
    seconds: float
    running: float | None
    highest_in_flight: float | None
    lowest_in_flight: float | None
    waiting_share: float
    waiting: float
    usage: float | None
    prompt_tokens: float | None
    computed_tokens: float | None
    generated_tokens: float | None
    per_step: float
    finished: float | None
    preemptions: float | None
    preempting: int
    read_bytes: float | None
    context: float | None
    ttft: Latency | None
    itl: Latency | None
    queue: float | None
    prefill: float | None
    decode: float | None

    @property
    def counts(self) -> bool:
        """Whether the engine counts its work."""
        return self.generated_tokens is not None

    def rate(self, tokens: float | None) -> float | None:
        """Return so many tokens as tokens/s."""
        return None if tokens is None or self.seconds <= 0 else tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Past:
    """What is remembered of a stretch, small as an hour of them is kept: `rate` is prompt tokens/s that were computed.

    `running` and `context` as in a stretch; `itl` and `p99`, its mean and p99 in seconds, None with too few tokens.
    """

    end: float
    rate: float | None
    running: float | None
    context: float | None
    itl: float | None
    p99: float | None


def past(stretch: Stretch) -> Past:
    """Return what is remembered of a stretch."""
    itl = stretch.itl if stretch.itl is not None and stretch.itl.count >= ENOUGH else None
    return Past(
        stretch.end,
        stretch.rate(stretch.computed_tokens),
        stretch.running,
        stretch.context,
        itl.mean if itl else None,
        itl.p99.value if itl else None,
    )


def stretch(readings: Sequence[Reading]) -> Stretch | None:
    """Return what happened from the first reading to the last, of one run of the engine; None if there are not two."""
    first, last = readings[0], readings[-1]
    if len(readings) < 2:
        return None

    def increase(family: str) -> float | None:
        then, now = first.get(family), last.get(family)
        return None if then is None or now is None else max(now - then, 0.0)

    def values(family: str) -> list[float]:
        return [value for reading in readings if (value := reading.get(family)) is not None]

    running, waiting, usage = values(RUNNING), values(WAITING), values(USAGE)
    in_flight = [value for reading in readings if (value := reading.in_flight) is not None]
    prompt, cached = increase(PROMPT), increase(CACHED)
    seconds = last.at - first.at
    busy = [(ran, reading) for reading in readings if (ran := reading.get(RUNNING))]
    contexts = [reading.kept / ran for ran, reading in busy if reading.kept is not None]
    return Stretch(
        end=last.at,
        seconds=seconds,
        running=statistics.fmean(ran for ran, _ in busy) if busy else 0.0 if running else None,
        highest_in_flight=max(in_flight, default=None),
        lowest_in_flight=min(in_flight, default=None),
        waiting_share=sum(value > 0 for value in waiting) / len(waiting) if waiting else 0.0,
        waiting=statistics.fmean(waiting) if waiting else 0.0,
        usage=max(usage, default=None),
        prompt_tokens=prompt,
        computed_tokens=None if prompt is None else max(prompt - (cached or 0.0), 0.0),
        generated_tokens=increase(GENERATED),
        per_step=tokens_per_step(increase(GENERATED), increase(ACCEPTED)),
        finished=increase(FINISHED),
        preemptions=increase(PREEMPTED),
        preempting=sum(
            after.values.get(PREEMPTED, 0.0) > before.values.get(PREEMPTED, 0.0) for before, after in pairwise(readings)
        ),
        read_bytes=increase(READ_BYTES),
        context=statistics.fmean(contexts) if contexts else None,
        ttft=_latency(TTFT, first, last),
        itl=_latency(ITL, first, last),
        queue=_mean(QUEUE, first, last),
        prefill=_mean(PREFILL, first, last),
        decode=_mean(DECODE, first, last),
    )


def tokens_per_step(generated: float | None, accepted: float | None) -> float:
    """Return how many tokens a stream got of an engine step, which gives one and those of a draft that it accepts."""
    if not generated or not accepted or accepted >= generated:
        return 1.0
    return generated / (generated - accepted)


def restarted(before: Reading, after: Reading) -> bool:
    """Return whether a counter went down."""
    return any(after.values.get(family, 0.0) < before.values.get(family, 0.0) for family in _COUNTERS)


def _latency(family: str, then: Reading, now: Reading) -> Latency | None:
    end, start = now.buckets.get(family), then.buckets.get(family, {})
    if not end or (start and start.keys() != end.keys()):
        return None
    added = {bound: count - start.get(bound, 0.0) for bound, count in end.items()}
    p50, p99, mean = quantile(0.5, added), quantile(0.99, added), _mean(family, then, now)
    if p50 is None or p99 is None or mean is None:
        return None
    return Latency(p50, p99, mean, added[max(added)], now.at - then.at)


def _mean(family: str, then: Reading, now: Reading) -> float | None:
    total, count = (
        now.values.get(family + part, 0.0) - then.values.get(family + part, 0.0) for part in ("_sum", "_count")
    )
    return total / count if count > 0 else None
