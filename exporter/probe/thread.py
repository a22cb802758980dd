"""An event loop of its own for the probes' streams, so that a scrape's work does not delay their time stamps."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Mapping

from exporter.access import AccessError
from exporter.backends.ollama_api import ApiError, open_client
from exporter.model import Outcome
from exporter.probe import stream
from exporter.probe.events import Dialect
from exporter.probe.result import Exchange
from exporter.settings import Target

SWITCH = 0.00005
"""Seconds after which a busy thread lets a waiting one run.

Python's default of 5 ms is longer than the ITL of a fast model; this costs nothing while only one thread works.
"""

LONGEST_END = 5.0
"""Seconds for streams that were cancelled to let go of their connections."""


class StreamThread:
    """Sends probes from a thread of its own; `send` is a stream.Sender for any event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="probe streams", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        sys.setswitchinterval(SWITCH)
        self._thread.start()

    async def close(self) -> None:
        """End the thread; whoever waits for a stream must have been cancelled before."""
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, LONGEST_END)

    async def send(
        self, target: Target, dialect: Dialect, body: Mapping[str, object], deadlines: stream.Deadlines
    ) -> Exchange:
        """Return the exchange; ApiError if a credential or certificate cannot be read."""
        work = asyncio.run_coroutine_threadsafe(_send(target, dialect, body, deadlines), self._loop)
        return await asyncio.wrap_future(work)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            cancelled = asyncio.all_tasks(self._loop)
            for task in cancelled:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*cancelled, return_exceptions=True))
        finally:
            self._loop.close()


async def _send(target: Target, dialect: Dialect, body: Mapping[str, object], deadlines: stream.Deadlines) -> Exchange:
    try:
        client = open_client(target)
    except AccessError as error:
        raise ApiError(Outcome.TLS, str(error)) from error
    async with client:
        return await stream.sender(client)(target, dialect, body, deadlines)
