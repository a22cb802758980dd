"""`llm-vitals explain`: the same words from the exporter, and from a Prometheus about the past."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client.parser import text_string_to_metric_families

from exporter import explain
from exporter.config import DEFAULT_LISTEN, Config, Target
from exporter.model import Snapshot
from exporter.physics import recorded
from exporter.physics.causes import causes, markdown
from exporter.physics.explain import explanation, text
from exporter.simulator.hardware import LLAMA_3_1_8B
from tests.driven import Driven, driven
from tests.peers import Engine, serving
from tests.running import running
from tests.test_verdict import GPU, kv_exhausted, vllm

SHAPE = json.dumps({"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096})
KEYS: dict[str, Any] = {
    "memory_bandwidth_gb_s": GPU.bandwidth / 1e9,
    "weight_bytes": LLAMA_3_1_8B.weight_bytes,
    "model_config": SHAPE,
}


class Kept:
    """A Prometheus that has kept what a driven server's exporter said."""

    def __init__(self) -> None:
        self.series: dict[tuple[tuple[str, str], ...], list[tuple[float, str]]] = {}

    def scrape(self, box: Driven, snapshot: Snapshot) -> None:
        assert snapshot.readings is not None
        blocks = {**snapshot.readings.blocks(), **box.watch.blocks()}
        for family in text_string_to_metric_families("".join(blocks.values())):
            for sample in family.samples:
                key = (("__name__", sample.name), *sorted(sample.labels.items()))
                self.series.setdefault(key, []).append((snapshot.at, repr(sample.value)))

    def matrix(self) -> list[dict[str, Any]]:
        wanted = recorded.selector("box")
        return [
            {"metric": dict(key), "values": [list(value) for value in values]}
            for key, values in self.series.items()
            if f'"{key[0][1]}|' in wanted or f"|{key[0][1]}|" in wanted or f'|{key[0][1]}"' in wanted
        ]


@pytest.fixture(scope="module")
def rush() -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
    """A server whose KV cache is full: its explanation then, and what a Prometheus kept."""
    kept = Kept()

    async def drive() -> Mapping[str, Any]:
        async with driven(vllm(blocks=160, length=2048), kept.scrape, **KEYS) as box:
            await kv_exhausted(box)
            await box.run(90.0)
            return explanation(box.diagnosis, 500)

    return asyncio.run(drive()), kept.matrix()


def test_it_says_the_five_numbers_the_time_the_ceilings_the_evidence_and_what_to_change(
    rush: tuple[Mapping[str, Any], list[dict[str, Any]]],
) -> None:
    found, _ = rush
    words = text(found)
    assert json.loads(json.dumps(found)) == found
    for sentence in (
        "kv_exhausted: the KV cache is full",
        "KV-cache usage was up to",
        "preemptions in",
        "the five numbers, of the last minute's traffic",
        "time to first token  p50 ",
        "inter-token latency  p50 ",
        "requests running ",
        "requests waiting ",
        "KV cache in use ",
        "where the time goes, of the last minute's traffic",
        "without speculative decoding one stream decodes at most 37.4 tokens/s: 16.1 GB of weights a token at 600 GB/s",
        "KV cache: 131,072 bytes a token; a context of 500 tokens takes 0.0655 GB",
        "it holds 2,560 tokens (0.336 GB): 5 contexts of 500 tokens",
        "of what a decode step reads is KV",
        "change first\n    Give the cache more memory - raise --gpu-memory-utilization",
    ):
        assert sentence in words
    assert max(map(len, words.splitlines())) < 200


def test_a_prometheus_tells_of_the_past_what_the_exporter_told_then(
    rush: tuple[Mapping[str, Any], list[dict[str, Any]]],
) -> None:
    live, matrix = rush
    (past,) = (explanation(diagnosis, 500) for diagnosis in recorded.diagnoses(matrix))
    assert past["verdict"]["cause"] == live["verdict"]["cause"]
    assert past["verdict"]["evidence"] == live["verdict"]["evidence"]
    assert past["five"] == live["five"]
    assert past["time"] == live["time"]
    assert past["ceilings"] == live["ceilings"]
    assert past["at"] == live["at"]


