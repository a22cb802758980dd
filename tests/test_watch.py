"""The verdict over time: steady when figures swing, unknown without them, one cause a model on /metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.model import ModelFacts, Outcome, Sample, Snapshot
from exporter.physics import verdict
from exporter.physics.causes import causes
from exporter.physics.explain import explanation, text
from exporter.physics.watch import Watch
from exporter.probe.result import ProbeResult, Reason
from exporter.settings import Target
from exporter.vitals import ITL

TARGET = Target("box", "http://box:8000", "vllm")
ENGINE = (("model", "m"), ("engine", "0"))
BUSY = {
    "vitals_requests_running": 4.0,
    "vitals_requests_waiting": 0.0,
    "vitals_kv_cache_usage_ratio": 0.3,
    "vitals_generation_tokens_total": 100.0,
    "vitals_prompt_tokens_total": 100.0,
    "vitals_preemptions_total": 0.0,
    "vitals_spec_decode_accepted_tokens_total": 0.0,
}
COUNTERS = [name for name in BUSY if name.endswith("_total")]


class Story:
    """A target's readings, one every three seconds, and the verdicts that come of them."""

    def __init__(self, target: Target = TARGET) -> None:
        self.watch = Watch(target)
        self.at = 1_000_000.0
        self.totals = dict.fromkeys(COUNTERS, 0.0)
        self.steps: list[float] = []
        self.seen: list[str] = []

    def read(
        self, probes: dict[tuple[str, str], ProbeResult] | None = None, /, step: float | None = None, **figures: float
    ) -> str:
        """Take a reading; counters are given as increases, `step` is the seconds of each of ten more engine steps."""
        self.at += 3.0
        given = {**BUSY, **{f"vitals_{name}": value for name, value in figures.items()}}
        for name in COUNTERS:
            self.totals[name] += given[name]
        samples = [Sample(name, name, ENGINE, repr(value)) for name, value in {**given, **self.totals}.items()]
        if step is not None:
            self.steps += [step] * 10
            samples += self._itl()
        return self._observe(Snapshot("box", "vllm", Outcome.OK, self.at, 0.1), samples, probes or {})

    def _itl(self) -> list[Sample]:
        parts: list[tuple[str, tuple[tuple[str, str], ...], float]]
        parts = [("_sum", ENGINE, sum(self.steps)), ("_count", ENGINE, float(len(self.steps)))]
        for bound in (0.05, 0.2, math.inf):
            labels = (*ENGINE, ("le", repr(bound)))
            parts.append(("_bucket", labels, float(sum(step <= bound for step in self.steps))))
        return [Sample(ITL, f"{ITL}{part}", labels, repr(value)) for part, labels, value in parts]

    def fail(self) -> str:
        self.at += 3.0
        return self._observe(Snapshot("box", "vllm", Outcome.CONNECT, self.at, 0.1, "no connection"), [], {})

    def _observe(self, snapshot: Snapshot, samples: list[Sample], probes: dict[tuple[str, str], ProbeResult]) -> str:
        if self.watch.due(snapshot.at):
            self.watch.observe(snapshot, samples, probes)
        (diagnosis,) = self.watch.diagnoses()
        self.seen.append(diagnosis.cause)
        return diagnosis.cause

    def changes(self) -> list[str]:
        """Return the verdicts without repetitions."""
        return [cause for before, cause in zip(["", *self.seen], self.seen, strict=False) if cause != before]


def swings() -> Iterator[dict[str, float]]:
    """What was recorded of a real vLLM whose cache was full: usage and queue swing, preemptions come in bursts."""
    for number in range(100):
        high = number % 4 < 2
        yield {
            "kv_cache_usage_ratio": 1.0 if high else 0.79,
            "requests_waiting": 37.0 if high else 6.0,
            "preemptions_total": 7.0 if number % 4 == 0 else 0.0,
        }


def test_an_exhausted_cache_whose_usage_swings_is_named_once_and_stays_named() -> None:
    story = Story()
    for figures in swings():
        story.read(**figures)
    assert story.changes() == ["unknown", "kv_exhausted"]


def test_a_short_rush_does_not_change_the_verdict() -> None:
    story = Story()
    for number in range(200):
        story.read(requests_waiting=5.0 if number % 30 < 4 else 0.0)
    assert story.changes() == ["unknown", "healthy"]


def test_figures_at_a_threshold_do_not_make_the_verdict_flicker() -> None:
    story = Story()
    for number in range(300):
        waits = number % 20 < (11 if number % 40 < 20 else 9)  # now a little more than half of the readings, now less
        story.read(requests_waiting=3.0 if waits else 0.0)
    assert len(story.changes()) <= 3


