"""The simulated vLLM against what a real one of version 0.32 was recorded to answer, and against its own truth."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from exporter.simulator import words
from exporter.simulator.lengths import LogNormal
from exporter.simulator.vllm import VllmServer
from tests.simulated import VLLM, serving, shape, vllm

PAYLOAD: dict[str, Any] = {"model": "tiny", "prompt": "Explain memory bandwidth.", "max_tokens": 24, "ignore_eos": True}
STREAM = PAYLOAD | {"stream": True}
MESSAGES = [{"role": "user", "content": "Explain memory bandwidth."}]


def recorded(path: Path) -> tuple[dict[str, Any], int, dict[str, str], list[Any]]:
    """Return a recording's request, status, headers and the JSON objects of its body."""
    request, *reads = [json.loads(line) for line in path.read_text().splitlines()]
    head, _, body = "".join(read["bytes"] for read in reads).partition("\r\n\r\n")
    status, *lines = head.split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    texts = [part[6:] for part in body.split("\n") if part.startswith("data: ")] or [body]
    objects = [json.loads(text) if text.startswith("{") else text.strip() for text in texts]
    return request["request"], int(status.split()[1]), headers, objects


def as_recorded(name: str) -> VllmServer:
    """Return a server with the recorded one's options."""
    return vllm(replace(VLLM, enable_per_request_metrics=name.endswith("timed")))


STREAMS = ["completions", "completions-usage", "completions-timed", "chat", "chat-continuous-usage", "chat-timed"]


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_has_the_recorded_ones_headers_events_and_keys(fixtures: Path, name: str) -> None:
    asked, _, headers, events = recorded(fixtures / "simulator" / f"vllm-0.32.0-{name}.ndjson")
    async with serving(as_recorded(name)) as (_, client):
        reply = await client.post(asked["path"], asked["body"])
    assert reply.headers["content-type"] == headers["content-type"]
    assert reply.headers["server"] == headers["server"]
    assert [shape(event) for event in reply.events] == [shape(event) for event in events]
    assert reply.events[-1] == "[DONE]"


@pytest.mark.parametrize("name", ["completions-plain", "completions-plain-timed", "unknown-model", "prompt-too-long"])
async def test_a_whole_answer_and_an_error_have_the_recorded_keys(fixtures: Path, name: str) -> None:
    asked, status, headers, objects = recorded(fixtures / "simulator" / f"vllm-0.32.0-{name}.ndjson")
    async with serving(as_recorded(name)) as (_, client):
        reply = await client.post(asked["path"], asked["body"])
    assert reply.status == status
    assert reply.headers["content-type"].partition(";")[0] == headers["content-type"]
    assert shape(reply.json) == shape(objects[0])


async def test_an_unknown_model_is_refused_in_the_recorded_words(fixtures: Path) -> None:
    asked, status, _, objects = recorded(fixtures / "simulator" / "vllm-0.32.0-unknown-model.ndjson")
    async with serving(vllm()) as (_, client):
        reply = await client.post(asked["path"], asked["body"])
    assert (reply.status, reply.json) == (status, objects[0])


async def test_headers_come_when_the_request_is_accepted_and_each_token_in_a_read_of_its_own() -> None:
    server = vllm()
    async with serving(server) as (_, client):
        url = f"{server.url}/v1/completions"
        async with client.session.post(url, json=STREAM) as response:
            assert response.status == 200  # nobody has moved the clock yet
            assert not server.ledger.records[0].token_times or server.clock.now() == 0.0
            reads = await client.clock.run(collect(response))
    assert sum(read.count(b"data: {") for read in reads) == 24
    assert all(read.count(b"data: {") == 1 for read in reads[:-1])


async def collect(response: aiohttp.ClientResponse) -> list[bytes]:
    return [chunk async for chunk, _ in response.content.iter_chunks()]


