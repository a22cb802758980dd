"""OpenAI-compatible event streams: the inputs of public reports, cut anywhere, and what is right to read from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.probe.dialects import DIALECTS
from exporter.probe.dialects.lines import MAX_LINE
from exporter.probe.events import Ask, Done, Error, Event, Token, Usage
from exporter.probe.result import Reason
from tests.replay import answer, play

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
END = b"data: [DONE]\n\n"


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n"


def delta(**fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": fields}])


def usage(prompt: int, output: int) -> bytes:
    return event(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": output})


def read(*parts: bytes, dialect: str = "openai_chat") -> list[Event]:
    reader = DIALECTS[dialect]()
    return [event for part in parts for event in reader.feed(part)] + reader.finish()


def texts(events: Sequence[Event]) -> list[tuple[str, bool]]:
    return [(event.text, event.thinking) for event in events if isinstance(event, Token)]


ANSWER = (
    b": keep-alive\n\n"
    + delta(role="assistant", content="")
    + delta(reasoning="Hm")
    + delta(content="𓂧a")
    + usage(9, 3)
    + END
)


@given(st.lists(st.integers(0, len(ANSWER)), max_size=12))
def test_bytes_cut_anywhere_even_inside_a_character_give_the_same_events(cuts: list[int]) -> None:
    parts = [ANSWER[begin:end] for begin, end in pairwise([0, *sorted(cuts), len(ANSWER)])]
    assert read(*parts) == [
        Token("Hm", thinking=True), Token("𓂧a"), Usage(prompt_tokens=9, output_tokens=3), Done("")
    ]  # fmt: skip


async def test_comments_and_events_without_data_do_not_stop_the_clock() -> None:
    reads = answer(
        (0.1, b": keep-alive\n\n"),
        (0.2, b":\n\n"),
        (0.3, b": ping\n\n\n\n"),
        (0.4, b"event: ping\ndata:\n\n"),
        (0.5, delta(content="a")),
        (0.6, delta(content="b")),
        (0.6, END),
    )
    result = await play(CHAT, 0.0, reads)
    assert result.ok
    assert result.ttft == pytest.approx(0.5)


async def test_role_only_empty_and_null_chunks_do_not_stop_the_clock() -> None:
    reads = answer(
        (0.1, delta(role="assistant", content="")),
        (0.2, delta(content=None)),
        (0.3, delta()),
        (0.4, delta(content="a")),
        (0.5, END),
    )
    assert (await play(CHAT, 0.0, reads)).ttft == pytest.approx(0.4)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
async def test_reasoning_is_text_and_the_answers_first_token_is_a_second_figure(field: str) -> None:
    thought = delta(content=None, **{field: "x"})
    reads = answer((0.2, thought), (0.3, thought), (0.7, delta(content="Yes")), (0.8, usage(9, 3) + END))
    result = await play(CHAT, 0.05, reads)
    assert result.ttft == pytest.approx(0.15)
    assert result.answer_ttft == pytest.approx(0.65)
    assert result.gaps == pytest.approx((0.1, 0.4))


async def test_an_answer_of_reasoning_alone_has_a_ttft_and_no_answer_token() -> None:
    reads = answer((0.2, delta(reasoning="x")), (0.3, delta(reasoning="y")), (0.3, END))
    result = await play(CHAT, 0.0, reads)
    assert result.ttft == pytest.approx(0.2)
    assert result.answer_ttft is None


def test_reasoning_under_both_names_counts_once() -> None:
    assert texts(read(delta(reasoning="x", reasoning_content="x"))) == [("x", True)]


def test_a_tool_calls_arguments_are_text() -> None:
    calls = [{"index": 0, "function": {"name": "f", "arguments": '{"a":'}}]
    assert texts(read(delta(content=None, tool_calls=calls))) == [('f{"a":', False)]


@pytest.mark.parametrize("calls", [None, [], {}, "x", [1], [{"function": None}], [{"function": {"arguments": 5}}]])
def test_odd_tool_calls_are_no_text(calls: object) -> None:
    assert texts(read(delta(content="", tool_calls=calls))) == []


def test_the_usage_may_come_without_choices_at_either_end() -> None:
    first = event(choices=[], prompt_filter_results=[])
    null = event(choices=[{"index": 0, "delta": {"content": "a"}}], usage=None)
    assert read(first, null, usage(9, 1), END)[1] == Usage(prompt_tokens=9, output_tokens=1)


def test_a_completions_early_usage_of_zeros_is_not_the_usage() -> None:
    zero = {"prompt_tokens": 0, "completion_tokens": 0}
    events = read(event(choices=[{"text": "a"}], usage=zero), usage(4, 8), END, dialect="openai_completions")
    assert events[1] == Usage(prompt_tokens=4, output_tokens=8)


def test_only_the_end_mark_ends_an_answer() -> None:
    finished = event(choices=[{"index": 0, "delta": {}, "finish_reason": "length"}])
    assert read(delta(content="a"), finished) == [Token("a")]
    assert read(delta(content="a"), finished, END)[-1] == Done("length")


def test_an_end_mark_without_its_blank_line_or_with_other_line_ends_is_one() -> None:
    assert read(b"data: [DONE]")[-1] == Done("")
    assert read(b"data:[DONE]\r\n\r\n")[-1] == Done("")


def test_an_event_of_two_data_lines_is_one_object() -> None:
    assert texts(read(b'data: {"choices":[\ndata: {"delta":{"content":"a"}}]}\n\n')) == [("a", False)]


async def test_an_end_mark_without_any_text_is_a_failure() -> None:
    assert (await play(CHAT, 0.0, answer((0.1, END)))).reason is Reason.NO_TOKENS


async def test_a_stream_without_end_mark_is_truncated() -> None:
    assert (await play(CHAT, 0.0, answer((0.1, delta(content="a"))))).reason is Reason.TRUNCATED_STREAM


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "boom", "type": "InternalServerError", "code": 500}},
        {"error": "boom"},
        {"object": "error", "message": "boom", "code": 500},
    ],
)
async def test_an_error_inside_a_good_stream_is_the_failure(error: dict[str, Any]) -> None:
    reads = answer((0.1, delta(content="a")), (0.2, event(**error)), (0.3, END))
    result = await play(CHAT, 0.0, reads)
    assert result.reason is Reason.ERROR_IN_STREAM
    assert "boom" in result.error


async def test_a_plain_error_with_status_200_is_the_failure() -> None:
    result = await play(CHAT, 0.0, answer((0.1, b'{"error":{"message":"boom"}}')))
    assert result.reason is Reason.ERROR_IN_STREAM


async def test_a_web_page_is_a_protocol_failure() -> None:
    assert (await play(CHAT, 0.0, answer((0.1, b"<html>\n</html>\n")))).reason is Reason.PROTOCOL


async def test_sixty_events_in_one_read_are_coalesced_and_have_no_itl() -> None:
    whole = b"".join(delta(content="x") for _ in range(60)) + usage(9, 60) + END
    result = await play(CHAT, 0.0, answer((16.0, whole)))
    assert (result.ok, result.coalesced, result.gaps, result.tpot) == (True, True, (), None)
    assert result.ttft == pytest.approx(16.0)


async def test_several_tokens_in_each_chunk_leave_tpot_to_the_servers_count() -> None:
    reads = answer(*((0.04 * step, delta(content="four tokens")) for step in range(1, 11)), (0.4, usage(9, 40) + END))
    result = await play(CHAT, 0.0, reads)
    assert result.gaps == pytest.approx([0.04] * 9)
    assert result.tpot == pytest.approx(0.36 / 39)
    assert result.decode_rate == pytest.approx(39 / 0.36)


async def test_a_read_of_two_events_is_spread_only_where_the_usage_counts_one_each() -> None:
    pieces = [(0.1, delta(content="a")), (0.2, delta(content="b")), (0.4, delta(content="c") + delta(content="d"))]
    counted = await play(CHAT, 0.0, answer(*pieces, (0.5, delta(content="e")), (0.5, usage(9, 5) + END)))
    uncounted = await play(CHAT, 0.0, answer(*pieces, (0.5, delta(content="e")), (0.5, END)))
    assert counted.gaps == pytest.approx((0.1, 0.1, 0.1, 0.1))
    assert uncounted.gaps == pytest.approx((0.1, 0.2, 0.1))


async def test_vllms_own_times_give_the_phases() -> None:
    metrics = {"queue_time_ms": 30.0, "time_to_first_token_ms": 100.0, "generation_time_ms": 40.0}
    last = event(choices=[{"text": "c", "finish_reason": "length"}], metrics=metrics)
    text = event(choices=[{"text": "a"}])
    reads = answer((0.15, text), (0.17, text), (0.19, last), (0.2, usage(200, 3) + END))
    result = await play(COMPLETIONS, 0.01, reads)
    assert result.phases == pytest.approx({"connect": 0.01, "queue": 0.04, "prefill": 0.1, "decode": 0.05})
    assert result.prefill_rate == pytest.approx(2000)
    assert result.decode_rate == pytest.approx(50)


@pytest.mark.parametrize(
    "junk", [b"data: [1]\n\n", b'data: {"a":\n\n', b"data: " + b"[" * 200_000 + b"\n\n", b"\xff\n"]
)
def test_what_is_no_event_of_the_api_is_a_malformed_error(junk: bytes) -> None:
    assert [event.malformed for event in read(junk) if isinstance(event, Error)] == [True]


def test_an_endless_line_is_given_up() -> None:
    events = read(b"x" * MAX_LINE, b"x")
    assert [event for event in events if isinstance(event, Error) and event.malformed]


@pytest.mark.parametrize(("dialect", "key"), [("openai_chat", "messages"), ("openai_completions", "prompt")])
def test_the_request_streams_with_usage_and_carries_the_engines_own_keys(dialect: str, key: str) -> None:
    body = DIALECTS[dialect]().body(Ask("m", "p", 32, "5s", {"ignore_eos": True}))
    prompt = "p" if key == "prompt" else [{"role": "user", "content": "p"}]
    assert body == {
        "model": "m", "max_tokens": 32, "stream": True, "temperature": 0.8, "ignore_eos": True,
        "stream_options": {"include_usage": True}, key: prompt,
    }  # fmt: skip


async def test_an_error_in_a_field_of_its_own_as_llama_cpp_sent_it_is_the_servers_error() -> None:
    told = b'error: {"code":500,"message":"boom","type":"server_error"}\n\n'
    result = await play(CHAT, 0.0, answer((0.1, delta(content="a")), (0.2, told)))
    assert result.reason is Reason.ERROR_IN_STREAM
    assert result.error.endswith("boom")
