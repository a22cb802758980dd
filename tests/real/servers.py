"""Starts real servers as processes and waits until they answer; every wait has a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

POLL = 0.1


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def get(url: str, timeout: float = 10) -> str:
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return str(answer.read().decode())


def wait_until(
    what: str, holds: Callable[[], bool], deadline_s: float, child: subprocess.Popen[bytes] | None = None
) -> None:
    """Ask again and again until something holds; a connection that is refused counts as not yet."""
    end = time.monotonic() + deadline_s
    while True:
        with contextlib.suppress(OSError):
            if holds():
                return
        if child is not None and child.poll() is not None:
            raise AssertionError(f"{what}: the process ended with {child.returncode}")
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {deadline_s} s")
        time.sleep(POLL)


def query(prometheus: str, promql: str) -> dict[frozenset[tuple[str, str]], float]:
    """Return an instant query's result by label set."""
    answer = json.loads(get(f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': promql})}"))
    assert answer["status"] == "success", answer
    return {frozenset(item["metric"].items()): float(item["value"][1]) for item in answer["data"]["result"]}


@contextlib.contextmanager
def process(
    command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a process group of its own, which is ended with everything in it."""
    with log.open("wb") as out:
        child = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}, start_new_session=True
        )
        try:
            yield child
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait(timeout=20)
