"""How true the probes are: TTFT and ITL against what the simulator did, at rest and while 100 targets are scraped.

The simulator runs in a process of its own and knows when each token was there; this process is the exporter. At each
ITL some 5,000 tokens are measured by probes of 100 tokens; the slower the tokens, the more probes are in flight at
once. On a machine without an idle core the p99 tells how long a process waits for one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import multiprocessing
import secrets
import socket
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection

from aiohttp import web

from bench.scrape import PAGE, serve_page
from exporter.app import App
from exporter.config import Config, Listen, Target
from exporter.probe import prompt, stream
from exporter.probe.dialects import DIALECTS
from exporter.probe.events import Ask
from exporter.probe.result import ProbeResult, measure
from exporter.probe.thread import StreamThread
from exporter.settings import ProbeSettings
from exporter.simulator.clock import RealClock
from exporter.simulator.engine import Limits
from exporter.simulator.hardware import LLAMA_3_1_8B, Device
from exporter.simulator.vllm import VllmServer, VllmSettings
from exporter.web import make_web

TOKENS = 100
"""Tokens of one probe."""

PLAN = {0.004: (50, 1), 0.020: (50, 5), 0.200: (50, 25)}
"""Probes, and how many of them at once, by ITL in seconds."""

SPREAD = 0.1
"""Sigma of the log-normal that the simulator's steps are multiplied by: a p99 of 1.26 times the median."""


class NotingClock(RealClock):
    """Real time that notes when each token was there, which is when its step's sleep really ended."""

    def __init__(self) -> None:
        super().__init__()
        self.came: dict[float, float] = {}

    async def sleep_until(self, at: float) -> None:
        """Sleep, and note when that was over: the kernel lets nobody wake at the very moment."""
        await super().sleep_until(at)
        self.came[at] = self.now()


@dataclass(frozen=True, slots=True)
class Truth:
    """What the simulator did for one request, in seconds."""

    ttft: float
    gaps: tuple[float, ...]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench probe", description=__doc__)
    parser.add_argument("--itl", type=float, nargs="+", default=[1000 * itl for itl in PLAN], help="in ms")
    parser.add_argument("--targets", type=int, default=100, help="targets of the scrape beside it")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two scrapes")
    options = parser.parse_args(argv)
    print(f"{'':<34}{'TTFT p50':>20}{'TTFT p99':>20}{'ITL p50':>20}{'ITL p99':>20}")
    print(f"{'ms: truth, probe':<34}" + f"{'truth     probe':>20}" * 4)
    missed = 0
    for itl in options.itl:
        for targets in (0, options.targets):
            missed += asyncio.run(_compare(itl / 1000, targets, options.every))
    print("each figure within 2 % or 0.5 ms" if not missed else f"{missed} figures (!) further off than 2 % and 0.5 ms")
    return 0 if not missed else 1


async def _compare(itl: float, targets: int, every: float) -> int:
    """Measure at one ITL, print both columns and return how many figures are further off than they may be."""
    probes, at_once = PLAN.get(itl, (50, 5))
    with _simulator(itl) as (url, pipe):
        async with contextlib.AsyncExitStack() as stack:
            if targets:
                await stack.enter_async_context(_scraped(targets, every))
            results = await _probe(url, probes, at_once)
        pipe.send("tell")
        truths: list[Truth] = pipe.recv()
    if len(truths) != len(results) or any(not result.ok for result in results):
        raise RuntimeError(f"{len(results)} probes of {len(truths)} requests, {[r.error for r in results if r.error]}")
    gaps = [gap for truth in truths for gap in truth.gaps], [gap for result in results for gap in result.gaps]
    ttft = [truth.ttft for truth in truths], [result.ttft or math.nan for result in results]
    line = f"ITL {itl * 1000:g} ms, {len(gaps[1]) + len(ttft[1])} tokens" + (f", {targets} scraped" if targets else "")
    missed = 0
    cells = ""
    for true, seen in (ttft, gaps):
        for q in (0.5, 0.99):
            expected, got = _quantile(q, true), _quantile(q, seen)
            off = abs(got - expected) > max(0.02 * expected, 0.0005)
            missed += off
            cells += f"{expected * 1000:>10.2f}{got * 1000:>9.2f}{'!' if off else ' '}"
    print(f"{line:<34}{cells}", flush=True)
    return missed


