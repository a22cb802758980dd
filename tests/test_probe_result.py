"""What a probe measures, under a fake clock: bytes and their times in, figures out."""

from __future__ import annotations

from itertools import pairwise

import pytest

from exporter.probe.result import Reason
from tests.ollama_fakes import Piece, done, fixture, line, probe_pieces, timed_fixture

PLAIN: list[Piece] = [
    (0.5, line("a")),
    (0.02, line("b")),
    (0.03, line("c")),
    (0.01, line("d")),
    (0.001, done()),
]


def recorded(name: str) -> list[Piece]:
    rows = timed_fixture(name)
    return [(at - before, data) for (before, _), (at, data) in pairwise([(0.0, b""), *rows])]


async def test_ttft_runs_from_the_last_byte_sent_and_connection_set_up_is_apart() -> None:
    result = await probe_pieces(PLAIN, connect=0.2)
    assert result.ok
    assert result.ttft == pytest.approx(0.5)
    assert result.phases["connect"] == pytest.approx(0.2)


async def test_itl_is_the_gaps_between_reads_and_tpot_goes_by_the_servers_count() -> None:
    result = await probe_pieces(PLAIN)
    assert result.gaps == pytest.approx((0.02, 0.03, 0.01))
    assert result.tpot == pytest.approx(0.06 / 3)
    assert result.decode_rate == pytest.approx(3 / 0.06)
    assert result.prefill_rate == pytest.approx(200 / 0.1)


async def test_phases_add_up_to_the_time_to_the_last_read_of_the_answer() -> None:
    result = await probe_pieces(PLAIN, connect=0.2)
    assert result.phases == pytest.approx(
        {"connect": 0.2, "queue": 0.5 - 0.001 - 0.1, "load": 0.001, "prefill": 0.1, "decode": 0.061}
    )
    assert sum(result.phases.values()) == pytest.approx(0.2 + 0.561)


async def test_server_times_longer_than_ttft_leave_no_queue_and_keep_the_sum() -> None:
    result = await probe_pieces([*PLAIN[:-1], (0.0, done(load_duration=200_000_000, prompt_eval_duration=900_000_000))])
    assert result.phases == pytest.approx({"connect": 0, "queue": 0, "load": 0.2, "prefill": 0.3, "decode": 0.06})


async def test_a_wait_behind_another_model_is_queue() -> None:
    pieces = [
        (50.3, line("a")),
        (0.02, line("b")),
        (0.0, done(load_duration=10**8, prompt_eval_duration=2 * 10**8)),
    ]
    result = await probe_pieces(pieces)
    assert result.phases["queue"] == pytest.approx(50.0)


async def test_thinking_stops_the_clock_of_ttft() -> None:
    result = await probe_pieces([(0.1, line(thinking="Hm")), (1.0, line("Yes", thinking=".")), (0.0, done())])
    assert result.ttft == pytest.approx(0.1)
    assert result.gaps == pytest.approx((1.0,))


async def test_empty_lines_do_not_stop_the_clock_of_ttft() -> None:
    result = await probe_pieces([(0.1, line()), (0.4, line("a")), (0.1, line("b")), (0.0, done())])
    assert result.ttft == pytest.approx(0.5)


async def test_a_line_in_two_reads_counts_when_it_is_complete() -> None:
    result = await probe_pieces([(0.1, line("a")[:9]), (0.2, line("a")[9:]), (0.1, line("b")), (0.0, done())])
    assert result.ttft == pytest.approx(0.3)


async def test_a_gap_before_a_read_of_several_tokens_is_spread_where_the_count_says_one_a_line() -> None:
    pieces = [
        (0.5, line("a")),
        (0.02, line("b")),
        (0.06, line("c") + line("d")),
        (0.02, line("e")),
        (0.0, done(eval_count=5)),
    ]
    assert (await probe_pieces(pieces)).gaps == pytest.approx((0.02, 0.03, 0.03, 0.02))


@pytest.mark.parametrize("eval_count", [None, 20])
async def test_a_gap_is_not_spread_where_lines_are_not_tokens(eval_count: int | None) -> None:
    pieces = [
        (0.5, line("a")),
        (0.02, line("b")),
        (0.06, line("c") + line("d")),
        (0.02, line("e")),
        (0.0, done(eval_count=eval_count)),
    ]
    assert (await probe_pieces(pieces)).gaps == pytest.approx((0.02, 0.06, 0.02))


async def test_a_buffering_proxys_answer_is_coalesced_and_has_no_itl_and_no_tpot() -> None:
    whole = b"".join(line("x") for _ in range(60)) + done(eval_count=60, eval_duration=15 * 10**8)
    result = await probe_pieces([(16.0, whole)])
    assert result.ok
    assert result.coalesced
    assert result.gaps == ()
    assert result.tpot is None
    assert result.ttft == pytest.approx(16.0)
    assert result.phases["decode"] == pytest.approx(1.5)
    assert sum(result.phases.values()) == pytest.approx(16.0)


