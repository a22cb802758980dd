"""The proxy as a part of the exporter: what is configured, what is exported, and how it comes and goes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.peers import Engine, Ollama, free_port, serving
from tests.program import started
from tests.proxying import until
from tests.running import ConfigFile, running

OBSERVED = {
    "vitals_time_to_first_token_seconds", "vitals_inter_token_latency_seconds", "vitals_request_duration_seconds",
    "vitals_requests_running", "vitals_requests_waiting", "vitals_kv_cache_usage_ratio", "vitals_prompt_tokens_total",
    "vitals_generation_tokens_total", "vitals_requests_finished_total",
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> ConfigFile:
    return ConfigFile(tmp_path)


@pytest.fixture
async def ollama() -> AsyncIterator[SlowOllama]:
    async with serving(SlowOllama()) as engine:
        yield engine


class SlowOllama(Ollama):
    """An Ollama whose answers wait for `step` in their middle, as soon as that is cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.step = asyncio.Event()
        self.step.set()

    async def answer(self, request: Any) -> Any:
        if request.path == "/v1/models":
            return aiohttp.web.json_response({"data": [{"id": "m"}]})
        if request.path == "/api/ps":
            model = {"name": "m", "size": 9, "size_vram": 9, "context_length": 100}
            return aiohttp.web.json_response({"models": [model]})
        if request.path != "/api/generate":
            return await super().answer(request)
        response = aiohttp.web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        await response.write(b'{"response":"a","done":false}\n{"response":"b","done":false}\n')
        await self.step.wait()
        await response.write(b'{"response":"c","done":false}\n')
        await response.write(b'{"response":"","done":true,"done_reason":"stop","prompt_eval_count":4,"eval_count":3}\n')
        return response


def proxied(name: str, engine: Engine, port: int, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "url": engine.url, "backend": "ollama", "probe": {"enabled": False},
        "proxy": {"listen": f"127.0.0.1:{port}", **more},
    }  # fmt: skip


@asynccontextmanager
async def generating(port: int) -> AsyncIterator[aiohttp.StreamReader]:
    """Ask and yield the stream after its first line."""
    async with aiohttp.ClientSession() as session:
        url, body = f"http://127.0.0.1:{port}/api/generate", {"model": "m", "prompt": "x" * 36}
        async with session.post(url, json=body) as response:
            await response.content.readline()
            yield response.content


async def generate(port: int, engine: SlowOllama) -> None:
    """Ask and read an answer that comes in two network reads."""
    engine.step.clear()
    async with generating(port) as stream:
        await stream.readline()
        engine.step.set()
        await stream.read()


async def test_what_is_observed_stands_beside_what_is_read_under_one_help_each(
    file: ConfigFile, ollama: SlowOllama
) -> None:
    port = await free_port()
    async with serving(Engine()) as vllm:
        config = file.write({"name": "v", "url": vllm.url, "backend": "vllm"} | {"probe": {"enabled": False}},
                            proxied("o", ollama, port))  # fmt: skip
        async with running(config) as exporter:
            await exporter.tried()
            await generate(port, ollama)
            found = [s for s in await exporter.metrics() if s.labels.get("target") == "o"]
            names = {re.sub("_(bucket|sum|count)$", "", sample.name) for sample in found}
            assert not OBSERVED - names
            assert {"vitals_target_up", "vitals_model_loaded"} <= names
            assert {sample.labels["backend"] for sample in found} == {"ollama"}
            assert {s.labels["model"] for s in found if s.name in OBSERVED} == {"m"}
            for family in ("vitals_generation_tokens_total", "vitals_time_to_first_token_seconds_count"):
                assert (await exporter.series(family, model="m"))["o"] == (3 if "tokens" in family else 1)
            status, _, text = await exporter.get("/metrics", Accept="application/openmetrics-text")
            assert status == 200
            assert text.count("# TYPE vitals_time_to_first_token_seconds ") == 1
            assert text.index('seconds_count{target="v"') < text.index('seconds_count{target="o"')


async def test_running_waiting_and_the_context_in_use_are_seen_while_they_last(
    file: ConfigFile, ollama: SlowOllama
) -> None:
    port = await free_port()
    async with running(file.write(proxied("o", ollama, port, slots=2))) as exporter:
        await exporter.tried()
        assert await exporter.series("vitals_requests_running") == {"o": 0}
        assert await exporter.series("vitals_kv_cache_usage_ratio") == {"o": 0}
        ollama.step.clear()
        async with generating(port), generating(port), generating(port):
            assert await exporter.series("vitals_requests_running") == {"o": 2}
            assert await exporter.series("vitals_requests_waiting") == {"o": 1}
            size = len('{"model": "m", "prompt": ""}') + 36
            expected = 2 * (size / 4 + 2) / (2 * 100)
            assert await exporter.series("vitals_kv_cache_usage_ratio") == {"o": pytest.approx(expected)}
            status, _, page = await exporter.get("/")
            assert status == 200
            tiles = re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)<", page)
            assert ("Requests running", "2") in tiles
            assert ("Requests waiting", "1") in tiles
            ollama.step.set()


