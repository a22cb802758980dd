"""The simulated Ollama against recordings of a real one: the same keys in the same order, the same rules."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.simulator.lengths import LogNormal
from tests.simulated import GEMMA, OLLAMA, Reply, ollama, serving, shape

GENERATE: dict[str, Any] = {"model": "gemma3:270m", "prompt": "The lighthouse keeper opened the door and saw"}
SIXTEEN = GENERATE | {"options": {"temperature": 0, "seed": 1, "num_predict": 16}}
USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
EIGHT: dict[str, Any] = {"max_tokens": 8}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me one short fact about rivers."}]}
LOAD_SECONDS = GEMMA.model.weight_bytes / OLLAMA.device.disk_bandwidth


def recorded(fixtures: Path, name: str) -> tuple[int, dict[str, str], list[Any]]:
    """Return a recorded answer's status, headers and objects (the end mark of an event stream as text)."""
    head, _, body = (fixtures / "simulator" / f"ollama-{name}.http").read_text().partition("\n\n")
    status, *lines = head.splitlines()
    headers = {key.lower(): value for key, _, value in (line.partition(": ") for line in lines)}
    texts = [line.removeprefix("data: ") for line in body.splitlines() if line]
    return (
        int(status.split()[1]),
        headers,
        [json.loads(text) if text[0] in "{[" and text != "[DONE]" else text for text in texts],
    )


def objects(reply: Reply) -> list[Any]:
    return reply.events if reply.headers["content-type"].startswith("text/event-stream") else reply.lines


def words_in(lines: list[dict[str, Any]], *path: str) -> list[str]:
    found = []
    for line in lines:
        value: Any = line
        for key in path:
            value = value.get(key, {})
        found.append(value or "")
    return found


@pytest.mark.parametrize(
    ("name", "method", "path", "body"),
    [
        ("version", "GET", "/api/version", None),
        ("ps_empty", "GET", "/api/ps", None),
        ("gen_cold_nonstream", "POST", "/api/generate", SIXTEEN | {"stream": False}),
        ("gen_cold_stream", "POST", "/api/generate", SIXTEEN),
        ("np1_stream", "POST", "/api/generate", GENERATE | {"options": {"num_predict": 1}}),
        ("empty_prompt_load_stream", "POST", "/api/generate", {"model": "gemma3:270m"}),
        ("chat_stream", "POST", "/api/chat", CHAT | {"model": "gemma3-chat", "options": {"num_predict": 24}}),
        ("v1_chat_nousage", "POST", "/v1/chat/completions", CHAT | EIGHT | {"model": "gemma3-chat", "stream": True}),
        ("v1_chat_usage", "POST", "/v1/chat/completions", CHAT | EIGHT | USAGE | {"model": "gemma3-chat"}),
        ("v1_completions_usage", "POST", "/v1/completions", GENERATE | EIGHT | USAGE),
        ("unknown_model_generate", "POST", "/api/generate", {"model": "nope", "prompt": "x"}),
        ("malformed_json", "POST", "/api/generate", b'{"model": "gemma3:270m", "prompt": '),
        ("chat_think_unsupported", "POST", "/api/chat", CHAT | {"model": "gemma3-chat", "think": True}),
    ],
)  # fmt: skip
async def test_an_answer_has_the_recorded_status_type_and_keys(
    fixtures: Path, name: str, method: str, path: str, body: object
) -> None:
    status, headers, theirs = recorded(fixtures, name)
    async with serving(ollama()) as (_, client):
        reply = await client.clock.run(client.fetch(method, path, body))
    assert reply.status == status
    assert reply.headers["content-type"] == headers["content-type"]
    assert [shape(line) for line in objects(reply)] == [shape(line) for line in theirs]
    if status != 200:
        assert objects(reply) == theirs


@pytest.mark.parametrize(
    ("name", "path"), [("ps_loaded", "/api/ps"), ("tags", "/api/tags"), ("v1_models", "/v1/models")]
)
async def test_a_listing_has_the_recorded_keys(fixtures: Path, name: str, path: str) -> None:
    _, _, (theirs,) = recorded(fixtures, name)
    async with serving(ollama()) as (_, client):
        await client.post("/api/generate", SIXTEEN)
        ours = (await client.get(path)).json
    assert shape(ours) == shape(theirs)


