"""A target whose engine was not given: what is found out, and when it is found out anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from exporter.config import Target
from exporter.detect import UNKNOWN, AutoReader, make_reader
from exporter.model import Outcome, Snapshot
from exporter.relay.scrape import new_session
from tests.peers import Engine, Ollama, Talk, free_port, http, place, request, saying, serving, talking


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with new_session() as session:
        yield session


async def read(url: str, session: aiohttp.ClientSession, deadline_s: float = 5.0) -> Snapshot:
    reader = make_reader(Target("a", url), session)
    try:
        return await reader.read(deadline_s)
    finally:
        await reader.close()


async def test_a_vllm_is_found(session: aiohttp.ClientSession) -> None:
    async with serving(Engine()) as engine:
        snapshot = await read(engine.url, session)
    assert (snapshot.backend, snapshot.outcome, snapshot.version) == ("vllm", Outcome.OK, "0.32.0")


async def test_an_ollama_is_found(session: aiohttp.ClientSession) -> None:
    async with serving(Ollama()) as ollama:
        snapshot = await read(ollama.url, session)
    assert (snapshot.backend, snapshot.outcome, snapshot.version) == ("ollama", Outcome.OK, "0.12.3")


async def test_once_found_nothing_else_is_asked_for(session: aiohttp.ClientSession) -> None:
    async with serving(Ollama()) as ollama:
        reader = AutoReader(Target("a", ollama.url), session)
        for _ in range(3):
            await reader.read(5.0)
        await reader.close()
    assert ollama.asked["/metrics"] == 1
    assert ollama.asked["/api/version"] == 3


async def test_a_server_that_is_down_for_a_while_is_still_what_it_was(session: aiohttp.ClientSession) -> None:
    async with serving(Engine()) as engine:
        reader = AutoReader(Target("a", engine.url), session)
        assert reader.backend == UNKNOWN
        await reader.read(5.0)
    snapshot = await reader.read(5.0)
    await reader.close()
    assert (snapshot.backend, snapshot.outcome) == ("vllm", Outcome.CONNECT)
    assert reader.backend == "vllm"


@pytest.mark.parametrize("engine", [Engine(), Ollama()], ids=["vllm", "ollama"])
async def test_a_known_engine_that_fails_is_still_what_it_was_and_says_itself_why(
    session: aiohttp.ClientSession, engine: Engine
) -> None:
    async with serving(engine):
        reader = AutoReader(Target("a", engine.url), session)
        known = (await reader.read(5.0)).backend
        engine.status = 500
        snapshot = await reader.read(5.0)
        await reader.close()
    assert (snapshot.backend, snapshot.outcome, snapshot.status) == (known, Outcome.HTTP_STATUS, 500)


async def test_another_engine_at_the_same_place_is_noticed(session: aiohttp.ClientSession) -> None:
    ollama = Ollama()
    async with serving(ollama):
        ollama.metrics = Engine().text
        reader = AutoReader(Target("a", ollama.url), session)
        found = [(await reader.read(5.0)).backend]
        ollama.metrics = ""
        found += [(await reader.read(5.0)).backend, (await reader.read(5.0)).backend]
        await reader.close()
    assert found == ["vllm", "ollama", "ollama"]


@pytest.mark.parametrize(
    ("talk", "outcome", "detail"),
    [
        (saying(http(b"no", status="404 Not Found")), Outcome.NOT_LLM_SERVER, "as vllm: HTTP 404 from {place}/metrics"),
        (saying(http(b"<!doctype html>")), Outcome.NOT_LLM_SERVER, "as vllm: the page is HTML or XML"),
        (saying(http(b"no", status="401 No")), Outcome.AUTH, "give the target its bearer_token"),
        (saying(http(b"no", status="503 No")), Outcome.HTTP_STATUS, "HTTP 503 from {place}/metrics"),
        (saying(http(b"go_threads 3\n")), Outcome.NO_LLM_METRICS, "without any of vllm's families"),
        (saying(http(b"")), Outcome.EMPTY, "the page is empty"),
        (saying(b""), Outcome.TRUNCATED, "{place} ended the connection without an answer"),
    ],
)
async def test_what_was_not_found_is_explained(
    session: aiohttp.ClientSession, talk: Talk, outcome: Outcome, detail: str
) -> None:
    async with talking(talk) as url:
        snapshot = await read(url, session)
    assert (snapshot.backend, snapshot.outcome) == (UNKNOWN, outcome)
    assert detail.format(place=place(url)) in snapshot.detail
    assert "\n" not in snapshot.detail


async def test_where_nobody_answers_one_engine_is_asked_for(session: aiohttp.ClientSession) -> None:
    port = await free_port()
    snapshot = await read(f"http://127.0.0.1:{port}", session)
    assert (snapshot.backend, snapshot.outcome) == (UNKNOWN, Outcome.CONNECT)


async def test_all_engines_share_one_deadline(session: aiohttp.ClientSession) -> None:
    async def only_metrics(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await request(reader)).startswith("GET /metrics"):
            writer.write(http(b"no", status="404 Not Found"))
        else:
            await reader.read()

    async with talking(only_metrics) as url, asyncio.timeout(5):
        snapshot = await read(url, session, deadline_s=0.3)
    assert (snapshot.backend, snapshot.outcome) == (UNKNOWN, Outcome.TIMEOUT)
