"""The verdict over time: steady when figures swing, unknown without them, one cause a model on /metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.model import ModelFacts, Outcome, Sample, Snapshot
from exporter.physics import verdict
from exporter.physics.causes import causes
from exporter.physics.watch import Watch
from exporter.probe.result import ProbeResult, Reason
from tests.driven import BUSY, COUNTERS, TARGET, Story


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


@pytest.mark.parametrize(("active", "shared"), [(None, 20_000 / (20_000 + 2 * 16_000)), (4_000.0, None)])
def test_of_two_engines_each_ones_usage_is_of_its_own_cache_and_each_reads_the_weights(
    active: float | None, shared: float | None
) -> None:
    """With a batch a mixture of experts reads more of them than for a token, and how many is not known."""
    shape = '{"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 5, "torch_dtype": "float16"}'
    watch = Watch(
        replace(TARGET, weight_bytes=16_000.0, active_weight_bytes=active, model_config=shape)
    )  # 20 KV bytes a token
    for at in (1000.0, 1010.0):
        samples = [
            Sample(name, name, (("model", "m"), ("engine", engine)), repr(value))
            for engine, usage, running in (("0", 0.8, 8.0), ("1", 0.2, 2.0))
            for name, value in (
                ("vitals_kv_cache_usage_ratio", usage),
                ("vitals_kv_cache_capacity_tokens", 1000.0),
                ("vitals_requests_running", running),
            )
        ]
        watch.observe(Snapshot("box", "vllm", Outcome.OK, at, 0.1), samples, {})
    (diagnosis,) = watch.diagnoses()
    assert diagnosis.now is not None
    assert diagnosis.now.context == pytest.approx(100.0)  # 1,000 tokens of 10 requests
    assert diagnosis.kv_share == (shared and pytest.approx(shared))


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
