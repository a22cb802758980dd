"""The seam between forwarding and measuring: what a forwarder tells of each exchange, and that no fault comes back."""

from __future__ import annotations

import enum
import logging
import traceback
from collections.abc import Callable, Sequence
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


class Guard:
    """Watches one exchange until watching fails; the failure is logged without a word of the traffic."""

    def __init__(self, watch: Watch, request: Request, at: float) -> None:
        self._watcher: Watcher | None = None
        try:
            self._watcher = watch(request, at)
        except Exception as error:
            _report(error)

    @property
    def watching(self) -> bool:
        """Whether anybody wants to know."""
        return self._watcher is not None

    def tell(self, event: Callable[Concatenate[Watcher, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Tell of an event, which is a method of Watcher."""
        if self._watcher is None:
            return
        try:
            getattr(self._watcher, event.__name__)(*args, **kwargs)
        except Exception as error:
            failed, self._watcher = self._watcher, None
            _report(error)
            failed.dropped()


def _report(error: Exception) -> None:
    # Neither the message nor the traceback's text: they may quote what users wrote.
    place = traceback.extract_tb(error.__traceback__)[-1]
    log.error("measuring a request failed, its bytes go on: %s at %s:%d",
              type(error).__name__, place.filename, place.lineno or 0)  # fmt: skip
