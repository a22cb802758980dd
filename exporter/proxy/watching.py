"""The seam between forwarding and measuring: what a forwarder tells of each exchange, and that no fault comes back."""

from __future__ import annotations

import asyncio
import enum
import logging
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Concatenate, ParamSpec, Protocol

from exporter.proxy.http1 import Request, Response

log = logging.getLogger(__name__)

P = ParamSpec("P")


class Ending(enum.Enum):
    """How an exchange ended."""

    COMPLETE = enum.auto()
    UNHEARD = enum.auto()
    """The answer came to an end after the client had ceased to send, as one that leaves does."""
    CLIENT_GONE = enum.auto()
    SERVER_GONE = enum.auto()


class Watcher(Protocol):
    """Watches one exchange; times are in seconds of one clock, bodies come without their framing."""

    def uploaded(self, content: Sequence[bytes]) -> None:
        """Take note of a piece of the request's body."""
        ...

    def asked(self, at: float) -> None:
        """Take note that the request is complete."""
        ...

    def answered(self, response: Response) -> None:
        """Take note of the final response's head."""
        ...

    def received(self, at: float, content: Sequence[bytes]) -> None:
        """Take note of what one read from the server brought of the response's body."""
        ...

    def ended(self, at: float, ending: Ending) -> None:
        """Take note of the end; nothing comes after it."""
        ...

    def dropped(self) -> None:
        """Forget the exchange: watching it has failed."""
        ...


Watch = Callable[[Request, float], Watcher | None]
"""Returns the watcher of a request that came at a time, None for one that is not watched."""


HEARD_AFTER = 0.003
"""Seconds after which what was told is heard.  A server that batches sends the tokens of all its streams at once: in
this time they go on, before the first is looked at."""

TURN = 200e-6
"""Seconds of hearing in one go."""

PAUSE = 0.001
"""Seconds between two turns of hearing: those whom the traffic woke may wait for the very processor that hears."""

MOST = 64 * 2**10
"""Bytes of what was told that wait to be heard; beyond them the oldest is heard for each that is told."""

NOTE = 256
"""Bytes that one event takes besides its traffic."""


class Notes:
    """What is told of a proxy's exchanges; their watchers hear it a moment later, in the same order.

    Every figure comes from the times that are told, so none depends on when they are heard; and no traffic waits for
    it.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._told: deque[tuple[int, Callable[[], None]]] = deque()
        self._size = 0
        self._turn: asyncio.TimerHandle | None = None

    def open(self, request: Request, at: float) -> Guard:
        """Return who is to be told of an exchange, whose request came at a time."""
        return Guard(self, self._watch, request, at)

    def add(self, size: int, note: Callable[[], None]) -> None:
        """Let something be heard later that holds so many bytes."""
        size += NOTE
        self._told.append((size, note))
        self._size += size
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_later(HEARD_AFTER, self._hear_some)
        while self._size > MOST:
            self._hear_one()

    def hear(self) -> None:
        """Hear all that was told so far."""
        while self._told:
            self._hear_one()

    def _hear_some(self) -> None:
        self._turn = None
        loop = asyncio.get_running_loop()
        end = loop.time() + TURN
        while self._told:
            self._hear_one()
            if loop.time() >= end:
                break
        if self._told:
            self._turn = loop.call_later(PAUSE, self._hear_some)

    def _hear_one(self) -> None:
        size, note = self._told.popleft()
        self._size -= size
        note()


class Guard:
    """Watches one exchange until watching fails; the failure is logged without a word of the traffic."""

    def __init__(self, notes: Notes, watch: Watch, request: Request, at: float) -> None:
        self._notes = notes
        self._watcher: Watcher | None = None
        try:
            self._watcher = watch(request, at)
        except Exception as error:
            _report(error)

    def tell(
        self, size: int, event: Callable[Concatenate[Watcher, P], None], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Tell of an event, a method of Watcher, with so many bytes of traffic."""
        if self._watcher is not None:
            self._notes.add(size, partial(self._hear, event.__name__, *args, **kwargs))

    def _hear(self, event: str, *args: object, **kwargs: object) -> None:
        if self._watcher is None:
            return
        try:
            getattr(self._watcher, event)(*args, **kwargs)
        except Exception as error:
            failed, self._watcher = self._watcher, None
            _report(error)
            failed.dropped()


def _report(error: Exception) -> None:
    # Neither the message nor the traceback's text: they may quote what users wrote.
    place = traceback.extract_tb(error.__traceback__)[-1]
    log.error("measuring a request failed, its bytes go on: %s at %s:%d",
              type(error).__name__, place.filename, place.lineno or 0)  # fmt: skip
