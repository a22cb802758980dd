"""The proxy in front of a real llama.cpp server: same bytes, real numbers.

VITALS_LLAMA: a command that serves one when a port is appended.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import yaml

from tests.real.conftest import command
from tests.real.servers import free_port, get, process, wait_until
from tests.running import samples

TOKENS = 12

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True, slots=True)
class World:
    """A llama.cpp server without metrics and an exporter with a proxy in front of it."""

    direct: str
    proxy: str
    exporter: str
    model: str

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of a family's samples with these labels."""
        found = samples(get(f"{self.exporter}/metrics"))
        return sum(s.value for s in found if s.name == f"vitals_{name}" and labels.items() <= s.labels.items())


@pytest.fixture(scope="module")
def world(logs: Path) -> Iterator[World]:
    serve = command("VITALS_LLAMA")
    port, front, metrics = free_port(), free_port(), free_port()
    direct = f"http://127.0.0.1:{port}"
    with process([*serve, str(port)], logs / "llama.log") as llama:
        wait_until("llama.cpp is ready", lambda: "ok" in get(f"{direct}/health"), 120, llama)
        model = json.loads(get(f"{direct}/v1/models"))["data"][0]["id"]
        config = logs / "llama.yml"
        target = {"name": "llama", "url": direct, "backend": "openai", "probe": {"enabled": False}}
        target["proxy"] = {"listen": f"127.0.0.1:{front}", "slots": 4}
        config.write_text(yaml.safe_dump({"listen": f"127.0.0.1:{metrics}", "targets": [target]}))
        with process([sys.executable, "-m", "exporter", "--config", str(config)], logs / "exporter.log") as child:
            exporter = f"http://127.0.0.1:{metrics}"
            wait_until("the exporter is ready", lambda: "ready" in get(f"{exporter}/-/ready"), 30, child)
            yield World(direct, f"http://127.0.0.1:{front}", exporter, model)


def body(world: World, **more: object) -> dict[str, object]:
    fixed = {"temperature": 0, "seed": 1, "max_tokens": TOKENS, "cache_prompt": False, "ignore_eos": True}
    return {"model": world.model, "prompt": "The lighthouse keeper saw", **fixed, **more}


async def post(url: str, path: str, body: object) -> tuple[int, str, list[float], float]:
    """Return status, text, when each network read came, and the end, in seconds from sending."""
    async with aiohttp.ClientSession() as session:
        start, reads = time.monotonic(), []
        async with session.post(url + path, json=body) as response:
            text = b""
            async for data in response.content.iter_any():
                reads.append(time.monotonic() - start)
                text += data
            return response.status, text.decode(), reads, time.monotonic() - start


def without_what_differs(text: str) -> str:
    """Return an answer without its id, its date and its times."""
    return re.sub(r'"(id|created|timings)":("[^"]*"|\d+|\{[^}]*\})', "", text)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/completion"])
async def test_the_answer_is_the_one_that_comes_without_a_proxy(world: World, path: str, stream: bool) -> None:
    asked = body(world, stream=stream, messages=[{"role": "user", "content": "Name a river."}])
    straight = await post(world.direct, path, asked)
    passed = await post(world.proxy, path, asked)
    assert passed[0] == straight[0] == 200
    assert without_what_differs(passed[1]) == without_what_differs(straight[1])


async def test_a_streams_numbers_are_what_its_client_saw(world: World) -> None:
    count = "time_to_first_token_seconds_count"
    names = (count, "time_to_first_token_seconds_sum", "inter_token_latency_seconds_sum", "generation_tokens_total",
             "inter_token_latency_seconds_count", "request_duration_seconds_sum", "prompt_tokens_total")  # fmt: skip
    before = {name: world.value(name, model=world.model) for name in names}
    asked = body(world, stream=True, stream_options={"include_usage": True})
    _, _, reads, end = await post(world.proxy, "/v1/completions", asked)
    added = {name: world.value(name, model=world.model) - before[name] for name in names}
    assert added[count] == 1
    assert added["generation_tokens_total"] == TOKENS
    assert added["prompt_tokens_total"] > 3
    assert 0.8 * (TOKENS - 1) <= added["inter_token_latency_seconds_count"] <= TOKENS
    assert added["inter_token_latency_seconds_sum"] == pytest.approx(reads[-1] - reads[0], rel=0.02, abs=0.02)
    assert added["request_duration_seconds_sum"] == pytest.approx(end, rel=0.02, abs=0.02)
    assert world.value("request_queue_seconds_count", model=world.model) > 0  # llama.cpp tells its prefill time


async def test_load_and_context_are_seen_while_requests_run_and_go_with_their_clients(world: World) -> None:
    asked = body(world, stream=True, max_tokens=1500)
    clients = [asyncio.create_task(post(world.proxy, "/v1/completions", asked)) for _ in range(6)]

    def load() -> dict[str, float]:
        names = ("requests_running", "requests_waiting", "kv_cache_usage_ratio")
        return {name: world.value(name, model=world.model) for name in names}

    await asyncio.to_thread(wait_until, "all have come", lambda: load()["requests_waiting"] == 2, 30)
    found = await asyncio.to_thread(load)
    assert found["requests_running"] == 4
    assert 0 < found["kv_cache_usage_ratio"] < 1
    for client in clients:
        client.cancel()
    await asyncio.wait(clients)
    gone = {"model": world.model, "reason": "client_gone"}
    await asyncio.to_thread(wait_until, "all are gone", lambda: world.value("requests_finished_total", **gone) == 6, 30)
    assert world.value("requests_running", model=world.model) == 0

    def idle() -> bool:
        return not any(slot["is_processing"] for slot in json.loads(get(f"{world.direct}/slots")))

    await asyncio.to_thread(wait_until, "llama.cpp has stopped generating", idle, 30)


async def test_a_model_that_is_not_listed_is_other(world: World) -> None:
    await post(world.proxy, "/v1/completions", body(world, model="gpt-9", max_tokens=3))
    assert world.value("requests_finished_total", model="other", reason="length") == 1


@pytest.mark.parametrize("several", [{"n": 2}, {"prompt": ["The lighthouse keeper saw", "The lighthouse"]}])
async def test_of_several_choices_all_tokens_are_counted_and_no_latency_between_them(
    world: World, several: dict[str, object]
) -> None:
    names = ("generation_tokens_total", "time_per_output_token_seconds_count")
    before = {name: world.value(name, model=world.model) for name in names}
    status, *_ = await post(world.proxy, "/v1/completions", body(world, stream=True, **several))
    assert status == 200
    added = {name: world.value(name, model=world.model) - before[name] for name in names}
    assert added == {"generation_tokens_total": 2 * TOKENS, "time_per_output_token_seconds_count": 0}


async def test_the_responses_api_is_observed(world: World) -> None:
    before = world.value("generation_tokens_total", model=world.model)
    asked = {"model": world.model, "input": "Name a river.", "stream": True, "max_output_tokens": TOKENS}
    status, *_ = await post(world.proxy, "/v1/responses", asked)
    assert status == 200
    assert 0 < world.value("generation_tokens_total", model=world.model) - before <= TOKENS
