from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from aiohttp import web

from exporter.backends.ollama import OllamaReader
from exporter.catalogue import BY_NAME
from exporter.model import Outcome, Snapshot
from exporter.settings import Target
from exporter.values import Secret
from tests.ollama_fakes import TARGET, Clock, fixture, serve, serve_raw

Answers = dict[str, bytes | int]


class Peer:
    """An Ollama of fixed answers: a body, or the status of an error; counts what it was asked."""

    def __init__(self, **answers: bytes | int) -> None:
        self.asked: Counter[str] = Counter()
        self.answers: dict[str, bytes | int] = {
            "version": b'{"version":"0.12.3"}',
            "ps": fixture("ps_loaded.json"),
            "tags": fixture("tags.json"),
            "show": fixture("show.json"),
            **answers,
        }

    def __call__(self, request: httpx.Request) -> httpx.Response:
        name = request.url.path.removeprefix("/api/")
        self.asked[name] += 1
        answer = self.answers[name]
        if isinstance(answer, int):
            return httpx.Response(answer, json={"error": "no"})
        return httpx.Response(200, content=answer, headers={"Content-Type": "text/plain"})

    def reader(self, target: Target = TARGET, clock: Callable[[], float] | None = None) -> OllamaReader:
        client = httpx.AsyncClient(transport=httpx.MockTransport(self))
        return OllamaReader(target, client, clock or Clock())


def values(snapshot: Snapshot) -> dict[tuple[str, ...], float]:
    assert snapshot.readings is not None
    return {
        (sample.name.removeprefix("vitals_"), *(value for _, value in sample.labels)): sample.value
        for sample in snapshot.readings.samples()
    }


def ps(**row: Any) -> bytes:
    return json.dumps({"models": [{"name": "m", "size": 100, **row}]}).encode()


async def read(**answers: bytes | int) -> Snapshot:
    reader = Peer(**answers).reader()
    snapshot = await reader.read(5.0)
    await reader.close()
    return snapshot


async def read_server(target: Target, deadline: float = 5.0) -> Snapshot:
    reader = OllamaReader(target)
    snapshot = await reader.read(deadline)
    await reader.close()
    return snapshot


async def test_a_recorded_ollama_gives_its_families() -> None:
    snapshot = await read()
    assert snapshot.up
    assert snapshot.version == "0.12.3"
    model = "gemma3:270m"
    assert values(snapshot) == {
        ("models_installed",): 1,
        ("model_loaded", model): 1,
        ("model_info", model, "gemma3", "268.10M", "Q4_K_M"): 1,
        ("model_memory_bytes", model, "vram"): 0,
        ("model_memory_bytes", model, "ram"): 287781682,
        ("model_context_length_tokens", model): 4096,
        ("model_max_context_length_tokens", model): 32768,
        ("model_parameters", model): 268098176,
        ("model_expiry_timestamp_seconds", model): pytest.approx(1795980580.73277),
    }


async def test_every_sample_has_the_labels_its_catalogue_row_names() -> None:
    snapshot = await read()
    assert snapshot.readings is not None
    for sample in snapshot.readings.samples():
        assert tuple(name for name, _ in sample.labels) == BY_NAME[sample.family].labels
    assert (
        'vitals_model_loaded{target="box",backend="ollama",model="gemma3:270m"} 1\n'
        in (snapshot.readings.blocks()["vitals_model_loaded"])
    )


async def test_a_size_vram_that_is_left_out_is_zero_and_an_old_versions_context_length_is_absent() -> None:
    found = values(await read(ps=b'{"models":[{"name":"m","size":100}]}'))
    assert found[("model_memory_bytes", "m", "vram")] == 0
    assert found[("model_memory_bytes", "m", "ram")] == 100
    assert ("model_context_length_tokens", "m") not in found
    assert ("model_expiry_timestamp_seconds", "m") not in found


async def test_keep_alive_for_ever_shows_as_the_far_future() -> None:
    found = values(await read(ps=fixture("ps_for_ever.json")))
    assert found[("model_expiry_timestamp_seconds", "gemma3:270m")] > 11_000_000_000


@pytest.mark.parametrize("date", ["soon", "", "0001-01-01T00:00:00Z", "2026-11-29T19:29:40", None, 5])
async def test_a_bad_date_is_absent(date: object) -> None:
    assert ("model_expiry_timestamp_seconds", "m") not in values(await read(ps=ps(expires_at=date)))


async def test_a_date_with_nanoseconds_and_a_zone_is_read() -> None:
    found = values(await read(ps=ps(expires_at="2026-11-29T11:29:40.732770016-08:00")))
    assert found[("model_expiry_timestamp_seconds", "m")] == pytest.approx(1795980580.73277)