async def test_the_text_is_what_was_generated_and_usage_counts_it() -> None:
    async with serving(vllm()) as (server, client):
        streamed = await client.post("/v1/completions", STREAM | {"stream_options": {"include_usage": True}})
        whole = await client.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 9, "ignore_eos": True})
        text = "".join(choice["text"] for event in streamed.events[:-1] for choice in event["choices"])
        assert len(words.encode(text)) == 24
        assert streamed.events[-2]["usage"] == {"prompt_tokens": 4, "total_tokens": 28, "completion_tokens": 24}
        assert len(words.encode(whole.json["choices"][0]["message"]["content"])) == 9
        assert whole.json["usage"]["completion_tokens"] == 9
        assert [record.output_tokens for record in server.ledger.records] == [24, 9]


async def test_the_times_at_the_end_of_an_answer_are_the_true_ones() -> None:
    async with serving(as_recorded("timed")) as (server, client):
        reply = await client.post("/v1/completions", STREAM | {"stream_options": {"include_usage": True}})
    record = server.ledger.records[0]
    assert reply.events[-2]["metrics"] == {
        "time_to_first_token_ms": pytest.approx(1000 * (record.token_times[0] - (record.scheduled or 0.0))),
        "generation_time_ms": pytest.approx(1000 * (record.token_times[-1] - record.token_times[0])),
        "queue_time_ms": pytest.approx(1000 * ((record.scheduled or 0.0) - record.arrival)),
        "mean_itl_ms": pytest.approx(1000 * (record.token_times[-1] - record.token_times[0]) / 23),
        "tokens_per_second": pytest.approx(24 / (record.token_times[-1] - (record.scheduled or 0.0))),
    }


async def test_after_a_restart_with_speculative_decoding_a_step_brings_several_tokens_and_then_one_again() -> None:
    async with serving(vllm()) as (server, client):
        for draft, most in ((3, 4), (0, 1)):
            server.speculate(draft)
            await client.clock.run(server.cool())
            await client.post("/v1/completions", PAYLOAD)
            record = server.ledger.records[-1]
            assert record.output_tokens == 24
            brought = [record.token_times.count(at) for at in record.updates]
            assert max(brought) == most
            page = await client.metrics()
            assert (page.get("vllm:spec_decode_num_accepted_tokens_total", 0.0) > 0) == (draft > 0)


async def test_an_answer_ends_with_stop_where_the_model_ends_it_and_with_length_at_max_tokens() -> None:
    settings = replace(VLLM, answers=LogNormal(5, 0.0))
    async with serving(vllm(settings)) as (_, client):
        asks: list[dict[str, int]] = [{"max_tokens": 20}, {"max_tokens": 20, "min_tokens": 8}, {"max_tokens": 3}, {}]
        for extra, reason, tokens in zip(asks, ("stop", "stop", "length", "stop"), (5, 8, 3, 5), strict=True):
            reply = await client.post("/v1/completions", {"model": "tiny", "prompt": "Hello"} | extra)
            assert reply.json["choices"][0]["finish_reason"] == reason
            assert reply.json["usage"]["completion_tokens"] == tokens


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"model": ', "Expecting value"),
        (b"[]", "expected a JSON object"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"prompt": "x", "n": 3}, "n must be 1"),
        ({"prompt": ["a", "b"]}, "prompt must be a string or a list of token ids"),
        ({"prompt": "", "max_tokens": 1}, "maximum context length is 2048"),
        ({"prompt": "x", "max_tokens": 2048}, "maximum context length is 2048"),
        ({"prompt": "x", "stream_options": 1}, "stream_options must be an object"),
    ],
)
async def test_a_bad_request_is_refused_with_400_and_leaves_no_request(body: object, message: str) -> None:
    async with serving(vllm()) as (server, client):
        reply = await client.post("/v1/completions", body)
        assert reply.status == 400
        assert message in reply.json["error"]["message"]
        assert not server.ledger.records


async def test_a_server_with_a_key_answers_the_api_only_to_who_has_it_and_metrics_to_all() -> None:
    async with serving(vllm(replace(VLLM, api_key="s3cret"))) as (_, client):
        assert (await client.get("/v1/models")).status == 401
        assert (await client.get("/v1/models", Authorization="Bearer s3cret")).status == 200
        assert (await client.get("/metrics")).status == 200


