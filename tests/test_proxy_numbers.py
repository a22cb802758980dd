"""The numbers of real traffic are those that really happened: to 1 % against the simulator's truth."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from exporter.proxy.observing import ObservingProxy
from exporter.simulator.ollama import OllamaServer
from exporter.simulator.ollama_runner import WARM_LOAD
from exporter.simulator.truth import Record
from tests.proxying import proxied, values
from tests.simulated import OLLAMA, Client, ollama, serving

MODEL = "gemma3:270m"
SLOTS = 2
CONTEXT = 4096
TOKENS = 60
HANDED_OVER = WARM_LOAD
"""Seconds in which the simulated Ollama finds the loaded model, before the truth about a request begins."""


def prompt(index: int) -> str:
    return f"{index} " + "word " * 200


def native(index: int, **more: object) -> tuple[str, dict[str, object]]:
    body = {"model": MODEL, "prompt": prompt(index), "options": {"num_predict": TOKENS}}
    return "/api/generate", body | more


def native_chat(index: int, **more: object) -> tuple[str, dict[str, object]]:
    messages = [{"role": "user", "content": prompt(index)}]
    return "/api/chat", {"model": MODEL, "messages": messages, "options": {"num_predict": TOKENS}} | more


def openai(index: int, **more: object) -> tuple[str, dict[str, object]]:
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    return "/v1/completions", {"model": MODEL, "prompt": prompt(index), "max_tokens": TOKENS} | usage | more


def openai_chat(index: int, **more: object) -> tuple[str, dict[str, object]]:
    body = openai(index)[1] | {"messages": [{"role": "user", "content": prompt(index)}]}
    body.pop("prompt")
    return "/v1/chat/completions", body | more


class Through:
    """A simulated Ollama that works on two requests at once, with a loaded model, and a proxy in front of it."""

    def __init__(self, server: OllamaServer, client: Client, proxy: ObservingProxy) -> None:
        self.server = server
        self.proxy = proxy
        self.clock = client.clock
        self._client = client

    async def post(self, path: str, body: object) -> None:
        await self._client.fetch("POST", path, body)

    @property
    def records(self) -> Sequence[Record]:
        return list(self.server.ledger.records)


@asynccontextmanager
async def through(model: str = MODEL) -> AsyncIterator[Through]:
    async with serving(ollama(replace(OLLAMA, num_parallel=SLOTS, cached_count=True))) as (server, client):
        await client.post("/api/generate", {"model": model})
        async with proxied(server.url, {model: CONTEXT}, client.clock.now, slots=SLOTS) as proxy:
            front = _At(f"http://{proxy.where}")
            yield Through(server, Client(client.session, front, client.clock), proxy)  # type: ignore[arg-type]  # only its url


class _At:
    def __init__(self, url: str) -> None:
        self.url = url


def mean(proxy: ObservingProxy, name: str, model: str = MODEL) -> float:
    found = values(proxy, name)
    return found[f"{model} _sum"] / found[f"{model} _count"]


@pytest.mark.parametrize("request_of", [native, native_chat, openai, openai_chat])
async def test_the_latencies_and_tokens_are_the_true_ones(request_of: Any) -> None:
    async with through() as world:
        await world.clock.run(asyncio.gather(*(world.post(*request_of(index)) for index in range(6))))
        records, proxy = world.records, world.proxy
        assert len(records) == 6
        assert mean(proxy, "time_to_first_token_seconds") == pytest.approx(
            HANDED_OVER + fmean(r.ttft for r in records), rel=0.001
        )
        gaps = [gap for record in records for gap in record.gaps]
        assert mean(proxy, "inter_token_latency_seconds") == pytest.approx(fmean(gaps), rel=0.001)
        assert values(proxy, "inter_token_latency_seconds")[f"{MODEL} _count"] == len(gaps)
        assert mean(proxy, "time_per_output_token_seconds") == pytest.approx(fmean(r.tpot for r in records), rel=0.001)
        assert mean(proxy, "request_duration_seconds") == pytest.approx(
            HANDED_OVER + fmean(r.e2e for r in records), rel=0.001
        )
        if request_of in (native, native_chat):  # Only Ollama's own API tells its times.
            queue = fmean(record.queue for record in records)
            assert mean(proxy, "request_queue_seconds") == pytest.approx(queue, rel=0.001)
        assert values(proxy, "prompt_tokens_total") == {MODEL: sum(r.prompt_tokens for r in records)}
        assert values(proxy, "generation_tokens_total") == {MODEL: 6 * TOKENS}
        assert values(proxy, "requests_finished_total")[f"{MODEL} length"] == 6


async def test_load_and_context_in_use_are_the_true_ones_while_requests_run() -> None:
    async with through() as world:
        await world.clock.run(world.post(*native(9)))  # From its answer it is known how many tokens such a prompt has.
        seen = set()
        tasks = [asyncio.create_task(world.post(*native(index))) for index in range(5)]
        while not all(task.done() for task in tasks):
            await world.clock.advance(0.02)
            now = world.clock.now()
            open_ = [record for record in world.records if record.finished is None or record.finished > now]
            running = [r for r in open_ if r.scheduled is not None and r.scheduled <= now]
            assert values(world.proxy, "requests_running") == {MODEL: len(running)}
            assert values(world.proxy, "requests_waiting") == {MODEL: len(open_) - len(running)}
            used = sum(r.prompt_tokens + sum(at <= now for at in r.token_times) for r in running)
            ratio = values(world.proxy, "kv_cache_usage_ratio")[MODEL]
            assert ratio == pytest.approx(used / (CONTEXT * SLOTS), rel=0.001)
            seen.add((len(running), len(open_) - len(running)))
        assert {(2, 3), (2, 1), (1, 0)} <= seen
        assert values(world.proxy, "kv_cache_usage_ratio") == {MODEL: 0.0}


async def test_an_answer_that_is_not_streamed_has_the_same_numbers_but_no_gaps() -> None:
    async with through() as world:
        await world.clock.run(asyncio.gather(*(world.post(*native(index, stream=False)) for index in range(4))))
        records, proxy = world.records, world.proxy
        assert mean(proxy, "time_to_first_token_seconds") == pytest.approx(
            HANDED_OVER + fmean(r.ttft for r in records), rel=0.001
        )
        assert mean(proxy, "time_per_output_token_seconds") == pytest.approx(fmean(r.tpot for r in records), rel=0.001)
        assert mean(proxy, "request_duration_seconds") == pytest.approx(
            HANDED_OVER + fmean(r.e2e for r in records), rel=0.001
        )
        assert mean(proxy, "request_queue_seconds") == pytest.approx(fmean(r.queue for r in records), rel=0.001)
        assert values(proxy, "inter_token_latency_seconds")[f"{MODEL} _count"] == 0
        assert values(proxy, "generation_tokens_total") == {MODEL: 4 * TOKENS}


async def test_openais_default_is_no_stream_and_its_usage_is_read() -> None:
    async with through() as world:
        path, body = openai_chat(1)
        del body["stream"], body["stream_options"]
        await world.clock.run(world.post(path, body))
        (record,) = world.records
        assert values(world.proxy, "prompt_tokens_total") == {MODEL: record.prompt_tokens}
        assert values(world.proxy, "generation_tokens_total") == {MODEL: TOKENS}
        assert mean(world.proxy, "request_duration_seconds") == pytest.approx(HANDED_OVER + record.e2e, rel=0.001)
        assert values(world.proxy, "requests_finished_total")[f"{MODEL} length"] == 1


async def test_cached_prompt_tokens_are_counted_where_the_server_tells_them() -> None:
    async with through() as world:
        await world.clock.run(world.post(*native(1)))
        assert values(world.proxy, "cached_prompt_tokens_total") == {MODEL: 0}
        await world.clock.run(world.post(*native(1)))
        cached = sum(record.cached_tokens for record in world.records)
        assert cached > 0
        assert values(world.proxy, "cached_prompt_tokens_total") == {MODEL: cached}


async def test_thinking_counts_as_the_tokens_it_is() -> None:
    model = "gemma3-think:latest"
    async with through(model) as world:
        path, body = native_chat(1, model="gemma3-think")
        await world.clock.run(world.post(path, body))
        (record,) = world.records
        assert values(world.proxy, "generation_tokens_total")[model] == record.output_tokens == TOKENS