@pytest.mark.parametrize("answer", [b'{"models":[]}', b'{"models":null}'])
async def test_nothing_loaded_is_a_good_reading_without_models(answer: bytes) -> None:
    snapshot = await read(ps=answer)
    assert snapshot.up
    assert values(snapshot) == {("models_installed",): 1}


async def test_odd_rows_are_left_out_and_harm_no_other() -> None:
    rows = [1, {}, {"name": 5}, {"model": "by-model", "size": True}, {"name": "by-model", "size": 9}]
    found = values(await read(ps=json.dumps({"models": rows}).encode()))
    assert ("model_loaded", "by-model") in found
    assert ("model_memory_bytes", "by-model", "ram") not in found


ODD = ["", "a\nb", "a\x00", "\x1b[31ma", "a\x85b", "a\u2028b", "a\u202eb", "a" * 600, 5, None]


@pytest.mark.parametrize("said", [*ODD, "a b", "a" * 65, "ä"])
async def test_a_version_that_is_none_is_absent_but_the_server_is_up(said: object) -> None:
    snapshot = await read(version=json.dumps({"version": said}).encode())
    assert (snapshot.up, snapshot.version) == (isinstance(said, str), "")


@pytest.mark.parametrize("said", ["0.12.3", "0.12.3-rc1-2-gabcdef0", "0.5.7+dev_1"])
async def test_a_version_is_told(said: str) -> None:
    assert (await read(version=json.dumps({"version": said}).encode())).version == said


@pytest.mark.parametrize("said", ODD)
async def test_a_model_without_a_name_that_can_be_a_label_is_left_out(said: object) -> None:
    rows = [{"name": said, "size": 9}, {"name": "good", "size": 9, "details": {"family": said, "parameter_size": said}}]
    found = values(await read(ps=json.dumps({"models": rows}).encode()))
    assert {model for name, model, *_ in (key for key in found if len(key) > 1)} == {"good"}
    assert found["model_info", "good", "", "", ""] == 1


@pytest.mark.parametrize("size", [2**63, 10**400, -1, 1.5, "9"])
async def test_a_number_that_cannot_be_is_absent(size: object) -> None:
    found = values(await read(ps=ps(size=size, context_length=size)))
    assert found[("model_loaded", "m")] == 1
    assert not {"model_memory_bytes", "model_context_length_tokens"} & {name for name, *_ in found}


async def test_a_number_that_cannot_be_is_absent_in_a_models_metadata_too() -> None:
    info = {"general.architecture": "a", "a.context_length": 2**63, "a.block_count": 10**400, "a.other": 2**63 - 1}
    snapshot = await read(show=json.dumps({"model_info": info}).encode())
    assert not any(name == "model_max_context_length_tokens" for name, *_ in values(snapshot))
    (facts,) = snapshot.models.values()
    assert [facts.info[f"a.{name}"] for name in ("context_length", "block_count", "other")] == [None, None, 2**63 - 1]


@pytest.mark.parametrize("answer", [500, b"nonsense", b"[]"])
async def test_failing_tags_and_show_leave_only_their_families_absent(answer: bytes | int) -> None:
    snapshot = await read(tags=answer, show=answer)
    assert snapshot.up
    names = {name for name, *_ in values(snapshot)}
    assert names.isdisjoint({"models_installed", "model_parameters", "model_max_context_length_tokens"})
    assert "model_loaded" in names


async def test_tags_are_read_once_a_minute_and_show_once_a_digest() -> None:
    peer, clock = Peer(), Clock()
    reader = peer.reader(clock=clock)
    for _ in range(3):
        await reader.read(5.0)
        clock.now += 20
    assert peer.asked == {"version": 3, "ps": 3, "tags": 1, "show": 1}
    peer.answers["ps"] = ps(digest="another")
    await reader.read(5.0)
    assert peer.asked == {"version": 4, "ps": 4, "tags": 2, "show": 2}


async def test_loaded_holds_the_models_of_the_last_reading() -> None:
    peer = Peer()
    reader = peer.reader()
    await reader.read(5.0)
    assert [(model.name, model.size, model.context_length) for model in reader.loaded] == [
        ("gemma3:270m", 287781682, 4096)
    ]
    peer.answers["ps"] = 500
    await reader.read(5.0)
    assert reader.loaded == ()


