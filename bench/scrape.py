"""CPU time of the whole way of a scrape (fetch, normalize, emit) against prometheus_client's parser alone.

A second process serves a recorded page of a real vLLM with values that change at every request; this process
is the exporter. Everything is measured in one run, so the ratios hold where the absolute times do not.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import os
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from exporter.app import App
from exporter.config import Config, Listen, ProbeSettings, Target
from exporter.relay.render import exposition

PAGE = Path(__file__).parent.parent / "tests" / "fixtures" / "vllm" / "0.32.0-real-after-bench.prom"
TARGETS = (1, 10, 100, 1000)
VARIANTS = 16


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench scrape", description=__doc__)
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to serve")
    parser.add_argument("--targets", type=int, nargs="+", default=TARGETS, help="numbers of targets to measure")
    parser.add_argument("--rounds", type=int, default=15, help="measured scrapes for each number")
    options = parser.parse_args(argv)
    page = options.page.read_text(encoding="utf-8")
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    server = multiprocessing.get_context("fork").Process(target=serve_page, args=(listener, page), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        parse = _parser_alone(page)
        lines, size = page.count("\n"), len(page.encode())
        print(f"page: {lines} lines, {size} bytes; prometheus_client's parser alone: {parse:.3f} ms CPU a page")
        print(f"{'targets':>8} {'ms CPU a target':>16} {'share of the parser':>20} {'MB RSS':>7} {'MB answered':>12}")
        for count in options.targets:
            cost, answered = asyncio.run(_whole_way(url, count, options.rounds))
            print(f"{count:>8} {cost:>16.3f} {cost / parse:>20.1%} {_rss(os.getpid()):>7.0f} {answered / 1e6:>12.2f}")
        ready, rss = _fresh_process(url)
        print(f"a fresh exporter of one target: ready after {ready:.2f} s, {rss:.0f} MB RSS after 20 scrapes")
    finally:
        server.kill()
    return 0


def serve_page(listener: socket.socket, page: str) -> None:
    """Serve the page; every counter and bucket grows from one variant to the next, as on a busy server."""

    def grown(step: int) -> bytes:
        return re.sub(
            r"(?m)^(vllm:\S+_(?:bucket|count|sum|total)\{.*\}) (\S+)$",
            lambda match: f"{match[1]} {float(match[2]) + 1000.0 * step}",
            page,
        ).encode()

    variants = [grown(step) for step in range(VARIANTS)]
    turn = 0

    async def metrics(request: web.Request) -> web.Response:
        nonlocal turn
        turn += 1
        return web.Response(body=variants[turn % VARIANTS], headers={"Content-Type": "text/plain; version=1.0.0"})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    web.run_app(app, sock=listener, print=None, access_log=None)


def _parser_alone(page: str) -> float:
    costs = []
    for _ in range(15):
        start = time.process_time()
        for _family in text_string_to_metric_families(page):
            pass
        costs.append(time.process_time() - start)
    return statistics.median(costs) * 1000


async def _whole_way(url: str, count: int, rounds: int) -> tuple[float, int]:
    """Return the median CPU milliseconds a target of a steady scrape, and the bytes of its answer."""
    unprobed = ProbeSettings(enabled=False)  # The page's server has no API to probe.
    targets = (Target(f"t{i}", url, backend="vllm", probe=unprobed) for i in range(count))
    config = Config(Listen("127.0.0.1", 0), tuple(targets))
    app = App(config, lambda: config)
    await app.start()
    costs: list[float] = []
    body = b""
    try:
        for number in range(rounds + 3):
            gc.collect()
            start = time.process_time()
            readings = await app.poll(budget_s=60.0)
            body = "".join(exposition(app.blocks(readings), openmetrics=False)).encode()
            if number >= 3:  # The first ones learn the page and open the connections.
                costs.append((time.process_time() - start) / count)
            failed = [snapshot for _, snapshot in readings if not snapshot.up]
            if failed:
                raise RuntimeError(f"{len(failed)} of {count} readings failed: {failed[0].detail}")
    finally:
        await app.close()
    return statistics.median(costs) * 1000, len(body)


def _fresh_process(url: str) -> tuple[float, float]:
    """Return the seconds from the start of a process to its readiness, and its resident MB when in use."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "exporter", "--listen", f"127.0.0.1:{port}", "--log-level", "error"],
        env={**os.environ, "VLLM_URL": url},
    )
    try:
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=1):
                    break
            except OSError:
                if time.monotonic() - start > 30:
                    raise
                time.sleep(0.005)
        ready = time.monotonic() - start
        for _ in range(20):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                answer.read()
        return ready, _rss(process.pid)
    finally:
        process.terminate()
        process.wait(timeout=10)


def _rss(pid: int) -> float:
    """Return the resident set of a process in MB (10^6 bytes)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
