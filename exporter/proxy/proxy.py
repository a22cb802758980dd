"""One target's proxy: its listener, its connections, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from exporter import access
from exporter.proxy.link import Link
from exporter.proxy.watching import Notes
from exporter.settings import Target

log = logging.getLogger(__name__)

CONNECT_TIME = 10.0
"""Seconds for a connection to the server, TLS included."""

TRY_AGAIN = 5.0
"""Seconds until an address that could not be listened on is tried again."""

BACKLOG = 1024


def report_failure(task: asyncio.Task[None]) -> None:
    """Log the exception that ended a task which should not have ended; a callback of the task."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s ended: %r", task.get_name(), error, exc_info=error)


class Proxy:
    """Listens for a target's clients and forwards each of them; `notes` is told of every request.

    `clock` gives seconds.  `where` is the address in use, empty while there is none.
    """

    def __init__(self, target: Target, notes: Notes, clock: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._notes = notes
        self._clock = clock
        self._links: set[Link] = set()
        self._server: asyncio.Server | None = None
        self._listening: asyncio.Task[None] | None = None
        parts = urlsplit(target.url)
        self._host = parts.hostname or ""
        self._port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        self._prefix = parts.path.encode()
        self._reachable = True

    @property
    def where(self) -> str:
        """The address that clients connect to, empty while there is none."""
        if self._server is None or not self._server.sockets:
            return ""
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def start(self) -> None:
        """Listen, at once if the address is free, else as soon as it is."""
        if not await self._try_to_listen(first=True):
            self._listening = asyncio.create_task(self._keep_trying(), name=f"listen for {self._target.name}")
            self._listening.add_done_callback(report_failure)

    async def retire(self) -> None:
        """Listen no more; what is under way goes on to its end, each on its own."""
        await self._stop_listening()
        for link in list(self._links):
            link.retire()

    @property
    def busy(self) -> bool:
        """Whether there are connections left."""
        return bool(self._links)

    async def close(self, grace_s: float) -> None:
        """End: what is under way gets some seconds, then it is cut."""
        await self.retire()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                for link in list(self._links):
                    await link.ended.wait()
        for link in list(self._links):
            link.abort()

    async def _stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait({self._listening})
            self._listening = None
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _keep_trying(self) -> None:
        while True:
            await asyncio.sleep(TRY_AGAIN)
            if await self._try_to_listen(first=False):
                return

    async def _try_to_listen(self, first: bool) -> bool:
        listen = self._target.proxy.listen
        assert listen is not None
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._accept, listen.host or None, listen.port, backlog=BACKLOG
            )
        except OSError as error:
            if first:
                log.error("target %s: its proxy cannot listen on %s:%d yet: %s; change proxy.listen or stop what does",
                          self._target.name, listen.host, listen.port, error.strerror)  # fmt: skip
            return False
        log.info("target %s: its proxy listens on %s", self._target.name, self.where)
        return True

    def _accept(self) -> asyncio.BaseProtocol:
        return Link(self._connect, self._notes, self._prefix, self._links, self._clock).client

    async def _connect(self, protocol: asyncio.BaseProtocol) -> None:
        """Open a connection to the server; raise OSError or TimeoutError."""
        try:
            tls = access.ssl_context(self._target)
            name = None if tls is None else self._target.tls.server_name
            async with asyncio.timeout(CONNECT_TIME):
                await asyncio.get_running_loop().create_connection(
                    lambda: protocol, self._host, self._port, ssl=tls, server_hostname=name
                )
        except (OSError, access.AccessError) as error:  # TimeoutError is an OSError.
            if self._reachable:
                text = str(error) or "no answer in time"
                log.warning("target %s: its proxy cannot connect to %s: %s", self._target.name, self._target.url, text)
            self._reachable = False
            if isinstance(error, OSError):
                raise
            raise ConnectionError(str(error)) from error
        self._reachable = True