@pytest.mark.parametrize(
    ("answers", "outcome", "says"),
    [
        ({"version": 404}, Outcome.NOT_LLM_SERVER, "is no Ollama"),
        ({"version": b"{}"}, Outcome.NOT_LLM_SERVER, "is not an Ollama's"),
        ({"version": b"<html>hello</html>"}, Outcome.NOT_LLM_SERVER, "is a web page"),
        ({"ps": b"[]"}, Outcome.NOT_LLM_SERVER, "is not an Ollama's"),
        ({"ps": b'{"models":['}, Outcome.PROTOCOL, "no valid JSON"),
        ({"ps": b"[" * 200_000}, Outcome.PROTOCOL, "no valid JSON"),
        ({"version": b'{"version":"\\ud800"}'}, Outcome.PROTOCOL, "no valid JSON"),
        ({"ps": b'{"models":[{"name":"\xed\xa0\x80"}]}'}, Outcome.PROTOCOL, "no valid JSON"),
        ({"ps": b'{"models":[{"name":"\xff"}]}'}, Outcome.PROTOCOL, "no valid JSON"),
        ({"ps": b" " * (16 * 2**20 + 1)}, Outcome.TOO_LARGE, "16 MiB"),
        ({"ps": 500}, Outcome.HTTP_STATUS, "500 no"),
        ({"version": 401}, Outcome.AUTH, "bearer_token"),
        ({"version": 302}, Outcome.REDIRECT, "302"),
    ],
)
async def test_each_kind_of_bad_answer_has_its_outcome_and_its_line(
    answers: Answers, outcome: Outcome, says: str
) -> None:
    snapshot = await read(**answers)
    assert snapshot.outcome is outcome
    assert says in snapshot.detail
    assert "\n" not in snapshot.detail
    assert snapshot.readings is None


async def test_both_halves_of_a_character_are_one() -> None:
    assert ("model_loaded", "\U0001f600") in values(await read(ps=b'{"models":[{"name":"\\ud83d\\ude00"}]}'))


async def test_what_a_server_says_of_its_fault_is_one_line_of_bounded_length() -> None:
    async def terse(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX Y: " + b"a" * 9000 + b"\r\n\r\n")

    async with serve_raw(terse) as target:
        snapshot = await read_server(target)
    assert snapshot.outcome is Outcome.PROTOCOL
    assert len(snapshot.detail) < 600
    assert snapshot.detail.isprintable()


@pytest.mark.parametrize(
    ("host", "remedy"),
    [
        ("127.0.0.1", "is the server running? In a container this address is the container itself: use host.docker"),
        ("127.0.0.2", "is the server running, and does it listen on more than 127.0.0.1?"),
    ],
)
async def test_nobody_listening_says_how_to_reach_it(host: str, remedy: str) -> None:
    async with serve({}) as target:
        pass
    snapshot = await read_server(replace(target, url=target.url.replace("127.0.0.1", host)))
    assert snapshot.outcome is Outcome.CONNECT
    assert f"; {remedy}" in snapshot.detail


@pytest.mark.parametrize("host", ["no-such-host.invalid", "xn--", "xn--a"])
async def test_an_unknown_or_impossible_name_is_dns(host: str) -> None:
    snapshot = await read_server(replace(TARGET, url=f"http://{host}:11434"))
    assert snapshot.outcome is Outcome.DNS
    assert host in snapshot.detail


async def test_tls_to_a_plain_server_is_tls() -> None:
    async with serve({}) as target:
        snapshot = await read_server(replace(target, url=target.url.replace("http:", "https:")))
    assert snapshot.outcome is Outcome.TLS


async def test_no_http_at_all_is_protocol() -> None:
    async def smtp(writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")

    async with serve_raw(smtp) as target:
        snapshot = await read_server(target)
    assert snapshot.outcome is Outcome.PROTOCOL


async def test_a_silent_server_is_a_timeout_within_the_deadline() -> None:
    async def silent(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    async with serve({"/api/{name}": silent}) as target:
        snapshot = await read_server(target, deadline=0.1)
    assert snapshot.outcome is Outcome.TIMEOUT
    assert snapshot.duration < 2


@pytest.mark.parametrize("hanging", [{"tags"}, {"show"}, {"tags", "show"}])
async def test_what_is_asked_for_besides_takes_no_more_than_its_part_of_the_time(hanging: set[str]) -> None:
    peer = Peer()

    async def answer(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name in hanging:
            await asyncio.Event().wait()
        body = peer.answers[name]
        assert isinstance(body, bytes)
        return web.Response(body=body)

    async with serve({"/api/{name}": answer}) as target:
        snapshot = await read_server(target, deadline=1.0)
    assert snapshot.up
    assert ("model_loaded", "gemma3:270m") in values(snapshot)
    assert snapshot.duration < 0.9


async def test_an_empty_403_is_told_as_the_refused_host_name_it_is() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=403)

    async with serve({"/api/{name}": refuse}) as target:
        snapshot = await read_server(target)
    assert (snapshot.outcome, snapshot.status) == (Outcome.HTTP_STATUS, 403)
    assert "OLLAMA_HOST" in snapshot.detail
    assert "OLLAMA_ORIGINS" in snapshot.detail


async def test_credentials_are_sent_and_never_told() -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.json_response({"error": request.headers["Authorization"]}, status=500)

    async with serve({"/api/{name}": echo}) as target:
        snapshot = await read_server(replace(target, bearer_token=Secret("tok-123")))
    assert "Bearer <secret>" in snapshot.detail
    assert "tok-123" not in snapshot.detail