def test_one_failed_reading_changes_nothing_and_a_dead_server_is_unknown() -> None:
    story = Story()
    for _ in range(20):
        story.read()
    story.fail()
    assert story.read() == "healthy"
    for _ in range(12):
        story.fail()
    assert story.seen[-1] == "unknown"
    for _ in range(12):
        story.read()
    assert story.changes() == ["unknown", "healthy", "unknown", "healthy"]


def test_a_restart_is_not_read_as_an_increase() -> None:
    story = Story()
    for _ in range(20):
        story.read()
    story.totals = dict.fromkeys(COUNTERS, 0.0)
    for _ in range(20):
        story.read()
    assert story.changes() == ["unknown", "healthy"]


def test_a_clock_that_was_set_back_does_not_stop_the_verdict() -> None:
    story = Story()
    for _ in range(20):
        story.read()
    story.at -= 3600
    for figures in swings():
        story.read(**figures)
    assert story.seen[-1] == "kv_exhausted"


def test_exactly_one_cause_of_each_model_is_1_on_metrics() -> None:
    story = Story()
    story.read()
    lines = story.watch.blocks()["vitals_verdict"].splitlines()
    assert len(lines) == len(causes())
    assert [line for line in lines if line.endswith(" 1.0")] == [
        'vitals_verdict{target="box",backend="vllm",model="m",cause="unknown"} 1.0'
    ]


def test_a_model_that_leaves_an_ollama_takes_its_verdict_along() -> None:
    watch = Watch(replace(TARGET, backend="ollama"))
    snapshot = Snapshot("box", "ollama", Outcome.OK, 1000.0, 0.1, models={"a": ModelFacts(), "b": ModelFacts()})
    watch.observe(snapshot, [], {})
    assert [diagnosis.model for diagnosis in watch.diagnoses()] == ["a", "b"]
    watch.observe(replace(snapshot, at=1010.0, models={"b": ModelFacts()}), [], {})
    assert [diagnosis.model for diagnosis in watch.diagnoses()] == ["b"]
    watch.observe(replace(snapshot, at=1020.0, models={}), [], {})
    watch.observe(replace(snapshot, at=1050.0, models={}), [], {})
    assert [(diagnosis.model, diagnosis.cause) for diagnosis in watch.diagnoses()] == [("", "idle")]


def test_a_probe_in_a_busy_batch_is_not_taken_for_one_alone() -> None:
    target = replace(TARGET, memory_bandwidth_gb_s=160.0, weight_bytes=16e9)
    for others, expected in ((0.0, 8.0), (50.0, None)):
        story = Story(target)
        for number in range(20):
            probe = ProbeResult(story.at - 0.5, 2.0, False, ttft=0.1, decode_rate=8.0, output_tokens=16)
            probed = {("m", "small"): probe} if number >= 10 else None
            story.read(probed, generation_tokens_total=others + (16.0 if number == 9 else 0.0))
        (diagnosis,) = story.watch.diagnoses()
        assert (diagnosis.alone and diagnosis.alone.rate) == expected
        assert diagnosis.facts.ceiling == 10.0


def lone(accepted: float, rate: float) -> Story:
    """Return the story of an idle server of 10 readings of its weights a second that was probed, drafts accepted."""
    story = Story(replace(TARGET, memory_bandwidth_gb_s=160.0, weight_bytes=16e9))
    story.totals["vitals_generation_tokens_total"] = 1e6
    probe: dict[tuple[str, str], ProbeResult] = {}
    for number in range(20):
        made = 16.0 if number == 9 else 0.0
        if number == 9:
            probe = {("m", "small"): ProbeResult(story.at + 1, 2.0, False, decode_rate=rate, output_tokens=16)}
        figures = {"generation_tokens_total": made, "spec_decode_accepted_tokens_total": accepted if made else 0.0}
        story.read(probe, requests_running=0.0, prompt_tokens_total=0.0, **figures)
    return story


def test_the_ceiling_is_of_readings_of_the_weights_of_which_speculative_decoding_makes_several_tokens() -> None:
    # Of 16 tokens 12 were accepted drafts: 4 readings, 4 tokens each.
    (slow,), (fast,) = (lone(12.0, rate).watch.diagnoses() for rate in (12.0, 28.0))
    assert slow.cause == "decode_below_ceiling"
    assert "12 tokens/s, 4 of each reading of the weights: 3 readings/s, 30% of the ceiling of 10" in slow.evidence[0]
    assert fast.cause == "idle"
    found = explanation(fast, 8000)
    assert found["ceilings"]["achieved_ratio"] == pytest.approx(0.7)
    assert "alone, a probe reached 28 tokens/s, 4 of each reading, 70% of that" in text(found)