async def test_the_small_endpoints_answer() -> None:
    async with serving(vllm()) as (_, client):
        assert (await client.get("/version")).json == {"version": "0.32.0"}
        assert (await client.get("/health")).body == b""
        assert (await client.get("/v1/models")).json["data"][0]["max_model_len"] == 2048
        assert (await client.get("/nothing")).status == 404


async def test_a_client_that_goes_away_ends_its_request() -> None:
    server = vllm()
    async with serving(server) as (_, client):
        ask = client.session.post(f"{server.url}/v1/completions", json=STREAM | {"max_tokens": 2000})
        response = await client.clock.run(ask)
        await client.clock.advance(1.0)
        response.close()
        while server.driver.busy:
            await client.clock.advance(0.0)
        record = server.ledger.records[0]
        page = await client.metrics()
    assert record.reason == "abort"
    assert 20 < record.output_tokens < 60
    assert page["vllm:request_success_total{finished_reason=abort}"] == 1
    assert page["vllm:num_requests_running"] == 0
    assert page["vllm:e2e_request_latency_seconds_count"] == 0


async def test_an_engine_that_fails_ends_streams_with_an_error_event() -> None:
    server = vllm()
    async with serving(server) as (_, client):
        asked = asyncio.create_task(client.fetch("POST", "/v1/completions", STREAM))
        while not server.ledger.records:
            await client.clock.advance(0.0)
        await client.clock.advance(0.2)
        server.driver.fail()
        reply = await client.clock.run(asked)
    assert reply.status == 200
    assert reply.events[-2]["error"]["code"] == 500
    assert reply.events[-1] == "[DONE]"


async def test_a_killed_server_resets_its_streams_refuses_connections_and_comes_back_at_zero_on_its_port() -> None:
    server = vllm()
    async with serving(server) as (_, client):
        asked = asyncio.create_task(client.fetch("POST", "/v1/completions", STREAM))
        while not server.ledger.records:
            await client.clock.advance(0.0)
        await client.clock.advance(0.2)
        port = server.port
        await server.kill()
        assert (await asked).broken
        assert not server.up
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.get("/metrics")
        back = asyncio.create_task(server.start_cold())
        await client.clock.advance(VLLM.load_seconds - 0.01)
        assert not back.done()
        await client.clock.run(back)
        assert server.port == port
        assert (await client.metrics())["vllm:generation_tokens_total"] == 0
        assert (await client.post("/v1/completions", PAYLOAD)).status == 200
        assert [record.reason for record in server.ledger.records] == ["abort", "length"]


async def test_requests_that_came_without_http_end_when_the_server_is_killed() -> None:
    server = vllm()
    async with serving(server) as (_, client):
        sent = asyncio.create_task(server.send(list(range(50)), 1000))
        await client.clock.advance(1.0)
        await server.kill()
        assert await sent is None
        assert await server.send([1], 1) is None


async def test_the_ledger_knows_what_was_asked() -> None:
    async with serving(vllm()) as (server, client):
        await client.post("/v1/completions", PAYLOAD, Accept="text/plain")
        await client.get("/metrics")
    asked = [(ask.method, ask.path, ask.body) for ask in server.ledger.asked]
    assert asked == [("POST", "/v1/completions", PAYLOAD), ("GET", "/metrics", None)]
    assert server.ledger.asked[0].headers["accept"] == "text/plain"


def test_a_context_longer_than_the_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="max_model_len 2048 does not fit in 10 blocks of 128 tokens"):
        vllm(replace(VLLM, num_gpu_blocks=10))


def test_the_number_of_blocks_is_what_the_memory_leaves_beside_the_weights() -> None:
    settings = replace(VLLM, num_gpu_blocks=None, block_size=16)
    # (24e9 * 0.92 - 16.06e9 - 1.5e9) / (16 * 131072)
    assert settings.blocks == 2155


async def test_a_taken_port_is_an_error_and_leaves_nothing_behind() -> None:
    async with serving(vllm()) as (server, _):
        other = vllm()
        other.port = server.port
        with pytest.raises(OSError, match="address already in use"):
            await other.start()
        assert not other.up
