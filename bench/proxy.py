"""What the pass-through proxy adds to a stream, against direct access and against nginx as a plain reverse proxy.

Server, clients, proxy and nginx are processes of their own on this machine, and the three ways are measured in turn
in one run, so the ratios hold where the times do not.  A figure of delay is a quantile of one round; printed are the
median of the rounds, and the lowest, which is the way's own where the machine did nothing else meanwhile.  The proxy is
the whole exporter, which is scraped as often as by the Prometheus of docker-compose.yml.  The comparison needs nginx
(apt-get install nginx-light).  On a machine that has other work, `chrt -f 10 python -m bench proxy` keeps that out of
the figures, as far as it is not another machine's.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import _proxy_peers as peers

NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s; keepalive_requests 1000000;
  upstream server {{ server 127.0.0.1:{server}; keepalive 512; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{listen} backlog=1024;
    location / {{
      proxy_pass http://server; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_request_buffering off;
    }}
  }}
}}
"""
CONFIG = """
listen: 127.0.0.1:{metrics}
targets:
  - {{name: o, url: "http://127.0.0.1:{server}", backend: ollama, probe: {{enabled: false}},
     proxy: {{listen: "127.0.0.1:{listen}", slots: 256}}}}
"""

SCRAPE_EVERY = 5.0


@dataclass(frozen=True)
class Way:
    """One way to the server: the port that clients use and the process that is on the way."""

    name: str
    port: int
    pid: int | None


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench proxy", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="how often each way is measured, in turn")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of a measurement of delays")
    parser.add_argument("--requests", type=int, default=10_000, help="requests of the search for growth")
    options = parser.parse_args(argv)
    with contextlib.ExitStack() as stack:
        ways = stack.enter_context(_ways())
        _memory(ways)  # First: what later parts have taken would be used again.
        _delays(ways, options.rounds, options.seconds)
        _throughput(ways, options.rounds)
        _slow_client(ways[-1], options.rounds, options.seconds)
        _growth(ways[-1], options.requests)
    return 0