async def _probe(url: str, probes: int, at_once: int) -> list[ProbeResult]:
    """Send probes from the exporter's own thread for them; the first one is a warm-up and not counted."""
    streams = StreamThread()
    streams.start()
    target = Target("simulated", url, "vllm")
    slots = asyncio.Semaphore(at_once)

    async def one(warmup: bool = False) -> ProbeResult:
        dialect = DIALECTS["openai_completions"]()
        ask = Ask("", prompt.write(secrets.token_hex(8), 900), TOKENS, extras={"ignore_eos": True})
        async with slots:
            exchange = await streams.send(target, dialect, dialect.body(ask), stream.Deadlines(60, 300))
        return measure(exchange, at=0.0, warmup=warmup, min_prompt_tokens=0)

    try:
        await one(warmup=True)
        return list(await asyncio.gather(*(one() for _ in range(probes))))
    finally:
        await streams.close()


@contextlib.contextmanager
def _simulator(itl: float) -> Iterator[tuple[str, Connection]]:
    """Run a simulated vLLM whose step takes `itl` in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_simulate, args=(itl, theirs), daemon=True)
    process.start()
    try:
        yield str(ours.recv()), ours
    finally:
        process.kill()
        process.join()


def _simulate(itl: float, pipe: Connection) -> None:
    # Nothing but the overhead takes time, apart from prefill: a prompt of 200 tokens 80 ms.
    flops = 2 * LLAMA_3_1_8B.parameters * 200 / 0.08
    device = Device("fixed", 1e18, flops, 80e9, efficiency=1.0, overhead=itl, jitter=SPREAD)
    settings = VllmSettings(device=device, model=LLAMA_3_1_8B, limits=Limits(), seed=1)

    async def serve() -> None:
        clock = NotingClock()
        server = VllmServer(settings, clock)
        await server.start()
        pipe.send(server.url)
        await asyncio.to_thread(pipe.recv)
        truths = []
        for record in server.ledger.finished[1:]:
            times = [clock.came[at] for at in record.updates]
            gaps = tuple(later - earlier for earlier, later in pairwise(times))
            truths.append(Truth(times[0] - record.arrival, gaps))
        pipe.send(truths)
        await asyncio.Event().wait()

    asyncio.run(serve())


@contextlib.asynccontextmanager
async def _scraped(targets: int, every: float) -> AsyncIterator[None]:
    """Be an exporter of so many vLLMs, with a page server and a scraper in processes of their own."""
    context = multiprocessing.get_context("spawn")
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    pages = context.Process(target=serve_page, args=(listener, PAGE.read_text(encoding="utf-8")), daemon=True)
    pages.start()
    silent = ProbeSettings(enabled=False)
    config = Config(Listen("127.0.0.1", 0), tuple(Target(f"t{n}", url, "vllm", probe=silent) for n in range(targets)))
    app = App(config, lambda: config)
    runner = web.AppRunner(make_web(app, enable_lifecycle=False), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    await app.start()
    scraper = context.Process(target=_scrape, args=(f"http://127.0.0.1:{runner.addresses[0][1]}", every), daemon=True)
    scraper.start()
    try:
        await app.poll(budget_s=60.0)
        yield
    finally:
        for process in (scraper, pages):
            process.kill()
        await app.close()
        await runner.cleanup()


def _scrape(url: str, every: float) -> None:
    while True:
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
            size = len(answer.read())
        if not size:
            raise RuntimeError("an empty scrape")
        time.sleep(every)


def _quantile(q: float, values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(q * len(values)) - 1]
