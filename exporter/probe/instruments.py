"""The instruments that probes feed, made from their rows in the catalogue."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from exporter.catalogue import BY_NAME, Family, Type
from exporter.probe.result import PHASES, Comparison, ProbeResult, Reason

BUCKETS = tuple(float(f"{10 ** (step / 8 - 3):.3g}") for step in range(43))
"""Upper bounds in seconds of every latency histogram: eight to a decade, 1 ms to 178 s.

A quantile is interpolated within one bucket, so its error is bounded by the growth from bound to bound, here
10^(1/8) = 1.33: at most a third, and about half of that for a value in the middle, at 4 ms as at 4 s. A fast
model's ITL is a few milliseconds and the TTFT of a full queue is minutes, so one rule has to span both; 43
bounds do it, and 1 ms, 10 ms, 100 ms, 1 s, 10 s and 100 s are among them for alerts to stand on.
"""

_TELL_LOADS = frozenset(("ollama",))
"""Backends whose answers tell how long a load took; of the others no load is known, not none."""


class Instruments:
    """All probe families in `registry`; labels are target, backend, model and what the catalogue adds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # `_created` series are in no catalogue row, and a start time per series helps nobody here.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library gives it no types

        def histogram(name: str) -> Histogram:
            row = _row(name, "histogram")
            return Histogram(row.name, row.help, row.all_labels, registry=registry, buckets=BUCKETS)

        def counter(name: str) -> Counter:
            row = _row(name, "counter")
            return Counter(row.name, row.help, row.all_labels, registry=registry)

        def gauge(name: str) -> Gauge:
            row = _row(name, "gauge")
            return Gauge(row.name, row.help, row.all_labels, registry=registry)

        self._ttft = histogram("vitals_probe_time_to_first_token_seconds")
        self._answer = histogram("vitals_probe_time_to_first_answer_token_seconds")
        self._itl = histogram("vitals_probe_inter_token_latency_seconds")
        self._tpot = histogram("vitals_probe_time_per_output_token_seconds")
        self._load = histogram("vitals_probe_load_seconds")
        self._phase = gauge("vitals_probe_phase_seconds")
        self._connect = gauge("vitals_probe_connect_seconds")
        self._prefill = gauge("vitals_probe_prefill_tokens_per_second")
        self._decode = gauge("vitals_probe_decode_tokens_per_second")
        self._slope = gauge("vitals_probe_prefill_seconds_per_token")
        self._fixed = gauge("vitals_probe_prefill_fixed_seconds")
        self._saving = gauge("vitals_probe_cached_saving_seconds")
        self._share = gauge("vitals_probe_share_ratio")
        self._probes = counter("vitals_probes_total")
        self._cold = counter("vitals_probe_cold_total")
        self._coalesced = counter("vitals_probe_coalesced_total")
        self._failures = counter("vitals_probe_failures_total")
        self._success = gauge("vitals_probe_last_success_timestamp_seconds")

    def prepare(self, target: str, backend: str, model: str) -> None:
        """Start the counters of a model at 0, each reason too, so that rate() sees the first of each kind."""
        self._probes.labels(target, backend, model)
        self._cold.labels(target, backend, model)
        self._coalesced.labels(target, backend, model)
        if backend in _TELL_LOADS:
            self._load.labels(target, backend, model)
        for reason in Reason:
            self._failures.labels(target, backend, model, reason.value)

    def observe(self, target: str, backend: str, model: str, prompt: str, result: ProbeResult) -> None:
        """Count a probe; a good one sets the gauges, and a good warm one feeds the latencies.

        A failed probe feeds no latency, but for a first token that never came: TTFT gets the time waited.
        """
        labels = (target, backend, model)
        self.prepare(*labels)
        self._probes.labels(*labels).inc()
        if result.cold:
            self._cold.labels(*labels).inc()
        if result.reason is not None:
            self._failures.labels(*labels, result.reason.value).inc()
            if result.waited is not None and not result.cold:
                self._ttft.labels(*labels, prompt).observe(result.waited)
            return
        self._success.labels(*labels).set(result.at)
        self._set_gauges(labels, prompt, result)
        if result.coalesced:
            self._coalesced.labels(*labels).inc()
        if result.load is not None and result.reloaded:
            self._load.labels(*labels).observe(result.load)
        if result.cold:
            return
        if result.ttft is not None:
            self._ttft.labels(*labels, prompt).observe(result.ttft)
        if result.answer_ttft is not None:
            self._answer.labels(*labels, prompt).observe(result.answer_ttft)
        for gap in result.gaps:
            self._itl.labels(*labels).observe(gap)
        if result.tpot is not None:
            self._tpot.labels(*labels).observe(result.tpot)

    def compare(self, target: str, backend: str, model: str, comparison: Comparison) -> None:
        """Set what prompts of different kinds, probed one after the other, tell together."""
        labels = (target, backend, model)
        for metric, value in (
            (self._slope, comparison.seconds_per_token),
            (self._fixed, comparison.fixed),
            (self._saving, comparison.saving),
        ):
            _set(metric, labels, value)

    def spend(self, target: str, backend: str, share: float) -> None:
        """Set the share of a server's time that probes took since the turn before."""
        self._share.labels(target, backend).set(share)

    def _set_gauges(self, labels: tuple[str, str, str], prompt: str, result: ProbeResult) -> None:
        """Set the gauges of the last good probe; what it could not measure goes, it does not stay as it was."""
        for phase in PHASES:
            _set(self._phase, (*labels, prompt, phase), result.phases.get(phase))
        _set(self._connect, labels, result.connect)
        _set(self._prefill, (*labels, prompt), result.prefill_rate)
        _set(self._decode, (*labels, prompt), result.decode_rate)

    @property
    def _gauges(self) -> tuple[Gauge, ...]:
        return (self._phase, self._connect, self._prefill, self._decode, self._slope, self._fixed, self._saving)

    def drop_gauges(self, target: str, model: str) -> None:
        """Remove what the last probes of a model told, because it is not in memory any more."""
        for metric in self._gauges:
            metric.remove_by_labels({"target": target, "model": model})

    def forget(self, target: str) -> None:
        """Remove every series of a target that is not configured any more."""
        latencies = (self._ttft, self._answer, self._itl, self._tpot, self._load)
        counters = (self._probes, self._cold, self._coalesced, self._failures)
        for metric in (*latencies, *self._gauges, *counters, self._success, self._share):
            metric.remove_by_labels({"target": target})


def _set(metric: Gauge, labels: tuple[str, ...], value: float | None) -> None:
    if value is None:
        # Unlike remove(), this does not mind a series that is not there.
        metric.remove_by_labels(dict(zip(metric._labelnames, labels, strict=True)))  # noqa: SLF001 - no public way
    else:
        metric.labels(*labels).set(value)


def _row(name: str, type_: Type) -> Family:
    row = BY_NAME[name]
    if row.type != type_:
        raise TypeError(f"{name} is a {row.type} in the catalogue, not a {type_}")
    return row
