"""The demonstration and the simulated servers alone, run as the command runs them."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket

import aiohttp
import pytest

from exporter.config import parse_listen
from exporter.simulator import demo, simulate
from tests.simulated import samples


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def read_until(url: str, *wanted: str) -> dict[str, float]:
    """Read a page until all these series are above 0 on it; the test's own timeout ends a vain wait."""
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(url) as response:
                    found = samples(await response.text())
            except aiohttp.ClientConnectorError:
                found = {}
            if all(any(name.startswith(series) and found[name] > 0 for name in found) for series in wanted):
                return found
            await asyncio.sleep(0.05)


@pytest.mark.timeout(60)
async def test_the_demo_shows_both_simulated_servers_through_the_exporter_and_ends_on_sigterm(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    args = parser.parse_args(["--speed", "20", "--episode", "busy"])
    args.listen = parse_listen(f"127.0.0.1:{free_port()}")
    running = asyncio.create_task(demo.run(args))
    page = f"http://127.0.0.1:{args.listen.port}/metrics"
    found = await read_until(
        page,
        "vitals_target_up{target=demo-vllm",
        "vitals_target_up{target=demo-ollama",
        "vitals_time_to_first_token_seconds_count{target=demo-vllm",
        "vitals_inter_token_latency_seconds_count{target=demo-vllm",
        "vitals_kv_cache_capacity_tokens{target=demo-vllm",
        "vitals_model_loaded{target=demo-ollama",
    )
    assert found["vitals_unmapped_families{target=demo-vllm,backend=vllm}"] == 0
    signal.raise_signal(signal.SIGTERM)
    assert await running == 0
    shown = capsys.readouterr().out
    assert page in shown
    assert "simulated ollama" in shown


@pytest.mark.timeout(60)
async def test_the_servers_alone_serve_until_sigterm(caplog: pytest.LogCaptureFixture) -> None:
    parser = argparse.ArgumentParser()
    simulate.add_arguments(parser)
    port = free_port()
    args = parser.parse_args(["--vllm", f"127.0.0.1:{port}", "--ollama", "off", "--episode", "calm", "--speed", "50"])
    with caplog.at_level(logging.INFO):
        running = asyncio.create_task(simulate.run(args))
        await read_until(f"http://127.0.0.1:{port}/metrics", "vllm:generation_tokens_total")
        signal.raise_signal(signal.SIGTERM)
        assert await running == 0
    assert "episode calm (60 simulated seconds)" in caplog.text


async def test_without_an_episode_there_is_no_traffic() -> None:
    parser = argparse.ArgumentParser()
    simulate.add_arguments(parser)
    port = free_port()
    args = parser.parse_args(["--vllm", f"127.0.0.1:{port}", "--ollama", "off", "--episode", "none", "--speed", "500"])
    running = asyncio.create_task(simulate.run(args))
    found = await read_until(f"http://127.0.0.1:{port}/metrics", "vllm:engine_sleep_state{sleep_state=awake}")
    signal.raise_signal(signal.SIGTERM)
    assert await running == 0
    assert found["vllm:generation_tokens_total"] == 0


@pytest.mark.parametrize("run", [demo.run, simulate.run])
async def test_options_that_make_no_server_end_with_2(run: object, caplog: pytest.LogCaptureFixture) -> None:
    parser = argparse.ArgumentParser()
    simulate.add_arguments(parser)
    args = parser.parse_args(["--vllm", "off", "--ollama", "off"])
    args.listen = None
    assert await run(args) == 2  # type: ignore[operator]  # one of the two coroutine functions
    assert "both servers are off" in caplog.text