async def test_a_few_shared_reads_do_not_make_a_stream_coalesced() -> None:
    pieces = [
        (0.5, line("a")),
        (0.1, line("b")),
        (0.1, line("c")),
        (0.1, line("d") + line("e")),
        (0.0, done(eval_count=5)),
    ]
    assert not (await probe_pieces(pieces)).coalesced


async def test_the_recorded_200_token_prompt_has_its_recorded_figures() -> None:
    result = await probe_pieces(recorded("200tok_miss_stream.times.ndjson"), min_prompt_tokens=150)
    assert result.ok
    assert result.ttft == pytest.approx(0.337023)
    assert result.prefill_rate == pytest.approx(197 / 0.323556)
    assert result.decode_rate == pytest.approx(15 / 1.016432)
    assert len(result.gaps) == 15
    assert result.phases["queue"] == pytest.approx(0.337023 - 0.323556 - 0.000951069)


async def test_lines_of_several_tokens_each_leave_tpot_to_the_servers_count() -> None:
    result = await probe_pieces(recorded("emoji_stream.times.ndjson"), min_prompt_tokens=20)
    assert len(result.gaps) == 9
    assert result.tpot == pytest.approx((0.777569 - 0.19441) / 39)


async def test_a_held_back_stop_word_leaves_few_lines_and_tpot_to_the_servers_count() -> None:
    rows = fixture("stop_partial.ndjson").splitlines(keepends=True)
    result = await probe_pieces([(0.1, row) for row in rows], min_prompt_tokens=20)
    assert result.gaps == pytest.approx([0.1] * 5)
    assert result.tpot == pytest.approx(0.5 / 23)


async def test_one_token_gives_no_rate_of_a_million_tokens_a_second() -> None:
    pieces = [(0.02, row) for row in fixture("np1_stream.ndjson").splitlines(keepends=True)]
    result = await probe_pieces(pieces, min_prompt_tokens=20)
    assert result.ok
    assert (result.decode_rate, result.tpot, result.gaps) == (None, None, ())


async def test_no_rate_comes_from_a_duration_under_a_millisecond() -> None:
    result = await probe_pieces([*PLAIN[:-1], (0.0, done(eval_duration=999_999, prompt_eval_duration=0))])
    assert (result.decode_rate, result.prefill_rate) == (None, None)


async def test_cached_prompt_tokens_do_not_count_as_prefill() -> None:
    counts = {"prompt_eval_count": 1000, "prompt_eval_cached_count": 990, "prompt_eval_duration": 20_000_000}
    result = await probe_pieces([*PLAIN[:-1], (0.0, done(**counts))])
    assert result.prefill_rate == pytest.approx(500.0)


async def test_missing_prompt_counts_give_no_prefill_rate_and_no_phases() -> None:
    result = await probe_pieces([*PLAIN[:-1], (0.0, done(prompt_eval_count=None, prompt_eval_duration=None))])
    assert result.ok
    assert result.prefill_rate is None
    assert result.phases == {}
    assert result.ttft == pytest.approx(0.5)


async def test_a_prompt_cut_to_the_context_fails_as_truncated_prompt() -> None:
    result = await probe_pieces([*PLAIN[:-1], (0.0, done(prompt_eval_count=66))])
    assert result.reason is Reason.TRUNCATED_PROMPT
    assert result.ttft is None


async def test_text_without_done_is_a_truncated_stream() -> None:
    result = await probe_pieces(PLAIN[:-1])
    assert result.reason is Reason.TRUNCATED_STREAM
    assert (result.ttft, result.gaps, result.waited) == (None, (), None)


async def test_done_without_text_is_no_tokens() -> None:
    assert (await probe_pieces([(0.1, done())])).reason is Reason.NO_TOKENS


async def test_an_empty_answer_is_a_truncated_stream() -> None:
    assert (await probe_pieces([])).reason is Reason.TRUNCATED_STREAM


async def test_an_error_in_the_stream_fails_though_the_status_was_200() -> None:
    result = await probe_pieces([(0.1, line("a")), (0.1, b'{"error":"model runner has stopped"}\n')])
    assert result.reason is Reason.ERROR_IN_STREAM
    assert "model runner has stopped" in result.error


async def test_a_web_page_as_the_answer_is_a_protocol_failure() -> None:
    assert (await probe_pieces([(0.1, b"<html>\n")])).reason is Reason.PROTOCOL


@pytest.mark.parametrize(("load", "cold"), [(2_813_020_711, True), (1_000_000, False)])
async def test_a_load_shows_in_the_servers_duration_and_makes_the_probe_cold(load: int, cold: bool) -> None:
    result = await probe_pieces([(3.0, line("a")), (0.1, line("b")), (0.0, done(load_duration=load))])
    assert (result.reloaded, result.cold) == (cold, cold)
