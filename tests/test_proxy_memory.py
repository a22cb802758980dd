"""Whatever passes through the proxy, nothing of it stays."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

from tests.peers import talking
from tests.proxying import (
    END,
    STREAM,
    chunk,
    connect,
    done,
    finished,
    on_connection,
    post,
    proxied,
    reset,
    token,
    until,
)

BYTES_A_REQUEST = 8
"""Less than a reference to one object for each request."""


def held() -> int:
    """Return the bytes of what our own code has made and not given up."""
    gc.collect()
    snapshot = tracemalloc.take_snapshot().filter_traces((tracemalloc.Filter(True, "*/exporter/*"),))
    return sum(row.size for row in snapshot.statistics("filename"))


async def test_thousands_of_requests_leave_nothing_behind() -> None:
    answers = (
        STREAM + token() + token() + done(prompt_eval_count=9, eval_count=2) + END,
        b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b'{"error":"no such model"}') + END,
        STREAM + chunk(b'{"error":"it broke"}\n') + END,
    )

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = 0
        while await reader.readuntil(b'"}'):
            writer.write(answers[number % len(answers)])
            number += 1

    async def ask(clients: int) -> None:
        """Send 40 requests of each client, each for another model, and leave in the middle of the next."""
        for client in range(clients):
            reader, writer = await connect(proxy)
            for number in range(40):
                writer.write(post("/api/generate", b'{"prompt":"x","model":"%d-%d"}' % (client, number)))
                await reader.readuntil(b"\r\n" + END)
            writer.write(post("/api/generate", b'{"prompt":"x"}')[:-9])
            await writer.drain()
            reset(writer)
        await until(lambda: not proxy.busy)

    tracemalloc.start()
    try:
        async with talking(on_connection(talk)) as url, proxied(url) as proxy:
            await ask(20)
            before, requests = held(), sum(finished(proxy).values())
            await ask(50)
            after, requests = held(), sum(finished(proxy).values()) - requests
    finally:
        tracemalloc.stop()
    assert requests >= 2000
    assert after - before < BYTES_A_REQUEST * requests
