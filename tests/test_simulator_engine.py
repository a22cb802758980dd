"""The simulated engine against arithmetic done by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from exporter.simulator.cache import PagedCache, SlotCache
from exporter.simulator.engine import Engine, Limits, Sequence, Step
from exporter.simulator.hardware import H100, Device, Model, step_cost

# 100 bytes of KV a token; bandwidth 1e6 B/s, so weights take 10 ms and a token's KV 0.1 ms; a token computes 2 ms.
DEVICE = Device("toy", bandwidth=1e6, flops=2e6, memory=1e9, efficiency=0.5, overhead=0.001, jitter=0.0)
MODEL = Model("toy", weight_bytes=10_000, parameters=1000, layers=1, heads=1, kv_heads=1, head_dim=25)
# An H100 as it is, but without the parts of a step that are not arithmetic.
IDEAL_H100 = replace(H100, overhead=0.0, jitter=0.0)
EIGHT_BILLION = Model("8B", weight_bytes=16e9, parameters=8e9, layers=32, heads=32, kv_heads=8, head_dim=128)


def engine(blocks: int = 1000, block_size: int = 16, seed: int = 0, device: Device = DEVICE, **limits: float) -> Engine:
    return Engine(device, MODEL, PagedCache(blocks, block_size), Limits(**limits), seed)  # type: ignore[arg-type]  # names of fields


def prompt(length: int, start: int = 0) -> list[int]:
    return list(range(start, start + length))


def run(made: Engine, now: float = 0.0) -> list[Step]:
    """Step until nothing is left."""
    steps = []
    while (step := made.step(now)) is not None:
        steps.append(step)
        now = step.end
    return steps


def test_a_step_takes_the_longer_of_compute_and_memory_plus_the_overhead() -> None:
    made = engine()
    request = made.add(prompt(10), max_tokens=3, now=5.0)
    steps = run(made, 5.0)
    # Prefill of 10 tokens: (2 * 1000 * 10 + 4 * 25 * 55 pairs) / 1e6 FLOP/s = 25.5 ms; memory 10 + 1 ms.
    assert steps[0].duration == pytest.approx(0.0255 + 0.001)
    # Decode at context 11 and 12: 2000 + 4 * 25 * 11 FLOP = 3.1 ms; memory 10 + 1.1 and 1.2 ms.
    assert steps[1].duration == pytest.approx(0.0111 + 0.001)
    assert steps[2].duration == pytest.approx(0.0112 + 0.001)
    assert request.record.ttft == pytest.approx(0.0265)
    assert request.record.gaps == pytest.approx([0.0121, 0.0122])
    assert request.record.tpot == pytest.approx(0.01215)
    assert request.record.e2e == pytest.approx(0.0508)
    assert len(steps) == 3


def test_the_bytes_of_kv_are_two_times_layers_heads_dimension_and_width() -> None:
    assert EIGHT_BILLION.kv_bytes_per_token == 131_072
    cost = step_cost(IDEAL_H100, EIGHT_BILLION, tokens=1, context=1000, attention=1000)
    assert cost.read_bytes == 16e9 + 131_072_000
    assert cost.seconds == pytest.approx((16e9 + 131_072_000) / 3350e9)


def test_one_stream_on_an_h100_with_16_gb_of_weights_decodes_just_below_209_tokens_a_second() -> None:
    made = Engine(IDEAL_H100, EIGHT_BILLION, PagedCache(1000, 16), Limits())
    request = made.add(prompt(20), max_tokens=200, now=0.0)
    run(made)
    assert 208.5 < 1 / request.record.tpot < 3350 / 16 < 209.4


def test_a_tenfold_prompt_takes_ten_times_as_long_to_its_first_token_and_leaves_itl_alone() -> None:
    records = []
    for length in (200, 2000):
        made = Engine(replace(H100, jitter=0.0), EIGHT_BILLION, PagedCache(1000, 16), Limits())
        records.append(made.add(prompt(length), max_tokens=50, now=0.0).record)
        run(made)
    short, long = records
    assert 8.5 < long.ttft / short.ttft < 11
    assert long.tpot / short.tpot < 1.03


def test_a_long_prompt_is_computed_in_chunks_while_others_go_on_decoding() -> None:
    made = engine(max_num_batched_tokens=64)
    talker = made.add(prompt(8), max_tokens=20, now=0.0)
    assert made.step(0.0) is not None
    giant = made.add(prompt(200, 1000), max_tokens=2, now=0.0)
    now, chunks = talker.record.token_times[0], []
    while not giant.record.token_times:
        before = giant.computed
        step = made.step(now)
        assert step is not None
        now = step.end
        chunks.append(giant.computed - before if not giant.record.token_times else 200 - before)
    assert chunks == [63, 63, 63, 11]  # one token of each step's 64 is the talker's
    assert talker.record.output_tokens == 5
    assert max(talker.record.gaps) > 5 * 0.012  # the prefill shows in the other's ITL


def test_requests_beyond_max_num_seqs_wait_in_order_of_arrival() -> None:
    made = engine(max_num_seqs=2)
    requests = [made.add(prompt(4, 100 * index), max_tokens=5, now=0.0) for index in range(4)]
    steps = run(made)
    assert (steps[0].running, steps[0].waiting) == (2, 2)
    starts = [request.record.scheduled for request in requests]
    assert starts[:2] == [0.0, 0.0]
    assert starts[2] == starts[3] == requests[0].record.finished
    assert requests[2].record.queue == pytest.approx(requests[0].record.e2e)


def test_exhausted_blocks_make_requests_wait_and_the_youngest_is_preempted_and_computed_again() -> None:
    # 7 usable blocks of 4 tokens, 2 a prompt.  Growing, the oldest takes the 7th, the second the third's; when
    # both need a fourth there are only 7 for the two.
    made = engine(blocks=8, block_size=4)
    old = made.add(prompt(8), max_tokens=9, now=0.0)
    young = made.add(prompt(8, 100), max_tokens=9, now=0.0)
    third = made.add(prompt(8, 200), max_tokens=2, now=0.0)
    steps = run(made)
    assert steps[0].running == 3
    assert [request.record.preemptions for request in (old, young, third)] == [0, 1, 1]
    assert sum(step.preempted for step in steps) == 2
    assert max(step.usage for step in steps) == pytest.approx(6 / 7)  # a step that preempts ends below 1
    assert any(step.waiting for step in steps)
    assert steps[-1].usage == 0.0
    assert young.record.output_tokens == 9
    assert max(young.record.gaps) > 2 * min(young.record.gaps)  # the wait lies inside its ITL
    assert third.record.reason == "length"


def test_a_request_larger_than_what_is_free_waits_until_others_are_done() -> None:
    made = engine(blocks=8, block_size=4)
    first = made.add(prompt(20), max_tokens=4, now=0.0)
    second = made.add(prompt(12, 100), max_tokens=1, now=0.0)
    steps = run(made)
    assert steps[0].waiting == 1
    assert second.record.scheduled == first.record.finished


def test_a_repeated_prompt_is_found_in_the_prefix_cache_but_for_its_last_token() -> None:
    made = engine(block_size=16)
    first = made.add(prompt(64), max_tokens=2, now=0.0)
    run(made)
    again = made.add(prompt(64), max_tokens=2, now=1.0)
    longer = made.add(prompt(64) + prompt(64, 500), max_tokens=2, now=1.0)
    other = made.add(prompt(64, 900), max_tokens=2, now=1.0)
    step = made.step(1.0)
    assert step is not None
    assert [r.record.cached_tokens for r in (first, again, longer, other)] == [0, 48, 64, 0]
    assert (step.queried_tokens, step.hit_tokens) == (64 + 128 + 64, 48 + 64)


def test_a_conversation_finds_the_answer_it_was_given_in_the_cache() -> None:
    made = engine(block_size=16)
    first = made.add(prompt(40), max_tokens=40, now=0.0)
    run(made)
    second = made.add(prompt(40) + first.generated + prompt(20, 500), max_tokens=1, now=9.0)
    run(made, 9.0)
    assert second.record.cached_tokens == 64  # 79 tokens had KV: the last one generated was never computed


def test_cached_blocks_count_as_free_and_the_oldest_are_evicted_first() -> None:
    made = engine(blocks=9, block_size=4)  # 8 usable
    for start in (0, 100):
        made.add(prompt(12, start), max_tokens=1, now=0.0)
        run(made)
    assert made.cache.usage == 0.0
    made.add(prompt(20, 200), max_tokens=1, now=0.0)  # takes 5: two never used, then three of the first prompt's
    run(made)
    recent, oldest = (made.add(prompt(12, start), max_tokens=1, now=0.0) for start in (100, 0))
    run(made)
    assert recent.record.cached_tokens == 8
    assert oldest.record.cached_tokens == 0


def test_prefix_caching_can_be_switched_off() -> None:
    made = Engine(DEVICE, MODEL, PagedCache(100, 16, prefix_caching=False), Limits())
    for _ in range(2):
        request = made.add(prompt(64), max_tokens=1, now=0.0)
        run(made)
    assert request.record.cached_tokens == 0


def test_speculative_decoding_brings_several_tokens_a_step_and_one_gap() -> None:
    made = engine(num_speculative_tokens=3, acceptance=1.0)
    request = made.add(prompt(10), max_tokens=40, now=0.0)
    steps = run(made)
    # 39 tokens after the first: 9 steps of 1 + 3, and a last one whose draft is cut to the 2 that still fit.
    assert len(request.record.gaps) == 10
    assert request.record.output_tokens == 40
    assert sum(step.drafts for step in steps) == 10
    assert sum(step.draft_tokens for step in steps) == sum(len(step.accepted_at) for step in steps) == 29
    assert len(set(request.record.token_times)) == 11


def test_rejected_drafts_bring_nothing() -> None:
    made = engine(num_speculative_tokens=3, acceptance=0.0)
    request = made.add(prompt(10), max_tokens=10, now=0.0)
    steps = run(made)
    assert len(request.record.gaps) == 9
    assert not any(step.accepted_at for step in steps)


def test_a_draft_is_accepted_up_to_its_first_wrong_token() -> None:
    made = engine(seed=4, num_speculative_tokens=2, acceptance=0.5)
    for index in range(50):
        made.add(prompt(4, 100 * index), max_tokens=100, now=0.0)
    steps = run(made)
    accepted = [position for step in steps for position in step.accepted_at]
    assert accepted.count(0) / sum(step.drafts for step in steps) == pytest.approx(0.5, abs=0.05)
    assert accepted.count(1) / accepted.count(0) == pytest.approx(0.5, abs=0.05)


def test_the_model_ends_an_answer_by_itself_or_at_max_tokens() -> None:
    made = engine()
    stops = made.add(prompt(4), max_tokens=10, now=0.0, stop_after=6)
    runs_on = made.add(prompt(4, 50), max_tokens=10, now=0.0, stop_after=30)
    run(made)
    assert (stops.record.output_tokens, stops.record.reason) == (6, "stop")
    assert (runs_on.record.output_tokens, runs_on.record.reason) == (10, "length")


def busy_day(seed: int) -> list[Sequence]:
    rng = random.Random(seed)
    made = engine(blocks=60, seed=seed, device=replace(DEVICE, jitter=0.5))
    requests = [
        made.add([rng.randrange(1000) for _ in range(rng.randrange(5, 200))], rng.randrange(1, 80), 0.0)
        for _ in range(30)
    ]
    run(made)
    return requests


def test_the_same_seed_gives_the_same_times_and_another_gives_others() -> None:
    times = [[list(request.record.token_times) for request in busy_day(seed)] for seed in (1, 1, 2)]
    assert times[0] == times[1]
    assert times[0] != times[2]
    assert sum(request.record.preemptions for request in busy_day(1)) > 0


def test_an_aborted_request_gives_its_blocks_back_and_forgets_what_its_client_did_not_get() -> None:
    made = engine()
    running = made.add(prompt(32), max_tokens=50, now=0.0)
    queued = made.add(prompt(32, 100), max_tokens=50, now=9.0)  # not there yet when the step begins
    step = made.step(0.0)
    assert step is not None
    assert made.abort(running, step.end - 0.001)
    assert made.abort(queued, step.end)
    assert not made.abort(queued, step.end)
    assert (running.record.output_tokens, running.record.reason) == (0, "abort")
    assert made.cache.usage == 0.0
    assert made.step(10.0) is None


def test_a_request_is_not_served_before_it_arrived() -> None:
    made = engine()
    made.add(prompt(4), max_tokens=1, now=2.0)
    assert made.step(1.0) is None
    assert made.step(2.0) is not None


def test_a_slot_reuses_what_its_last_prompt_and_answer_have_in_common_with_the_next() -> None:
    cache = SlotCache(slots=1, context=4096)
    made = Engine(DEVICE, MODEL, cache, Limits(max_num_seqs=1))
    first = made.add(prompt(100), max_tokens=5, now=0.0)
    run(made)
    same = made.add(prompt(100), max_tokens=5, now=1.0)
    run(made, 1.0)
    shared = made.add(prompt(60) + prompt(40, 500), max_tokens=5, now=2.0)
    run(made, 2.0)
    other = made.add(prompt(100, 900), max_tokens=5, now=3.0)
    run(made, 3.0)
    assert [r.record.cached_tokens for r in (first, same, shared, other)] == [0, 99, 60, 0]


def test_two_slots_serve_two_at_once_and_the_third_waits() -> None:
    made = Engine(DEVICE, MODEL, SlotCache(slots=2, context=4096), Limits(max_num_seqs=2))
    requests = [made.add(prompt(10, 100 * index), max_tokens=5, now=0.0) for index in range(3)]
    assert made.cache.usage == 0.0
    step = made.step(0.0)
    assert step is not None
    assert step.usage == pytest.approx(20 / 8192)
    run(made, step.end)
    assert requests[2].record.scheduled == requests[0].record.finished


@pytest.mark.parametrize(("length", "most"), [(0, 1), (1, 0)])
def test_a_request_without_a_prompt_or_an_answer_is_refused(length: int, most: int) -> None:
    with pytest.raises(ValueError, match="needs a prompt and max_tokens >= 1"):
        engine().add(prompt(length), most, 0.0)
