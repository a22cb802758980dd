"""A server with OpenAI's API that has no metrics: what its list of models comes to."""

from __future__ import annotations

import json

import pytest

from exporter.backends.openai import OpenAIReader
from exporter.detect import make_reader
from exporter.model import Outcome, Snapshot
from exporter.relay.scrape import new_session
from tests.peers import BEARER, free_port, http, of_status, saying, talking, target

LLAMA = {"object": "list", "data": [{"id": "gemma", "meta": {"n_ctx": 2048, "n_ctx_train": 32768}}, {"id": "b"}, 7]}


async def read(url: str) -> Snapshot:
    async with new_session() as session:
        reader = make_reader(target(url, backend="openai", **BEARER), session)
        assert isinstance(reader, OpenAIReader)
        snapshot = await reader.read(5.0)
        await reader.close()
    assert "tok-en" not in snapshot.detail
    return snapshot


async def test_a_list_of_models_is_a_server_that_is_up_with_the_context_it_tells_of() -> None:
    async with talking(saying(http(json.dumps(LLAMA).encode()))) as url:
        snapshot = await read(url)
    assert (snapshot.up, snapshot.backend) == (True, "openai")
    assert snapshot.readings is not None
    told = [(sample.name, sample.labels, sample.value) for sample in snapshot.readings.samples()]
    assert told == [("vitals_model_context_length_tokens", (("model", "gemma"),), 2048)]


@pytest.mark.parametrize("said", ["", "a\nb", "\x1b[31ma", "a\u2028b", "a" * 600, 5, None])
async def test_a_model_without_a_name_that_can_be_a_label_is_left_out(said: object) -> None:
    rows = [{"id": said, "max_model_len": 9}, {"id": "good", "max_model_len": 8, "meta": {"size": 10**400}}]
    async with talking(saying(http(json.dumps({"data": rows}).encode()))) as url:
        snapshot = await read(url)
    assert snapshot.readings is not None
    assert [(sample.labels, sample.value) for sample in snapshot.readings.samples()] == [((("model", "good"),), 8)]
    assert {model: facts.weight_bytes for model, facts in snapshot.models.items()} == {"good": None}


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (http(b"{}"), Outcome.NOT_LLM_SERVER), (http(b"<html>"), Outcome.NOT_LLM_SERVER),
        (of_status("401 No"), Outcome.AUTH), (of_status("500 No"), Outcome.HTTP_STATUS),
    ],
)  # fmt: skip
async def test_anything_else_is_a_server_that_is_down_with_the_remedy(answer: bytes, outcome: Outcome) -> None:
    async with talking(saying(answer)) as url:
        snapshot = await read(url)
    assert snapshot.outcome is outcome
    assert snapshot.detail


async def test_a_server_that_does_not_listen_is_down() -> None:
    assert (await read(f"http://127.0.0.1:{await free_port()}")).outcome is Outcome.CONNECT