class Fake:
    """An exporter and a Prometheus in one, as far as `explain` asks them."""

    def __init__(self, found: object, matrix: object) -> None:
        self.found, self.matrix = found, matrix
        self.later: list[object] = []
        self.asked: list[Mapping[str, str]] = []

    async def explain(self, request: web.Request) -> web.Response:
        self.asked.append(dict(request.query))
        found = self.found
        if self.later:
            self.found = self.later.pop(0)
        return web.json_response(found)

    async def query(self, request: web.Request) -> web.Response:
        self.asked.append(dict(request.query))
        up = [{"metric": {"target": "box"}, "value": [0, "1"]}]
        result = up if request.query["query"] == "vitals_target_up" else self.matrix
        return web.json_response({"status": "success", "data": {"resultType": "matrix", "result": result}})


@pytest.fixture
async def fake(rush: tuple[Mapping[str, Any], list[dict[str, Any]]]) -> AsyncIterator[tuple[Fake, str]]:
    made = Fake([rush[0]], rush[1])
    app = web.Application()
    app.add_routes([web.get("/-/explain", made.explain), web.get("/api/v1/query", made.query)])
    server = TestServer(app)
    await server.start_server()
    yield made, str(server.make_url("")).rstrip("/")
    await server.close()


async def command(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    explain.add_arguments(parser)
    return await asyncio.to_thread(explain.run, parser.parse_args(arguments))


async def test_the_command_prints_words_or_json(fake: tuple[Fake, str], capsys: pytest.CaptureFixture[str]) -> None:
    made, url = fake
    assert await command("box", "--exporter", url, "--context", "500") == 0
    assert "the KV cache is full" in capsys.readouterr().out
    assert made.asked == [{"context": "500"}]
    assert await command("--exporter", url, "--json") == 0
    assert json.loads(capsys.readouterr().out) == made.found


async def test_what_a_server_calls_its_model_does_not_steer_the_terminal(
    fake: tuple[Fake, str], capsys: pytest.CaptureFixture[str], rush: tuple[Mapping[str, Any], list[dict[str, Any]]]
) -> None:
    made, url = fake
    made.found = [{**rush[0], "model": "a\x1b[2Jb"}]
    assert await command("--exporter", url) == 0
    out = capsys.readouterr().out
    assert "a\ufffd[2Jb" in out
    assert "\x1b" not in out


async def test_the_command_asks_a_prometheus_about_a_time(
    fake: tuple[Fake, str], capsys: pytest.CaptureFixture[str]
) -> None:
    made, url = fake
    assert await command("--prometheus", url, "--at", "2026-01-31T14:05:00Z") == 0
    assert "kv_exhausted" in capsys.readouterr().out
    assert {asked["time"] for asked in made.asked} == {"1769868300.000"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nix", "--exporter", "{url}"], "no target is called 'nix'; there are: box"),
        (["--exporter", "{url}/api"], "{url}/api/-/explain answered 404; is that a llm-vitals?"),
        (["--exporter", "http://127.0.0.1:1"], "no answer from http://127.0.0.1:1/-/explain ("),
        (["--exporter", "http://u:s3cr3t@127.0.0.1:1"], "no answer from http://127.0.0.1:1/-/explain ("),
        (["--prometheus", "http://u:s3cr3t@127.0.0.1:1"], "no answer from http://127.0.0.1:1/api/v1/query ("),
        (["--prometheus", "http://u:s3cr3t@127.0.0.1:port"], "no answer from http://127.0.0.1:port/api/v1/query ("),
        (["--at", "5"], "--at needs --prometheus: the exporter itself knows only the present"),
    ],
)
async def test_what_cannot_be_explained_is_one_line_and_exit_code_1(
    arguments: list[str], message: str, fake: tuple[Fake, str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, url = fake
    assert await command(*(argument.format(url=url) for argument in arguments)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"llm-vitals: {message.format(url=url)}")
    assert "s3cr3t" not in line


@pytest.mark.parametrize("foreign", [{"detail": "hello"}, None, [1], [{"target": "box"}]])
async def test_json_of_another_kind_is_one_line_and_exit_code_1(
    foreign: object, fake: tuple[Fake, str], capsys: pytest.CaptureFixture[str]
) -> None:
    made, url = fake
    made.found = made.matrix = foreign
    for option, path, what in (
        ("--exporter", "/-/explain", "llm-vitals"),
        ("--prometheus", "/api/v1/query", "Prometheus"),
    ):
        assert await command("box", option, url) == 1
        assert capsys.readouterr().err == f"llm-vitals: {url}{path} sent JSON of another kind; is that a {what}?\n"


async def test_an_exporter_that_found_no_server_is_told_so(
    fake: tuple[Fake, str], capsys: pytest.CaptureFixture[str]
) -> None:
    made, url = fake
    made.found = []
    for asked in ([], ["box"]):
        assert await command(*asked, "--exporter", url) == 1
        problem = f"llm-vitals: {url} knows no server yet; `llm-vitals check` says where it looks for one\n"
        assert capsys.readouterr().err == problem


async def test_a_server_that_is_down_is_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    config = Config(DEFAULT_LISTEN, (Target("box", "http://127.0.0.1:1", "vllm"),))
    async with running(config) as exporter:
        await exporter.tried()
        assert await command("--exporter", exporter.url) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "the target gave nothing: no connection to 127.0.0.1:1" in shown.out


async def test_while_the_verdict_settles_it_says_so_once(
    fake: tuple[Fake, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, url = fake
    monkeypatch.setattr(explain, "AGAIN", 0.0)
    settled, made.found = made.found, [{"target": "box", "verdict": {"cause": "unknown", "held_seconds": 1.0}}]
    made.later = [made.found, made.found, settled]
    assert await command("--exporter", url) == 0
    shown = capsys.readouterr()
    assert shown.err == "watching, as the verdict compares readings (45 s at most) ...\n"
    assert "the KV cache is full" in shown.out


async def test_a_prometheus_without_the_series_is_told_so(
    fake: tuple[Fake, str], capsys: pytest.CaptureFixture[str]
) -> None:
    made, url = fake
    made.matrix = []
    assert await command("box", "--prometheus", url) == 1
    assert "has no series of target 'box' at that time" in capsys.readouterr().err


async def test_the_exporter_answers_for_every_target_and_shows_the_verdict_on_its_pages() -> None:
    async with serving(Engine()) as engine:
        config = Config(DEFAULT_LISTEN, (Target("box", engine.url, "vllm", device="NVIDIA L4", weight_bytes=16e9),))
        async with running(config) as exporter:
            await exporter.tried()
            status, _, body = await exporter.get("/-/explain?context=1000")
            assert status == 200
            (found,) = json.loads(body)
            assert found["verdict"]["cause"] == "unknown"
            assert found["ceilings"]["context_tokens"] == 1000
            assert found["ceilings"]["decode_ceiling_tokens_per_second"] == 300 / 16
            assert "not enough is known" in (await exporter.get("/"))[2]
            assert "set model_config to its config.json" in (await exporter.get("/debug/box"))[2]
            names = await exporter.names("box")
            assert {"vitals_verdict", "vitals_decode_ceiling_tokens_per_second", "vitals_model_weight_bytes"} <= names


def test_the_page_of_causes_is_the_data_file() -> None:
    page = Path(__file__).parent.parent / "docs/causes.md"
    assert page.read_text(encoding="utf-8") == markdown()
    for cause in causes().values():
        assert all(len(cause.change[backend]) == 3 for backend in ("vllm", "ollama"))
        assert cause.leave
        assert cause.evidence
