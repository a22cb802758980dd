"""The program as it is started: signals, exit codes and what it logs."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path

import aiohttp
import pytest

from exporter import __version__
from tests.peers import SECRETS, Engine, Ollama, free_port, saying, serving, talking
from tests.program import ASK_NOBODY, LISTEN, config, end, line_with, run, started, url_of


async def text_of(url: str) -> str:
    async with aiohttp.ClientSession() as client, client.get(url) as response:
        return await response.text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_although_a_scrape_hangs(number: signal.Signals) -> None:
    async with serving(Engine()) as engine, started(*LISTEN, environ={"VLLM_URL": engine.url}) as process:
        url = await url_of(process)
        await line_with(process, "target vllm is up")
        engine.hold = asyncio.Event()
        engine.arrived.clear()
        scrape = asyncio.create_task(text_of(f"{url}/metrics"))
        await engine.arrived.wait()
        await end(process, number)
        await asyncio.gather(scrape, return_exceptions=True)


async def test_a_signal_ends_it_although_the_look_up_of_a_name_hangs() -> None:
    async with started(*LISTEN, command=ASK_NOBODY, environ={"VLLM_URL": "http://llm.test:8000"}) as process:
        await url_of(process)
        await end(process)


async def test_names_whose_look_up_hangs_keep_no_other_target_and_no_scraper_waiting(tmp_path: Path) -> None:
    hanging = [
        {"name": f"o{port}", "url": f"http://llm.test:{port}", "backend": "ollama", "timeout": "100ms"}
        for port in range(1, 15)
    ]
    async with serving(Engine()) as engine:
        file = config(tmp_path, *hanging, {"name": "a", "url": engine.url.replace("127.0.0.1", "localhost")})
        async with started("--config", file, *LISTEN, command=ASK_NOBODY) as process, asyncio.timeout(20):
            url = await url_of(process)
            await line_with(process, "target a is up")
            page = await text_of(f"{url}/metrics")  # in gzip, which is made in a thread too
            assert 'vitals_target_up{target="a",backend="vllm"} 1.0' in page
            assert page.count("} 0.0\n") >= len(hanging)
            await end(process)


async def test_a_signal_ends_it_while_an_ollama_is_probed() -> None:
    ollama = Ollama()
    ollama.hold = asyncio.Event()
    async with serving(ollama), started(*LISTEN, environ={"OLLAMA_URL": ollama.url}) as process:
        await url_of(process)
        await line_with(process, "target ollama is up")
        await end(process)


async def test_it_serves_what_the_environment_names() -> None:
    async with serving(Engine()) as engine, started(*LISTEN, environ={"VLLM_URL": engine.url}) as process:
        url = await url_of(process)
        assert 'vitals_target_up{target="vllm",backend="vllm"} 1.0' in await text_of(f"{url}/metrics")
        assert "1 of 1 server up" in await text_of(url)
        await end(process)


async def test_a_hang_up_signal_makes_it_read_its_configuration_again(tmp_path: Path) -> None:
    async with serving(Engine()) as engine:
        file = config(tmp_path, {"name": "a", "url": engine.url})
        async with started("--config", file, *LISTEN) as process:
            url = await url_of(process)
            config(tmp_path)
            process.send_signal(signal.SIGHUP)
            await line_with(process, "configuration refused, the old one stays: targets: expected a list of at")
            config(tmp_path, {"name": "b", "url": engine.url})
            process.send_signal(signal.SIGHUP)
            await line_with(process, "configuration read again; targets now: b")
            assert 'vitals_target_up{target="b",backend="vllm"} 1.0' in await text_of(f"{url}/metrics")
            await end(process)


async def test_reloading_over_http_is_an_option(tmp_path: Path) -> None:
    file = config(tmp_path, {"url": f"http://127.0.0.1:{await free_port()}"})
    for options, status in ((), 403), (("--enable-lifecycle",), 200):
        async with started("run", "--config", file, *LISTEN, *options) as process:
            url = await url_of(process)
            async with aiohttp.ClientSession() as client, client.post(f"{url}/-/reload") as response:
                assert response.status == status
            await end(process)


async def test_a_port_in_use_is_one_line_and_exit_code_1() -> None:
    async with serving(Engine()) as engine:
        place = engine.url.removeprefix("http://")
        code, out, err = await run("--listen", place, environ={"VLLM_URL": engine.url})
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert f"cannot listen on {place}: " in err
    assert "address already in use" in err
    assert err.endswith("; choose another with --listen\n")


async def test_a_bad_configuration_is_exit_code_2_with_every_problem(tmp_path: Path) -> None:
    file = config(tmp_path, {"url": "here", "timeout": "5"}, {"name": "a b", "urll": "http://h"})
    for command in ("run", "check"):
        code, out, err = await run(command, "--config", file)
        assert (code, out) == (2, "")
        assert [line.split(": ")[:2] for line in err.splitlines()] == [
            ["llm-vitals", "targets[0].url"],
            ["llm-vitals", "targets[0].timeout"],
            ["llm-vitals", "targets[1].urll"],
            ["llm-vitals", "targets[1].name"],
            ["llm-vitals", "targets[1].url"],
        ]


async def test_a_configuration_file_that_is_not_there_is_exit_code_2(tmp_path: Path) -> None:
    code, _, err = await run("--config", str(tmp_path / "no.yml"))
    assert (code, err.count("\n")) == (2, 1)
    assert str(tmp_path / "no.yml") in err


@pytest.mark.parametrize("arguments", [("--listen", "here"), ("--lisen", ":1"), ("fly",), ("--log-level", "loud")])
async def test_a_bad_option_is_exit_code_2_with_the_usage(arguments: tuple[str, ...]) -> None:
    code, _, err = await run(*arguments)
    assert code == 2
    assert err.startswith("usage: llm-vitals")


async def test_the_version_is_told() -> None:
    assert await run("--version") == (0, f"llm-vitals {__version__}\n", "")


async def test_a_json_log_is_an_object_a_line(tmp_path: Path) -> None:
    async with talking(saying(b"")) as url:
        file = config(tmp_path, {"name": "a", "url": url})
        async with started("--config", file, *LISTEN, "--log-format", "json") as process:
            first = await line_with(process, "serving on ")
            first += await line_with(process, "target a is down")
            rest = await end(process)
    records = [json.loads(line) for line in (first + rest).splitlines()]
    assert all(record.keys() == {"ts", "level", "logger", "msg"} for record in records)
    assert [record["level"] for record in records] == ["info", "warning", "info"]
    assert records[-1]["msg"] == "ending"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", records[0]["ts"])


async def test_no_secret_is_logged_at_any_level(tmp_path: Path) -> None:
    async with (
        serving(Engine()) as engine,
        serving(Ollama()) as ollama,
        talking(saying(b"tok-en pass-word\r\n")) as odd,
    ):
        engine.status = 401
        ollama.status = 401
        bearer, basic = {"bearer_token": "tok-en"}, {"basic_auth": {"username": "user", "password": "pass-word"}}
        targets = [
            {"name": f"{backend}-{number}", "url": url, "backend": backend, **access}
            for number, (url, access) in enumerate(
                (url, access) for url in (engine.url, ollama.url, odd) for access in (bearer, basic)
            )
            for backend in ("vllm", "ollama", "auto")
        ]
        file = config(tmp_path, *targets)
        async with started("--config", file, *LISTEN, "--log-level", "debug") as process:
            url = await url_of(process)
            page = await text_of(f"{url}/metrics")
            log = await end(process)
    assert page.count("vitals_target_up{") == 18
    assert log.count(" is down (") == 18
    assert not any(secret in log + page for secret in SECRETS)