async def test_show_has_the_recorded_keys_and_the_shape_of_the_attention(fixtures: Path) -> None:
    theirs = json.loads((fixtures / "ollama" / "show.json").read_text())
    async with serving(ollama()) as (_, client):
        ours = (await client.post("/api/show", {"model": "gemma3:270m"})).json
        assert (await client.post("/api/show", {"model": "nope"})).status == 404
    assert list(ours) == list(theirs)
    for name in ("head_count", "head_count_kv", "key_length", "value_length"):
        assert ours["model_info"][f"gemma3.attention.{name}"] == theirs["model_info"][f"gemma3.attention.{name}"]
    assert ours["model_info"]["gemma3.block_count"] == theirs["model_info"]["gemma3.block_count"]


async def test_the_durations_are_the_truths_and_add_up_to_the_total() -> None:
    async with serving(ollama()) as (server, client):
        await client.post("/api/generate", SIXTEEN)
        last = (await client.post("/api/generate", SIXTEEN | {"prompt": "Another one"})).lines[-1]
        record = server.ledger.records[-1]
    assert last["eval_count"] == record.output_tokens == 16
    assert last["eval_duration"] / 1e9 == pytest.approx(record.decode, abs=1e-6)  # the first token is not in it
    assert last["prompt_eval_duration"] / 1e9 == pytest.approx(record.prefill, abs=1e-6)
    parts = last["load_duration"] + last["prompt_eval_duration"] + last["eval_duration"]
    assert last["total_duration"] == pytest.approx(parts, rel=1e-3)


async def test_a_repeated_prompt_keeps_its_count_and_loses_its_duration() -> None:
    settings = replace(OLLAMA, cached_count=True)
    async with serving(ollama(settings)) as (_, client):
        ask = SIXTEEN | {"prompt": "word " * 1500}
        await client.post("/api/generate", SIXTEEN)
        miss, hit = [(await client.post("/api/generate", ask)).lines[-1] for _ in range(2)]
        shared = (await client.post("/api/generate", SIXTEEN | {"prompt": "word " * 1000 + "other " * 500})).lines[-1]
    assert miss["prompt_eval_count"] == hit["prompt_eval_count"] > 1500
    assert [line["prompt_eval_cached_count"] for line in (hit, shared)] == [hit["prompt_eval_count"] - 1, 1001]
    assert hit["prompt_eval_duration"] < miss["prompt_eval_duration"] / 5
    keys = list(hit)
    assert keys.index("prompt_eval_cached_count") == keys.index("prompt_eval_count") + 1


@pytest.mark.parametrize("predict", [0, -1, -2])
async def test_a_num_predict_of_zero_or_less_does_not_limit(predict: int) -> None:
    settings = replace(OLLAMA, answers=LogNormal(37, 0.0))
    async with serving(ollama(settings)) as (_, client):
        last = (await client.post("/api/generate", GENERATE | {"options": {"num_predict": predict}})).lines[-1]
    assert (last["eval_count"], last["done_reason"]) == (37, "stop")


async def test_one_token_has_an_eval_duration_of_a_microsecond() -> None:
    async with serving(ollama()) as (_, client):
        last = (await client.post("/api/generate", GENERATE | {"options": {"num_predict": 1}})).lines[-1]
    assert (last["eval_count"], last["eval_duration"]) == (1, 1000)


async def test_each_token_comes_in_a_chunk_of_its_own_and_the_headers_with_the_first() -> None:
    server = ollama()
    async with serving(server) as (_, client):
        opening = asyncio.create_task(client.fetch("POST", "/api/generate", SIXTEEN))
        while server.clock.now() < LOAD_SECONDS:
            await client.clock.advance(0.01)
            assert not opening.done()
        reply = await client.clock.run(opening)
    assert len(reply.reads) == 17
    assert all(chunk.count(b"\n") == 1 for chunk in reply.reads)


async def test_tokens_that_share_a_line_are_still_counted() -> None:
    server = ollama()
    server.faults.tokens_per_line = 4
    async with serving(server) as (_, client):
        lines = (await client.post("/api/generate", SIXTEEN)).lines
    assert len(lines) == 5
    assert lines[-1]["eval_count"] == 16


async def test_a_model_that_thinks_does_so_unless_told_not_to() -> None:
    async with serving(ollama(replace(OLLAMA, thinking_tokens=10))) as (_, client):
        ask = CHAT | {"model": "gemma3-think", "options": {"num_predict": 24}}
        thinks = (await client.post("/api/chat", ask)).lines
        quick = (await client.post("/api/chat", ask | {"think": False})).lines
    assert len(thinks) == 23  # 24 tokens, of which the two marks around the thoughts have no line, and the last line
    assert [bool(text) for text in words_in(thinks, "message", "thinking")] == [True] * 8 + [False] * 15
    assert words_in(thinks, "message", "content")[:8] == [""] * 8
    assert thinks[-1]["eval_count"] == quick[-1]["eval_count"] == 24
    assert not any(words_in(quick, "message", "thinking"))


