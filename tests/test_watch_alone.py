"""What a probe that was alone on the server says of the decode ceiling, with and without speculative decoding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exporter.physics.explain import explanation, text
from exporter.probe.result import ProbeResult
from tests.driven import COUNTERS, TARGET, Story


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
    (unknown,), (counted,) = (lone(accepted, 15.0 * 16 / (16 - accepted)).watch.diagnoses() for accepted in (0.0, 12.0))
    other = "a device or weights other than configured"
    words = text(explanation(unknown, 8000))
    assert f"15 tokens/s, 150% of that - more than all means speculative decoding, or {other}" in words
    words = text(explanation(counted, 8000))
    assert f"60 tokens/s, 4 of each reading, 150% of that - more than all means {other}" in words


def test_what_a_probe_got_before_a_restart_says_nothing_of_what_runs_now() -> None:
    story = lone(0.0, 3.0)
    assert story.seen[-1] == "decode_below_ceiling"
    story.totals = dict.fromkeys(COUNTERS, 0.0)
    for _ in range(20):
        story.read()
    assert story.seen[-1] == "healthy"


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
