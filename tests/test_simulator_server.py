"""What the simulated servers share: how they take it that a client goes."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct

import pytest
from aiohttp import web

from exporter.simulator.server import new_application


async def test_a_client_that_resets_its_connection_is_let_go_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    asked, gone, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        asked.set()
        try:
            await gone.wait()
            for _ in range(3):  # In one turn of the loop, which does not know yet that the connection is reset.
                await response.write(b"more")
        finally:
            over.set()
        return response

    app = new_application()
    app.router.add_get("/", stream)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    with socket.create_connection(runner.addresses[0][:2]) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asked.wait()
    gone.set()
    await over.wait()
    await runner.cleanup()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