@pytest.mark.parametrize("name", ["chat_think_absent", "v1_chat_think"])
async def test_thoughts_have_the_recorded_keys(fixtures: Path, name: str) -> None:
    _, _, theirs = recorded(fixtures, name)
    async with serving(ollama(replace(OLLAMA, thinking_tokens=1000))) as (_, client):
        body = CHAT | {"model": "gemma3-think", "stream": True}
        if name.startswith("v1"):
            extra = EIGHT | USAGE | {"reasoning_effort": "high"}
            ours = (await client.post("/v1/chat/completions", body | extra)).events
        else:
            ours = (await client.post("/api/chat", body | {"options": {"num_predict": 24}})).lines
    assert [shape(ours[0]), shape(ours[1]), shape(ours[-1])] == [shape(theirs[0]), shape(theirs[1]), shape(theirs[-1])]


async def test_a_prompt_that_does_not_fit_is_cut_silently_or_refused_as_recorded(fixtures: Path) -> None:
    status, _, (theirs,) = recorded(fixtures, "numctx256_prompt400_truncate_false")
    async with serving(ollama()) as (_, client):
        ask = GENERATE | {"prompt": "word " * 404, "options": {"num_ctx": 256, "num_predict": 4}}
        cut = await client.post("/api/generate", ask)
        refused = await client.post("/api/generate", ask | {"truncate": False})
    assert cut.lines[-1]["prompt_eval_count"] == 131
    assert (refused.status, refused.json) == (status, theirs)


async def test_a_stream_can_end_cleanly_without_its_last_line() -> None:
    server = ollama()
    server.faults.silent_end_after = 10
    async with serving(server) as (_, client):
        reply = await client.post("/api/generate", SIXTEEN)
    assert not reply.broken
    assert len(reply.lines) == 10
    assert not any(line["done"] for line in reply.lines)


async def test_a_foreign_host_name_is_refused_on_a_loopback_address(fixtures: Path) -> None:
    status, _, _ = recorded(fixtures, "host_header_403")
    async with serving(ollama()) as (_, client):
        foreign = await client.get("/api/version", Host="gpu-box:11434")
        assert (foreign.status, foreign.body) == (status, b"")
        for host in ("localhost:1", "127.0.0.1", "[::1]:11434", "ollama.internal", "10.0.0.7:11434"):
            assert (await client.get("/api/version", Host=host)).status == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/api/generate", b"{model}", 400, "invalid character"),
        ("/api/generate", b"[]", 400, "expected a JSON object"),
        ("/api/generate", GENERATE | {"options": {"num_ctx": "many"}}, 500, 'option "num_ctx" must be of type integer'),
        ("/api/generate", GENERATE | {"options": [1]}, 400, "cannot unmarshal options"),
        ("/api/generate", GENERATE | {"prompt": 1}, 400, "cannot unmarshal prompt"),
        ("/api/generate", GENERATE | {"keep_alive": "soon"}, 400, 'time: invalid duration "soon"'),
        ("/api/chat", {"model": "gemma3-chat", "messages": [1]}, 400, "each message needs a role"),
        ("/v1/completions", {"model": "nope", "prompt": "x"}, 404, "model 'nope' not found"),
        ("/v1/chat/completions", {"model": "gemma3-chat", "messages": "hi"}, 400, "messages must be a list"),
    ],
)
async def test_a_bad_request_is_refused(path: str, body: object, status: int, message: str) -> None:
    async with serving(ollama()) as (_, client):
        reply = await client.post(path, body)
    assert reply.status == status
    error = reply.json["error"]
    assert message in (error if isinstance(error, str) else error["message"])


@pytest.mark.parametrize("path", ["/metrics", "/health", "/slots"])
async def test_what_ollama_does_not_have_is_404(path: str) -> None:
    async with serving(ollama()) as (_, client):
        assert (await client.get(path)).status == 404


async def test_a_whole_answer_in_openais_dialect_has_text_and_usage() -> None:
    async with serving(ollama()) as (_, client):
        chat = (await client.post("/v1/chat/completions", CHAT | {"model": "gemma3-chat", "max_tokens": 5})).json
        plain = (await client.post("/v1/completions", {"model": "gemma3-chat", "prompt": "x", "max_tokens": 5})).json
    assert len(chat["choices"][0]["message"]["content"].split()) == 5
    assert len(plain["choices"][0]["text"].split()) == 5
    assert chat["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"] == 5
