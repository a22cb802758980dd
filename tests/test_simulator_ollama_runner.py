"""How the simulated Ollama loads, queues, reloads and unloads models, and what happens when something dies."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from exporter.simulator.clock import ManualClock
from exporter.simulator.ollama import OllamaServer
from exporter.simulator.ollama_runner import Runners
from exporter.simulator.truth import Ledger
from tests.simulated import GEMMA, OLLAMA, Client, Reply, ollama, serving
from tests.test_simulator_ollama import GENERATE, SIXTEEN, recorded

LOAD_SECONDS = GEMMA.model.weight_bytes / OLLAMA.device.disk_bandwidth


async def test_a_cold_request_waits_for_the_load_and_a_warm_one_does_not() -> None:
    async with serving(ollama()) as (_, client):
        assert (await client.get("/api/ps")).json == {"models": []}
        cold = (await client.post("/api/generate", SIXTEEN)).lines[-1]
        warm = (await client.post("/api/generate", SIXTEEN)).lines[-1]
        assert [model["name"] for model in (await client.get("/api/ps")).json["models"]] == ["gemma3:270m"]
    assert cold["load_duration"] == pytest.approx(LOAD_SECONDS * 1e9, rel=1e-6)
    assert warm["load_duration"] == pytest.approx(1e6, rel=1e-3)
    assert cold["total_duration"] > cold["load_duration"]


async def test_one_at_a_time_is_served_and_the_wait_is_in_the_total_only() -> None:
    async with serving(ollama()) as (server, client):
        await client.post("/api/generate", SIXTEEN)
        asks = [SIXTEEN | {"prompt": f"{name} keeper"} for name in ("First", "Second", "Third")]
        replies = await client.clock.run(asyncio.gather(*(client.fetch("POST", "/api/generate", ask) for ask in asks)))
        records = list(server.ledger.records)[1:]
    assert records[1].scheduled == records[0].finished
    assert records[2].scheduled == records[1].finished
    queues = []
    for reply in replies:
        last = reply.lines[-1]
        spent = last["load_duration"] + last["prompt_eval_duration"] + last["eval_duration"]
        queues.append(max(0.0, (last["total_duration"] - spent) / 1e9))
    assert sorted(queues) == pytest.approx([record.queue for record in records], abs=1e-4)
    assert max(queues) > 2 * records[0].decode


async def test_with_num_parallel_two_are_served_at_once() -> None:
    async with serving(ollama(replace(OLLAMA, num_parallel=2))) as (server, client):
        asks = [SIXTEEN | {"prompt": f"{index} keeper"} for index in range(3)]
        await client.clock.run(asyncio.gather(*(client.fetch("POST", "/api/generate", ask) for ask in asks)))
        scheduled = sorted(record.scheduled or 0.0 for record in server.ledger.records)
        (model,) = (await client.get("/api/ps")).json["models"]
    # The first begins alone, the second joins it at the next step, the third waits for a slot.
    assert scheduled[1] - scheduled[0] < 0.01 < scheduled[2] - scheduled[0]
    assert model["size"] == 253_113_180 + 2 * 4096 * 2 * 18 * 256 * 2


async def test_five_cold_requests_with_a_queue_of_one_are_two_answers_and_three_refusals(fixtures: Path) -> None:
    status, headers, theirs = recorded(fixtures, "maxqueue1_cold5_req4")
    async with serving(ollama(replace(OLLAMA, max_queue=1))) as (_, client):
        asks = [client.fetch("POST", "/api/generate", SIXTEEN) for _ in range(5)]
        cold = await client.clock.run(asyncio.gather(*asks))
        warm = await client.clock.run(
            asyncio.gather(*(client.fetch("POST", "/api/generate", SIXTEEN) for _ in range(5)))
        )
    refused = [reply for reply in cold if reply.status != 200]
    assert len(refused) == 3
    assert (refused[0].status, refused[0].headers["content-type"]) == (status, headers["content-type"])
    assert refused[0].lines == theirs
    loads = [reply.lines[-1]["load_duration"] for reply in cold if reply.status == 200]
    assert loads == pytest.approx([LOAD_SECONDS * 1e9] * 2, rel=1e-3)  # waiting for another's load counts as load
    assert [reply.status for reply in warm] == [200] * 5


async def test_another_num_ctx_reloads_the_model_for_everybody_and_other_options_do_not() -> None:
    async with serving(ollama()) as (_, client):

        async def ask(**options: float) -> tuple[bool, int]:
            last = (await client.post("/api/generate", GENERATE | {"options": {"num_predict": 2} | options})).lines[-1]
            (model,) = (await client.get("/api/ps")).json["models"]
            return last["load_duration"] > 1e8, model["context_length"]

        assert await ask() == (True, 4096)
        assert await ask(temperature=1, top_k=5) == (False, 4096)
        assert await ask(num_ctx=256) == (True, 256)
        assert await ask(num_ctx=256) == (False, 256)
        assert await ask() == (True, 4096)


async def test_a_reload_waits_for_the_requests_that_run_and_newcomers_wait_for_the_reload() -> None:
    server = ollama()
    async with serving(server) as (_, client):
        await client.post("/api/generate", SIXTEEN)
        long = GENERATE | {"options": {"num_predict": 200}}
        other = GENERATE | {"options": {"num_predict": 2, "num_ctx": 512}}
        tasks = []
        for ask in (long, other, SIXTEEN):
            tasks.append(asyncio.create_task(client.fetch("POST", "/api/generate", ask)))
            while len(server.ledger.asked) < 1 + len(tasks):
                await client.clock.advance(0.0)
            await client.clock.advance(0.01)
        await client.clock.run(asyncio.gather(*tasks))
        _, running, reloading, newcomer = server.ledger.records
    assert running.finished is not None
    assert reloading.arrival == pytest.approx(running.finished + LOAD_SECONDS, abs=0.01)
    assert newcomer.arrival == pytest.approx((reloading.finished or 0.0) + LOAD_SECONDS, abs=0.01)


async def expiry(client: Client) -> str:
    (model,) = (await client.get("/api/ps")).json["models"]
    return str(model["expires_at"])


async def test_an_idle_model_is_unloaded_after_keep_alive_and_a_request_without_one_keeps_the_last() -> None:
    async with serving(ollama()) as (_, client):
        await client.post("/api/generate", SIXTEEN | {"keep_alive": "10m"})
        await client.post("/api/generate", SIXTEEN)
        await client.clock.advance(599.9)
        assert len((await client.get("/api/ps")).json["models"]) == 1
        await client.clock.advance(0.2)
        assert (await client.get("/api/ps")).json == {"models": []}


async def test_keep_alive_zero_unloads_after_the_answer_and_a_negative_one_lasts_until_2319(fixtures: Path) -> None:
    _, _, (theirs,) = recorded(fixtures, "ps_keepalive_minus1")
    async with serving(OllamaServer(OLLAMA, ManualClock(unix=1_795_980_783.0))) as (_, client):
        await client.post("/api/generate", SIXTEEN | {"keep_alive": 0})
        assert (await client.get("/api/ps")).json == {"models": []}
        await client.post("/api/generate", SIXTEEN | {"keep_alive": -1})
        await client.clock.advance(1e6)
        assert (await expiry(client))[:7] == theirs["models"][0]["expires_at"][:7] == "2319-03"
        await client.post("/api/generate", {"model": "gemma3:270m", "keep_alive": 0})
        assert (await client.get("/api/ps")).json == {"models": []}


async def test_the_expiry_does_not_move_while_a_request_runs_and_can_lie_in_the_past() -> None:
    server = ollama()
    async with serving(server) as (_, client):
        await client.post("/api/generate", SIXTEEN | {"keep_alive": "100ms"})
        before = await expiry(client)
        asked = asyncio.create_task(client.fetch("POST", "/api/generate", GENERATE | {"options": {"num_predict": 900}}))
        while len(server.ledger.records) < 2:
            await client.clock.advance(0.0005)
        await client.clock.advance(0.3)
        assert not asked.done()
        loaded = server.runners.loaded()
        assert [runner.users for runner in loaded] == [1]
        assert loaded[0].expires_at < server.clock.now()
        assert before.startswith("20")
        await client.clock.run(asked)
        assert loaded[0].expires_at > server.clock.now()


async def running(client: Client, server: OllamaServer, after: float) -> asyncio.Task[Reply]:
    """Start a long answer on a warm model and let it run for some seconds."""
    await client.post("/api/generate", SIXTEEN)
    asked = asyncio.create_task(client.fetch("POST", "/api/generate", GENERATE | {"options": {"num_predict": 900}}))
    while len(server.ledger.records) < 2:
        await client.clock.advance(0.0005)
    await client.clock.advance(after)
    return asked


async def test_a_killed_runner_ends_the_stream_with_an_error_line_and_stays_listed(fixtures: Path) -> None:
    _, _, theirs = recorded(fixtures, "child_SIGKILL_midstream")
    server = ollama()
    async with serving(server) as (_, client):
        asked = await running(client, server, 0.1)
        server.kill_runner("gemma3:270m")
        reply = await client.clock.run(asked)
        assert len((await client.get("/api/ps")).json["models"]) == 1
        again = (await client.post("/api/generate", SIXTEEN)).lines[-1]
    assert (reply.status, reply.broken, reply.lines[-1]) == (200, False, theirs[-1])
    assert len(reply.lines) > 5
    assert again["load_duration"] > 1e8


async def test_a_server_that_is_killed_cuts_the_stream_without_an_end() -> None:
    server = ollama()
    async with serving(server) as (_, client):
        asked = await running(client, server, 0.1)
        await server.kill()
        reply = await asked
        assert reply.broken
        assert not any(b'"done":true' in read for read in reply.reads)
        await server.start()
        assert (await client.get("/api/ps")).json == {"models": []}


async def test_a_client_that_goes_away_is_not_served_on() -> None:
    server = ollama()
    async with serving(server) as (_, client):
        asked = await running(client, server, 0.1)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        while server.ledger.records[-1].finished is None:
            await client.clock.advance(0.0)
        record = server.ledger.records[-1]
        assert [runner.users for runner in server.runners.loaded()] == [0]
    assert record.reason == "abort"
    assert record.output_tokens < 900


async def test_requests_without_http_end_with_the_server() -> None:
    server = ollama()
    async with serving(server) as (_, client):
        loading = asyncio.create_task(server.send([1, 2, 3], 5))
        await client.clock.advance(0.01)
        await server.stop()
        assert await client.clock.run(loading) is None
        await server.start()
        assert await client.clock.run(server.send([1, 2, 3], 5)) is not None
        with pytest.raises(aiohttp.ClientConnectorError):
            await server.stop()
            await client.get("/api/ps")


async def test_a_reload_survives_that_a_listing_unloads_the_old_runner_first() -> None:
    clock = ManualClock()
    runners = Runners(OLLAMA, clock, Ledger())
    old = await clock.run(runners.acquire(GEMMA, None, 0.0))
    reload = asyncio.create_task(runners.acquire(GEMMA, 256, None))
    await clock.advance(0.0)
    runners.release(old)
    assert runners.loaded() == []
    assert (await clock.run(reload)).num_ctx == 256
    await runners.close()
