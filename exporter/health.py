"""`llm-vitals check --self`: whether the exporter at this address serves, for a container's health check."""

from __future__ import annotations

import asyncio
import os

from exporter.settings import Listen

TIMEOUT = 4.0
"""Seconds for the answer: less than the five that the image's health check has."""


async def check_self(listen: Listen) -> int:
    """Print one line; return 0 if /-/healthy answers 200, else 1."""
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen.host, listen.host)  # noqa: S104 - not bound
    place = f"http://{f'[{host}]' if ':' in host else host}:{listen.port}/-/healthy"
    try:
        async with asyncio.timeout(TIMEOUT):
            status = await _status(host, listen.port)
    except TimeoutError:
        print(f"FAIL {place}: no answer within {TIMEOUT:.0f} s; see the exporter's log")
        return 1
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        print(f"FAIL {place}: {why}; does the exporter run with another --listen?")
        return 1
    if status == b"200":
        print(f"ok   {place}")
        return 0
    print(f"FAIL {place}: {status.decode('ascii', 'replace') or 'no HTTP'}; is it another program's port?")
    return 1


async def _status(host: str, port: int) -> bytes:
    """Return the status code of GET /-/healthy; an HTTP client's import alone would take longer than the answer."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET /-/healthy HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        first = (await reader.readline()).split()
        return first[1] if len(first) > 1 and first[0].startswith(b"HTTP/") else b""
    finally:
        writer.close()
