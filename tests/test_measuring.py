"""The recipes of docs/measuring.md, run as they are written there, and its figures."""

from __future__ import annotations

import asyncio
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.simulator.clock import RealClock
from exporter.simulator.hardware import H100
from exporter.simulator.ollama import OllamaServer
from exporter.simulator.server import Server
from exporter.simulator.vllm import VllmServer
from tests.simulated import OLLAMA, VLLM

PAGE = (Path(__file__).parent.parent / "docs/measuring.md").read_text(encoding="utf-8")
QUICK = replace(H100, jitter=0.0)

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("bash", "curl", "jq"))), reason="bash, curl and jq are not all on PATH"
)


def recipe(name: str, **variables: str) -> str:
    """Return the code block after a mark, with its first line's addresses and model replaced."""
    block = re.search(rf"<!-- recipe: {name} -->\n```(?:ba)?sh\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    first, rest = block[1].split("\n", 1)
    for variable, value in variables.items():
        assert f"{variable}=" in first
        first = re.sub(rf"{variable}=(\$\(.*\)|\S+)", f"{variable}={value}", first)
    return f"{first}\n{rest}"


async def run(server: Server, script: str) -> list[str]:
    try:
        process = await asyncio.create_subprocess_exec("bash", "-c", script, stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(60):
            out, _ = await process.communicate()
        assert process.returncode == 0
        return out.decode().splitlines()
    finally:
        await server.stop()


async def test_the_stream_recipe_times_the_first_token_and_not_the_headers() -> None:
    server = VllmServer(replace(VLLM, device=QUICK, max_model_len=8192), RealClock())
    await server.start()
    lines = await run(server, recipe("stream", URL=server.url, MODEL="tiny"))
    truths = [record.ttft for record in server.ledger.records]
    for line, truth in zip(lines, truths, strict=True):
        found = re.fullmatch(r"first token after ([0-9.]+) s, then [0-9.]+ tokens/s \(64 chunks\)", line)
        assert found is not None
        assert float(found[1]) >= truth - 0.0005
    assert truths[1] > 2 * truths[0]


async def test_the_ollama_recipe_gives_the_servers_own_rates_of_both_phases() -> None:
    server = OllamaServer(replace(OLLAMA, device=QUICK), RealClock())
    await server.start()
    lines = await run(server, recipe("ollama", OLLAMA=server.url, MODEL="gemma3:270m"))
    for line, record in zip(lines, server.ledger.records, strict=True):
        found = re.fullmatch(
            r"([0-9]+) prompt tokens: load ([0-9.]+) s, prefill ([0-9.e-]+) s, ([0-9.]+) tokens/s; "
            r"decode ([0-9.]+) tokens/s",
            line,
        )
        assert found is not None
        assert int(found[1]) == record.prompt_tokens
        assert float(found[3]) == pytest.approx(record.prefill, rel=0.01)
        assert float(found[5]) == pytest.approx(63 / record.decode, rel=0.01)


def test_the_figures_of_the_page_are_those_that_the_other_tests_prove() -> None:
    words = " ".join(PAGE.split())
    for tokens, bandwidth in ((6, 90), (38, 600), (54, 864), (63, 1008), (127, 2039), (209, 3350)):
        assert round(bandwidth / 16) == tokens
        assert re.search(rf"\b{tokens} (tokens/s )?(on|from) .{{3,30}} \({bandwidth}( GB/s)?\)", words)
    assert "2 x 32 x 8 x 128 x 2 = 131,072" in words