def test_more_tokens_than_the_ceiling_are_said_to_be_drafts_or_a_mistake_of_the_configuration() -> None:
    (diagnosis,) = lone(0.0, 15.0).watch.diagnoses()
    words = text(explanation(diagnosis, 8000))
    assert "150% of that (speculative decoding, or the device or the weights are not as configured)" in words


def test_what_a_probe_got_before_a_restart_says_nothing_of_what_runs_now() -> None:
    story = lone(0.0, 3.0)
    assert story.seen[-1] == "decode_below_ceiling"
    story.totals = dict.fromkeys(COUNTERS, 0.0)
    for _ in range(20):
        story.read()
    assert story.seen[-1] == "healthy"


def test_a_slow_step_of_several_tokens_is_no_slow_text() -> None:
    def seen(accepted: float) -> str:
        story = Story()
        for number in range(80):
            few = number < 40
            story.read(
                step=0.02 if few else 0.1,
                requests_running=2.0 if few else 20.0,
                generation_tokens_total=1000.0,
                spec_decode_accepted_tokens_total=accepted,
            )
        return story.seen[-1]

    assert seen(0.0) == "batch_stretched"
    assert seen(750.0) == "healthy"


def test_a_probe_that_was_too_slow_for_its_time_is_no_sign_of_an_engine_that_stands_still() -> None:
    watch = Watch(replace(TARGET, backend="ollama"))
    failed = ProbeResult(1000.0, 60.0, False, Reason.TIMEOUT_TOTAL, "the answer was not complete")
    for at in range(1000, 1060, 10):
        snapshot = Snapshot("box", "ollama", Outcome.OK, float(at), 0.1, models={"a": ModelFacts()})
        watch.observe(snapshot, [], {("a", "small"): failed})
    (diagnosis,) = watch.diagnoses()
    assert diagnosis.cause == "unknown"


def test_a_probe_that_waits_in_vain_says_that_an_uncounted_server_is_stuck() -> None:
    watch = Watch(replace(TARGET, backend="ollama"))
    failed = ProbeResult(1000.0, 30.0, False, Reason.TIMEOUT_FIRST_TOKEN, "no token", waited=30.0)
    for at in range(1000, 1060, 10):
        snapshot = Snapshot("box", "ollama", Outcome.OK, float(at), 0.1, models={"a": ModelFacts()})
        watch.observe(snapshot, [], {("a", "small"): failed})
    (diagnosis,) = watch.diagnoses()
    assert diagnosis.cause == "stuck"


def test_the_figures_in_the_data_file_are_those_of_the_tests() -> None:
    words = {name: " ".join(cause.evidence) for name, cause in causes().items()}
    for name, figure in (
        ("kv_exhausted", f"{verdict.FULL * 100:.0f} %"),
        ("queueing", f"{verdict.FULL * 100:.0f} %"),
        ("queueing", f"{verdict.WAITED:g} s"),
        ("prefill_bound", f"{verdict.SLOW_TTFT:g} s"),
        ("prefill_interference", f"{verdict.ROUGH:g} s"),
        ("batch_stretched", f"{verdict.SLOW_ITL * 1000:g} ms"),
        ("context_grown", f"{verdict.SLOW_ITL * 1000:g} ms"),
        ("decode_below_ceiling", f"{verdict.LOST * 1000:g} ms"),
        ("decode_at_ceiling", f"{verdict.REACHED * 100:.0f} %"),
        ("decode_at_ceiling", f"{verdict.SLOW_ITL * 1000:g} ms"),
    ):
        assert figure in words[name], name
    assert (verdict.OFTEN, verdict.FAR_BELOW, verdict.TAIL, verdict.GROWN, verdict.FRESH_LOAD) == (
        0.5,
        0.5,
        3,
        1.5,
        120,
    )


figures = st.floats(0, 1e6, allow_nan=False)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.dictionaries(st.sampled_from(sorted(BUSY)), figures), min_size=1, max_size=40))
def test_no_readings_make_the_watch_fail(readings: list[dict[str, float]]) -> None:
    story = Story(replace(TARGET, memory_bandwidth_gb_s=100.0, weight_bytes=1e10))
    for reading in readings:
        story.read(**{name.removeprefix("vitals_"): value for name, value in reading.items()})
        assert story.watch.blocks()["vitals_verdict"].count(" 1.0\n") == 1
