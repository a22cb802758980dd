"""Probes of a real llama.cpp server with a real model: their rates against the server's own counters.

VITALS_LLAMA is a command that serves one when a port is appended.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from exporter.probe import prompt
from exporter.probe.dialects import DIALECTS
from exporter.probe.events import Ask
from exporter.probe.result import ProbeResult, measure
from exporter.probe.stream import Deadlines
from exporter.probe.thread import StreamThread
from exporter.settings import Target
from tests.real.conftest import command
from tests.real.servers import free_port, get, process, wait_until

pytestmark = pytest.mark.timeout(1800)

TOKENS = 64
ATTEMPTS = 3


@pytest.fixture(scope="module")
def llama(logs: Path) -> Iterator[str]:
    serve, port = command("VITALS_LLAMA"), free_port()
    url = f"http://127.0.0.1:{port}"
    with process([*serve, str(port)], logs / "llama.log") as child:
        wait_until("llama.cpp is ready", lambda: "ok" in get(f"{url}/health"), 900, child)
        yield url


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens, and the seconds that they took, of prefill and of decode."""

    prefill_tokens: float
    prefill_s: float
    decode_tokens: float
    decode_s: float

    def rates(self) -> dict[str, float]:
        return {"prefill": self.prefill_tokens / self.prefill_s, "decode": self.decode_tokens / self.decode_s}


def counters(url: str) -> dict[str, float]:
    found = re.findall(r"^llamacpp:(\w+) ([\d.e+-]+)$", get(f"{url}/metrics"), re.MULTILINE)
    return {name: float(value) for name, value in found}


def by_server(before: dict[str, float], after: dict[str, float], probes: int) -> Work:
    """Return what the counters grew by; the first token of an answer is prefill's, and its time is not decode's."""
    grown = {name: after[name] - before[name] for name in after}
    return Work(
        grown["prompt_tokens_total"],
        grown["prompt_seconds_total"],
        grown["tokens_predicted_total"] - probes,
        grown["tokens_predicted_seconds_total"],
    )


async def probe(url: str, sizes: list[int]) -> list[ProbeResult]:
    """Probe with prompts of so many characters, one after the other."""
    streams = StreamThread()
    streams.start()
    results = []
    try:
        for size in sizes:
            dialect = DIALECTS["openai_completions"]()
            ask = Ask("gemma3-270m", prompt.write(secrets.token_hex(8), size), TOKENS, extras={"ignore_eos": True})
            exchange = await streams.send(Target("a", url), dialect, dialect.body(ask), Deadlines(120, 300))
            results.append(measure(exchange, at=0.0, warmup=False, min_prompt_tokens=0))
    finally:
        await streams.close()
    assert [result.error for result in results if not result.ok] == []
    return results


def seen(results: list[ProbeResult]) -> Work:
    """Return what a client saw, by its own clock."""
    return Work(
        sum(result.computed_tokens or 0 for result in results),
        sum(result.ttft or 0 for result in results),
        sum((result.output_tokens or 0) - 1 for result in results),
        sum((result.tpot or 0) * ((result.output_tokens or 0) - 1) for result in results),
    )


def told(results: list[ProbeResult]) -> Work:
    """Return what the gauges of the probes say."""
    return Work(
        sum(result.computed_tokens or 0 for result in results),
        sum((result.computed_tokens or 0) / (result.prefill_rate or 1) for result in results),
        sum((result.output_tokens or 0) - 1 for result in results),
        sum(((result.output_tokens or 0) - 1) / (result.decode_rate or 1) for result in results),
    )


def test_rates_agree_with_the_servers_own_counters(llama: str, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(probe(llama, [900]))  # the first request is a warm-up
    off: list[str] = []
    for _ in range(ATTEMPTS):
        before = counters(llama)
        results = asyncio.run(probe(llama, [6000] * 4))
        theirs = by_server(before, counters(llama), len(results)).rates()
        both = {"gauges": told(results).rates(), "client's clock": seen(results).rates()}
        off = []
        with capsys.disabled():
            for who, ours in both.items():
                for what, rate in ours.items():
                    sys.stdout.write(f"\n{what}: {who} {rate:.1f} tokens/s, server {theirs[what]:.1f} tokens/s")
                    off += [f"{what} by {who}"] if rate != pytest.approx(theirs[what], rel=0.03) else []
        if not off:
            return
    raise AssertionError(f"{off} differ by more than 3 % in each of {ATTEMPTS} attempts")