def _delays(ways: Sequence[Way], rounds: int, seconds: float) -> None:
    """Print how much later the first line and each other line arrive with 32 streams of 50 lines/s."""
    lines = int(seconds / 0.02)
    seen: dict[str, list[tuple[float, ...]]] = {way.name: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            first = peers.load(way.port, 1, 1, 0.0, times=300).first
            spread = peers.load(way.port, 32, lines, 0.02).delays
            in_step = peers.load(way.port, 32, lines, 0.02, in_step=True).delays
            seen[way.name].append(tuple(_quantile(one, q) for one in (first, spread, in_step) for q in (0.5, 0.99)))
    print(
        f"32 streams of 50 tokens/s each, {rounds} rounds of {seconds:g} s; ms, and what is added to direct access;\n"
        "the streams' chunks come at even distances, or in step: all at once, as from a server that batches"
    )
    columns = [f"{what} {q}" for what in ("TTFT", "chunk", "in step") for q in ("p50", "p99")]
    for title, pick in (("median of the rounds", statistics.median), ("lowest of the rounds", min)):
        figures = {name: _by_column(found, pick) for name, found in seen.items()}
        print(f"{title:<20}" + "".join(f"{column:>16}" for column in columns))
        for name, found in figures.items():
            cells = zip(found, figures["direct"], strict=True)
            print(f"{name:>20}" + "".join(f"{value:>8.3f}{value - base:>+8.3f}" for value, base in cells))
        if "nginx" in figures:
            ratios = [one / other for one, other in zip(figures["proxy"], figures["nginx"], strict=True)]
            print(f"{'proxy / nginx':>20}" + "".join(f"{ratio:>16.2f}" for ratio in ratios))


def _throughput(ways: Sequence[Way], rounds: int) -> None:
    print("tokens/s as fast as it goes, one network read a token at the server")
    for streams in (1, 32, 256):
        lines = 40_000 // streams
        rates = {}
        for way in ways:
            best = 0.0
            for _ in range(rounds):
                start = time.monotonic()
                seen = peers.load(way.port, streams, lines, 0.0)
                best = max(best, seen.lines / (time.monotonic() - start))
                if seen.lines != streams * lines:
                    raise RuntimeError(f"{way.name}: {seen.lines} of {streams * lines} lines arrived")
            rates[way.name] = best
        text = "  ".join(f"{name} {rate:>7.0f}" for name, rate in rates.items())
        ratio = f"  nginx / proxy {rates['nginx'] / rates['proxy']:.2f}" if "nginx" in rates else ""
        print(f"{streams:>8} streams: {text}{ratio}")


def _memory(ways: Sequence[Way]) -> None:
    """Print how much a stream takes, from 256 idle ones."""

    for way in ways:
        if way.pid is not None:
            before = _rss(way.pid)
            clients = threading.Thread(target=peers.load, args=(way.port, 256, 8, 0.5))
            clients.start()
            time.sleep(2.5)
            held = _rss(way.pid)
            clients.join()
            print(f"{way.name}: {before / 1e6:.1f} MB, with 256 streams {(held - before) / 256 / 1e3:.1f} kB a stream")


def _slow_client(way: Way, rounds: int, seconds: float) -> None:
    lines = int(seconds / 0.02)
    seen = [
        [_quantile(peers.load(way.port, 32, lines, 0.02, stalled=n).delays, 0.99) for n in (0, 8)]
        for _ in range(rounds)
    ]
    alone, beside = _by_column(seen, statistics.median)
    print(
        f"chunk p99 of 32 streams alone {alone:.3f} ms, beside 8 clients that read nothing of an endless answer "
        f"{beside:.3f} ms"
    )


def _growth(way: Way, requests: int) -> None:
    peers.load(way.port, 10, 20, 0.0, times=100)
    before = _rss(way.pid)
    start = time.monotonic()
    peers.load(way.port, 10, 20, 0.0, times=requests // 10)
    took = time.monotonic() - start
    grown = (_rss(way.pid) - before) / 1e3
    print(f"{requests} requests of 20 tokens after 1000 others: {grown:+.0f} kB, at {requests / took:.0f} requests/s")


@contextlib.contextmanager
def _ways() -> Iterator[list[Way]]:
    """Start the server, nginx if it is there, and the exporter; end them."""
    server, front, listen, metrics = _free_ports(4)
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=peers.serve, args=(server,), daemon=True)]
    children[0].start()
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            ways = [Way("direct", server, None)]
            if binary := shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin"):
                config = folder / "nginx.conf"
                config.write_text(NGINX.format(folder=folder, server=server, listen=front))
                processes.append(subprocess.Popen([binary, "-c", str(config)]))
                _wait(front)
                worker = Path(f"/proc/{processes[0].pid}/task/{processes[0].pid}/children").read_text().split()
                ways.append(Way("nginx", front, int(worker[0])))
            else:
                print("no nginx here, so no comparison with it: apt-get install nginx-light")
            (folder / "vitals.yml").write_text(CONFIG.format(metrics=metrics, server=server, listen=listen))
            command = [sys.executable, "-m", "exporter", "--config", str(folder / "vitals.yml"), "--log-level", "error"]
            processes.append(subprocess.Popen(command))
            _wait(listen)
            children.append(fork.Process(target=_scrape, args=(metrics,), daemon=True))
            children[1].start()
            yield [*ways, Way("proxy", listen, processes[-1].pid)]
        finally:
            for child in children:
                child.kill()
            for process in processes:
                process.terminate()
                process.wait(timeout=10)


def _scrape(port: int) -> None:
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            answer.read()
        time.sleep(SCRAPE_EVERY)


def _wait(port: int) -> None:
    end = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in sockets]


def _quantile(values: Sequence[int], q: float) -> float:
    """Return a quantile of nanoseconds in milliseconds."""
    return sorted(values)[min(int(q * len(values)), len(values) - 1)] / 1e6


def _by_column(rounds: Sequence[Sequence[float]], pick: Callable[[Sequence[float]], float]) -> list[float]:
    return [pick(column) for column in zip(*rounds, strict=True)]


def _rss(pid: int | None) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
