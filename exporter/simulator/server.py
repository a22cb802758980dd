"""A simulated server's HTTP side: starts, stops, dies and comes back on the same port."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from exporter.simulator.clock import Clock
from exporter.simulator.truth import Asked, Ledger

_BODY_LIMIT = 64 * 1024 * 1024


def compact(value: object) -> str:
    """Return JSON as both servers write it: no blanks, and text as it is."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class BodyError(Exception):
    """A request's body is not what the API takes; the text is for the client."""


class MalformedError(BodyError):
    """The body is no JSON; `at_end` says that it only stops too early."""

    def __init__(self, message: str, at_end: bool) -> None:
        super().__init__(message)
        self.at_end = at_end


async def json_object(request: web.Request) -> Mapping[str, object]:
    """Return a request's JSON object; MalformedError if it is no JSON, BodyError if it is another value."""
    try:
        body = json.loads(await request.text())
    except json.JSONDecodeError as error:
        raise MalformedError(str(error), error.pos >= len(error.doc.rstrip())) from None
    if not isinstance(body, dict):
        raise BodyError("expected a JSON object")
    return body


class Server(ABC):
    """One simulated server on one port; after `kill` or `stop`, `start` brings it back empty on the same port.

    `ledger` outlives restarts: it is the truth about every request and what was asked over HTTP.
    """

    def __init__(self, clock: Clock, host: str = "127.0.0.1", port: int = 0, keep: int = 2000) -> None:
        self.clock = clock
        self.host = host
        self.port = port
        self.ledger = Ledger(keep)
        self._runner: web.AppRunner | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        """The base URL to reach it at; the port is known once it has been started."""
        host = "127.0.0.1" if self.host in ("", "0.0.0.0", "::") else self.host  # noqa: S104 - compared, not bound
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def up(self) -> bool:
        """Whether it listens."""
        return self._runner is not None

    @abstractmethod
    def _application(self) -> web.Application:
        """Make the routes and everything that a restart would make anew."""

    async def start(self) -> None:
        """Listen; OSError if the port is taken."""
        if self._runner is not None:
            raise RuntimeError(f"{self.url} is already up")
        runner = web.AppRunner(self._application(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, self.host or None, self.port, reuse_address=True)
            await site.start()
        except OSError:
            await runner.cleanup()
            await self._end_tasks()
            raise
        self._runner = runner
        self.port = int(runner.addresses[0][1])

    async def start_cold(self) -> None:
        """Start as a new process does, with the time that takes."""
        await self.start()

    @abstractmethod
    async def cool(self) -> None:
        """Lose what is warm: the next request meets a cold server."""

    @abstractmethod
    async def send(self, prompt: list[int], max_tokens: int, stop_after: int | None = None) -> list[int] | None:
        """Send a request without HTTP; return its answer, None if there is none."""

    async def stop(self) -> None:
        """Close the port, cut what is left of running answers and end the tasks."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()
        await self._end_tasks()

    async def kill(self) -> None:
        """Die as by SIGKILL: connections are reset in the middle of whatever they carried."""
        if self._runner is not None and self._runner.server is not None:
            for connection in list(self._runner.server.connections):
                if connection.transport is not None:
                    connection.transport.abort()
        await self.stop()

    def _own(self, task: asyncio.Task[None]) -> None:
        """Keep a task until `stop`, which passes on the exception it died of."""
        self._tasks.append(task)

    async def _end_tasks(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _note(self, request: web.Request) -> None:
        """Remember what was asked."""
        body: object = None
        if request.can_read_body:
            try:
                body = json.loads(await request.read())
            except ValueError:
                body = None
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.ledger.asked.append(Asked(self.clock.now(), request.method, request.path, headers, body))


def new_application() -> web.Application:
    """Return an application that takes the long prompts of a long context, and lets a client go without a word."""
    return web.Application(client_max_size=_BODY_LIMIT, middlewares=[_let_go])


@web.middleware
async def _let_go(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except ConnectionResetError:
        return web.Response()  # Nobody reads it; raised on, it would be logged as a fault of the server's.
