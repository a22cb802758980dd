"""The program in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "-W", "error", "-m", "exporter"]
NOTHING: Mapping[str, str] = {}
LISTEN = ("--listen", "127.0.0.1:0")

# A resolver that does not answer, which Python asks in a thread that nothing can end.
HANGING_RESOLVER = """
import socket, sys, time
getaddrinfo = socket.getaddrinfo
hanging = ("llm.test", b"llm.test")
socket.getaddrinfo = lambda host, *a, **k: time.sleep(60) if host in hanging else getaddrinfo(host, *a, **k)
from exporter.cli import main
sys.exit(main())
"""
ASK_NOBODY = [sys.executable, "-c", HANGING_RESOLVER]


@asynccontextmanager
async def started(
    *arguments: str, command: Sequence[str] = COMMAND, environ: Mapping[str, str] = NOTHING
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start the program; at the end it is killed if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *command,
        *arguments,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **environ},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def run(*arguments: str, environ: Mapping[str, str] = NOTHING) -> tuple[int, str, str]:
    """Run the program to its end; return exit code, stdout and stderr."""
    async with started(*arguments, environ=environ) as process, asyncio.timeout(20):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def line_with(process: asyncio.subprocess.Process, text: str) -> str:
    """Read the log up to a line that holds the text, and return that."""
    assert process.stderr is not None
    read = ""
    async with asyncio.timeout(20):
        while line := (await process.stderr.readline()).decode():
            read += line
            if text in line:
                return line
    raise AssertionError(f"{text!r} is not in the log:\n{read}")


async def url_of(process: asyncio.subprocess.Process) -> str:
    """Wait until the exporter serves and return where."""
    line = await line_with(process, "serving on ")
    return line.partition("serving on ")[2].partition("/ ;")[0]


async def end(process: asyncio.subprocess.Process, number: signal.Signals = signal.SIGTERM) -> str:
    """Send a signal, wait at most five seconds for exit code 0, and return the rest of the log."""
    process.send_signal(number)
    async with asyncio.timeout(5):
        _, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert "Traceback" not in err.decode()
    return err.decode()


def config(directory: Path, *targets: dict[str, Any]) -> str:
    file = directory / "vitals.yml"
    file.write_text(yaml.safe_dump({"targets": list(targets)}, sort_keys=False), encoding="utf-8")
    return str(file)