async def test_the_landing_page_shows_what_users_saw(file: ConfigFile, ollama: SlowOllama) -> None:
    port = await free_port()
    async with running(file.write(proxied("o", ollama, port))) as exporter:
        await exporter.tried()
        await generate(port, ollama)
        _, _, page = await exporter.get("/")
        assert re.search(r"<dt>Time to first token</dt><dd>[^<]*\d[^<]*<small>p99; median", page)
        assert f"127.0.0.1:{port}" in page


async def test_only_exports_what_passes_and_nothing_else(file: ConfigFile, ollama: SlowOllama) -> None:
    port = await free_port()
    config = file.write(proxied("o", ollama, port, only=True) | {"probe": {"enabled": True, "interval": "1s"}})
    async with running(config) as exporter:
        await exporter.tried()
        await generate(port, ollama)
        found = {re.sub("_(bucket|sum|count)$", "", name) for name in await exporter.names("o")}
        assert not OBSERVED - found
        assert "vitals_target_up" not in found
        assert not [name for name in found if "probe" in name]


async def test_the_engines_own_numbers_come_before_observed_ones(file: ConfigFile) -> None:
    port = await free_port()
    async with serving(Engine()) as vllm:
        config = file.write(proxied("v", vllm, port) | {"backend": "vllm"})
        async with running(config) as exporter:
            await exporter.tried()
            async with aiohttp.ClientSession() as session:
                body = {"model": "tiny", "prompt": "x"}
                await (await session.post(f"http://127.0.0.1:{port}/v1/completions", json=body)).read()
            running_ = [s for s in await exporter.metrics() if s.name == "vitals_requests_running"]
            assert [sample.labels["engine"] for sample in running_] == ["0"]


async def test_a_reload_of_other_targets_cuts_no_stream_and_resets_no_number(
    file: ConfigFile, ollama: SlowOllama
) -> None:
    port = await free_port()
    other = {"name": "b", "url": ollama.url, "backend": "ollama", "probe": {"enabled": False}}
    async with running(file.write(proxied("o", ollama, port), other), file.load) as exporter:
        await generate(port, ollama)
        ollama.step.clear()
        async with generating(port) as stream:
            file.write(proxied("o", ollama, port), other | {"timeout": "3s"})
            assert (await exporter.post("/-/reload"))[0] == 200
            ollama.step.set()
            assert b'"done":true' in await stream.read()
        await generate(port, ollama)
        found = await exporter.series("vitals_requests_finished_total", reason="stop")
        assert found == {"o": 3}


async def test_a_reload_that_changes_a_proxy_lets_its_streams_end_and_listens_anew(
    file: ConfigFile, ollama: SlowOllama
) -> None:
    port = await free_port()
    async with running(file.write(proxied("o", ollama, port)), file.load) as exporter:
        ollama.step.clear()
        async with generating(port) as stream:
            file.write(proxied("o", ollama, port, slots=3))
            assert (await exporter.post("/-/reload"))[0] == 200
            ollama.step.set()
            assert b'"done":true' in await stream.read()
            await generate(port, ollama)
        found = await exporter.series("vitals_requests_finished_total", reason="stop")
        assert found == {"o": 1}
        file.write(proxied("o", ollama, await free_port()))
        await exporter.post("/-/reload")
        with pytest.raises(aiohttp.ClientConnectorError):
            await generate(port, ollama)


async def test_a_reload_that_removes_a_proxy_takes_its_numbers_and_lets_its_streams_end(
    file: ConfigFile, ollama: SlowOllama
) -> None:
    port = await free_port()
    plain = {key: value for key, value in proxied("o", ollama, port).items() if key != "proxy"}
    async with running(file.write(proxied("o", ollama, port)), file.load) as exporter:
        ollama.step.clear()
        async with generating(port) as stream:
            assert await exporter.series("vitals_requests_running") == {"o": 1}
            file.write(plain)
            assert (await exporter.post("/-/reload"))[0] == 200
            assert await exporter.series("vitals_requests_running") == {}
            assert not listening(port)
            ollama.step.set()
            assert b'"done":true' in await stream.read()
        assert not await exporter.series("vitals_requests_finished_total")


async def test_an_address_that_is_taken_is_said_and_listened_on_when_it_is_free(
    file: ConfigFile, ollama: SlowOllama, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exporter.proxy.proxy.TRY_AGAIN", 0.01)
    squatter = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = squatter.sockets[0].getsockname()[1]
    async with running(file.write(proxied("o", ollama, port))) as exporter:
        await exporter.tried()
        assert f"cannot listen on 127.0.0.1:{port}" in caplog.text
        assert "not listening" in (await exporter.get("/"))[2]
        squatter.close()
        await squatter.wait_closed()
        await until(lambda: listening(port))
        await generate(port, ollama)


def listening(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        return True
    return False


async def test_sigterm_ends_all_within_five_seconds_streams_included(tmp_path: Path, ollama: SlowOllama) -> None:
    port = await free_port()
    path = tmp_path / "v.yml"
    path.write_text(yaml.safe_dump({"listen": "127.0.0.1:0", "targets": [proxied("o", ollama, port)]}))
    ollama.step.clear()
    async with started("--config", str(path)) as process:
        await until(lambda: listening(port))
        async with generating(port) as stream:
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(5):
                with pytest.raises((aiohttp.ClientError, ConnectionError)):
                    await stream.read()
                _, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        assert b"Traceback" not in err
    ollama.step.set()
