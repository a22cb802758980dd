from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.probe.dialects import DIALECTS
from exporter.probe.dialects.lines import MAX_LINE
from exporter.probe.events import Ask, Done, Error, Event, Token, Usage
from tests.ollama_fakes import done, fixture, line, timed_fixture

EMOJI = b"".join(data for _, data in timed_fixture("emoji_stream.times.ndjson"))


def read(*parts: bytes) -> list[Event]:
    dialect = DIALECTS["ollama_generate"]()
    events = [event for part in parts for event in dialect.feed(part)]
    return events + dialect.finish()


def texts(events: Sequence[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Token)]


def test_a_recorded_answer_gives_its_tokens_its_counts_and_its_end() -> None:
    events = read(fixture("gen_cold_stream.ndjson"))
    assert len(texts(events)) == 16
    assert "".join(texts(events)).startswith(" a man in a white")
    usage, end = events[-2:]
    assert isinstance(usage, Usage)
    assert (usage.prompt_tokens, usage.output_tokens) == (9, 16)
    assert usage.load_s == pytest.approx(2.813020711)
    assert usage.prefill_s == pytest.approx(0.103665)
    assert usage.decode_s == pytest.approx(0.438924)
    assert end == Done("length")


@given(st.lists(st.integers(0, len(EMOJI)), max_size=12))
def test_bytes_cut_anywhere_even_inside_a_character_give_the_same_events(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(EMOJI)]
    parts = [EMOJI[begin:end] for begin, end in pairwise(edges)]
    assert read(*parts) == read(EMOJI)
    assert "".join(texts(read(EMOJI))) == "𓂧𓂹𓂹𓂧𓂹𓂧𓂹𓂧𓂹𓂧"


def test_thinking_and_answer_are_both_text_also_within_one_line() -> None:
    events = read(line(thinking="Hm"), line("Yes", thinking="."), line(thinking=None), done())
    assert events[:-2] == [Token("Hm", thinking=True), Token(".Yes")]


def test_a_last_line_without_line_feed_is_read_at_the_end() -> None:
    assert read(fixture("empty_prompt_load_stream.ndjson")) == [Usage(), Done("load")]


def test_an_error_line_is_an_error_even_if_it_says_done() -> None:
    assert read(fixture("child_sigkill_midstream.ndjson"))[-1] == Error(
        "an error was encountered while running the model: unexpected EOF"
    )
    assert read(b'{"error":"boom","done":true}\n') == [Error("boom")]


@pytest.mark.parametrize("junk", [b"<html>\n", b"[1]\n", b'{"response":\n', b"\xff\n", b"[" * 200_000 + b"\n"])
def test_what_is_no_json_object_is_a_malformed_error(junk: bytes) -> None:
    assert [event.malformed for event in read(junk) if isinstance(event, Error)] == [True]


def test_an_endless_line_is_given_up() -> None:
    events = read(b"x" * MAX_LINE, b"x")
    assert [event for event in events if isinstance(event, Error) and event.malformed]


@pytest.mark.parametrize("value", [True, "5", -1, None, float("nan"), [1]])
def test_a_count_that_is_no_number_from_zero_on_is_absent(value: object) -> None:
    usage = read(json.dumps({"done": True, "eval_count": value, "eval_duration": value}).encode())[0]
    assert usage == Usage()


def test_a_missing_prompt_count_of_a_cached_prompt_is_absent_not_zero() -> None:
    row = b'{"done":true,"total_duration":300000000,"load_duration":2000000,"eval_count":5,"eval_duration":90000000}'
    usage = read(row)[0]
    assert isinstance(usage, Usage)
    assert usage.output_tokens == 5
    assert (usage.prompt_tokens, usage.prefill_s) == (None, None)


def test_a_chats_thinking_and_answer_are_under_message() -> None:
    dialect = DIALECTS["ollama_chat"]()
    events = dialect.feed(
        b'{"message":{"role":"assistant","content":"","thinking":"Hm"},"done":false}\n'
        b'{"message":{"role":"assistant","content":"Yes","thinking":"."},"done":false}\n'
        b'{"message":{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f"}}]},"done":false}\n'
        b'{"message":{"role":"assistant","content":""},"done":true,"done_reason":"stop","eval_count":3,'
        b'"eval_duration":2000000000}\n'
    )
    assert events == [
        Token("Hm", thinking=True),
        Token(".Yes"),
        Token('[{"function": {"name": "f"}}]'),
        Usage(output_tokens=3, decode_s=2.0),
        Done("stop"),
    ]


def test_a_chat_asks_with_one_message_and_the_same_options() -> None:
    chat, generate = (DIALECTS[name]().body(Ask("m", "p", 32, "77s")) for name in ("ollama_chat", "ollama_generate"))
    assert chat["messages"] == [{"role": "user", "content": "p"}]
    assert {**chat, "messages": None, "prompt": None} == {**generate, "messages": None, "prompt": None}


def test_a_request_that_names_no_expiry_has_no_keep_alive() -> None:
    assert "keep_alive" not in DIALECTS["ollama_generate"]().body(Ask("m", "p", 32))


def test_the_request_streams_keeps_the_expiry_and_has_no_option_that_reloads_the_model() -> None:
    body = DIALECTS["ollama_generate"]().body(Ask("m", "p", 32, 77))
    assert body["stream"] is True
    assert body["keep_alive"] == 77
    options = body["options"]
    assert isinstance(options, dict)
    assert set(options) == {"temperature", "seed", "num_predict"}
    assert options["num_predict"] == 32


def test_a_number_too_large_for_any_duration_is_one_that_was_not_told() -> None:
    usage = next(event for event in read(done(eval_duration=10**400, eval_count=10**400)) if isinstance(event, Usage))
    assert (usage.decode_s, usage.output_tokens, usage.prompt_tokens) == (None, None, 200)


def test_a_servers_error_becomes_one_short_line() -> None:
    (error,) = read(json.dumps({"error": "CUDA error:\n  out of memory\n" + "x" * 5000}).encode() + b"\n")
    assert isinstance(error, Error)
    assert error.text.startswith("CUDA error: out of memory xxx")
    assert len(error.text) <= 200
