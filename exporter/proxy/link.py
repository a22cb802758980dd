"""Forwards one client's connection to a connection of its own to the server, byte by byte, in both directions at once.

Why not aiohttp, which serves and fetches pages elsewhere: its server and client join and cut chunks anew, drop trailers
and chunk extensions, answer 100-continue themselves and swallow other 1xx answers.  Here heads are parsed and bodies
only counted, so what goes out is what came in, with the framing it came with; what was read is written on before
anything else happens to it.  `python -m bench proxy` has the cost.

The two connections live and die together.  That keeps all that a connection can say (a half-close, a reset, close and
keep-alive, an upgrade), and no request ever meets a connection that another client left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from exporter.proxy.http1 import UNTIL_CLOSE, BadMessageError, Request, Response, own_answer
from exporter.proxy.messages import Answers, Requests
from exporter.proxy.side import Side
from exporter.proxy.watching import Ending, Guard, Notes, Watcher

log = logging.getLogger(__name__)

HELD = 64 * 2**10
"""Bytes that wait for the connection to the server, or for the end of the answer before, until reading stops."""

LINGER = 2.0
"""Seconds that a client which is still sending gets to read an answer that came early (RFC 9112, 9.6)."""

FLUSH = 30.0
"""Seconds that a client gets to read what is left for it when the server's connection has ended."""

HEAD_TIME = 60.0
"""Seconds from a request's first byte to the end of its head."""

Connect = Callable[[asyncio.BaseProtocol], Awaitable[object]]
"""Opens a connection to the server for a protocol; raises OSError or TimeoutError."""


class Link:
    """A client's connection, `client`, and the one to the server that belongs to it; one exchange at a time.

    `ended` is set when the client's connection is gone.  `links` holds every open link.  `prefix` is the path that
    the server's API is under; `clock` gives seconds.
    """

    def __init__(
        self, connect: Connect, notes: Notes, prefix: bytes, links: set[Link], clock: Callable[[], float]
    ) -> None:
        self.client = Side(_FromClient(self))
        self.server = Side(_FromServer(self))
        self.ended = asyncio.Event()
        self._connect = connect
        self._notes = notes
        self._links = links
        self._clock = clock
        self._requests = Requests(prefix)
        self._answers = Answers()
        self._guard: Guard | None = None
        self._connecting: asyncio.Task[object] | None = None
        self._to_server = bytearray()
        self._over = False  # What the client sends from now on is thrown away.
        self._client_left = False
        self._server_left = False
        self._last = False
        self._timer: asyncio.TimerHandle | None = None
        links.add(self)

    def retire(self) -> None:
        """End after the exchange under way, at once if there is none."""
        self._last = True
        if self._requests.current is None and self._answers.raw is None:
            self._close()

    def abort(self) -> None:
        """End now, whatever is under way."""
        self._finish(Ending.SERVER_GONE)
        self.client.abort(reset=True)
        self.server.abort()

    def update_reading(self) -> None:
        """Stop reading what cannot be passed on, and begin again when it can."""
        waiting = max(len(self._to_server), len(self._requests.held)) > HELD
        self.client.read(self._over or not (waiting or self.server.full))
        self.server.read(not self.client.full)

    # --- from the client to the server ---------------------------------------------------------------

    def from_client(self, data: bytes) -> None:
        """Pass on what the client sent, then tell of it."""
        at = self._clock()
        if self._over:
            return  # It is read all the same, so that the answer is not lost with the connection.
        if self._answers.raw is not None:
            self._send(data)
            return
        try:
            passed = self._requests.feed(data)
        except BadMessageError as error:
            self._refuse(error.status, str(error))
            return
        self._send(passed.out)
        if isinstance(passed.head, Request):
            self._stop_timer()
            self._guard = self._notes.open(passed.head, at)
        elif self._requests.held and self._requests.current is None and self._timer is None:
            later = asyncio.get_running_loop().call_later
            self._timer = later(HEAD_TIME, self._refuse, 408, "the head of the request did not come in time")
        if self._guard is not None and passed.out:
            if passed.content:
                self._guard.tell(len(data), Watcher.uploaded, passed.content)
            if self._requests.body.done:
                self._guard.tell(0, Watcher.asked, at)
        if self._client_left:
            self._pass_end()
        self._next_exchange()
        self.update_reading()

    def _send(self, data: bytes) -> None:
        if not data:
            return
        if self._connecting is not None and not self._to_server:
            self.server.write(data)
            return
        # Until `_connected` has taken what came before, also if the connection is there already.
        self._to_server += data
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(self._connect(self.server))
            self._connecting.add_done_callback(self._connected)

    def _connected(self, connecting: asyncio.Task[object]) -> None:
        if connecting.cancelled():
            return
        error = connecting.exception()
        if self._over:
            return
        if error is None:
            self.server.write(bytes(self._to_server))
            self._to_server.clear()
            if self._client_left:
                self._pass_end()
            self.update_reading()
            return
        if not isinstance(error, OSError):
            log.error("connecting to the server behind the proxy failed: %r", error, exc_info=error)
        status = 504 if isinstance(error, TimeoutError) else 502
        self._refuse(status, "the server behind this proxy cannot be reached", Ending.SERVER_GONE)

    def _refuse(self, status: int, text: str, ending: Ending = Ending.CLIENT_GONE) -> None:
        """Answer in the server's place, unless it has begun to, and end."""
        answer = self._answers.current
        if answer is None:
            self.client.write(own_answer(status, f"llm-vitals: {text}", self._requests.current))
        self._finish(ending)
        if self._connecting is not None:
            self._connecting.cancel()
        self.server.abort()
        self._end_client(linger=True, reset=answer is not None and not self._answers.complete)

    def client_ended(self) -> bool:
        """Pass on that the client sends no more; return whether it may still be answered."""
        if self._over:
            return False
        self._client_left = True
        raw = self._answers.raw is not None
        under_way = not self._server_left if raw else self._requests.current is not None
        if under_way and self._pass_end():
            return True
        self._finish(Ending.CLIENT_GONE)
        self.server.close()
        return False

    def _pass_end(self) -> bool:
        """Tell the server that no more comes, as soon as all that came is passed on; return whether it can be told."""
        return bool(self._to_server) or self._requests.more_to_come or self.server.end_writing()

    def client_lost(self, error: Exception | None) -> None:
        """End the server's connection as the client's ended."""
        self._over = True
        self._links.discard(self)
        self.ended.set()
        self._stop_timer()
        self._finish(Ending.CLIENT_GONE)
        if self._connecting is not None:
            self._connecting.cancel()
        self.server.abort(reset=error is not None)

    # --- from the server to the client ---------------------------------------------------------------

    def from_server(self, data: bytes) -> None:
        """Pass on what the server sent, and then tell of it."""
        at = self._clock()
        raw = self._answers.raw is not None
        if not raw and self._answers.current is not None:
            self.client.write(data)  # The usual read is of a body, all of which goes on.
            content = self._answers.follow(data)
        else:
            passed = self._answers.feed(data, self._requests.current)
            self.client.write(passed.out)
            content = passed.content
            if self._guard is not None and isinstance(passed.head, Response):
                self._guard.tell(len(data), Watcher.answered, passed.head)
        if self._guard is not None and content:
            self._guard.tell(len(data), Watcher.received, at, content)
        if self._answers.complete:
            self._finish(Ending.COMPLETE, at)
        if self._answers.raw is not None and not raw:
            self._finish(self._answers.raw, at)
            self._send(self._requests.held)
            self._requests.held = b""
            if self._client_left:
                self._pass_end()
            self.update_reading()
        self._next_exchange()

    def server_ended(self) -> bool:
        """Pass on that the server sends no more; return whether it may still be sent to."""
        self._server_left = True
        return self._answers.raw is not None and not self._client_left and self.client.end_writing()

    def server_lost(self, error: Exception | None) -> None:
        """End the client's connection as the server's ended."""
        if self._over:
            return
        answer = self._answers.current
        by_close = answer is not None and answer.length == UNTIL_CLOSE
        self._finish(Ending.COMPLETE if by_close and error is None else Ending.SERVER_GONE)
        self.client.write(self._answers.held)
        self._end_client(linger=not self._requests.body.done, reset=error is not None and not self._answers.complete)

    def _end_client(self, linger: bool, reset: bool = False) -> None:
        """Close the client's connection so that what was written arrives, even if it is still sending."""
        self._over = True
        self._stop_timer()
        later = asyncio.get_running_loop().call_later
        if linger and not reset and not self._client_left and self.client.end_writing():
            self.client.read(True)
            self._timer = later(LINGER, self.client.abort)
        elif self.client.open:
            self.client.close(reset)
            self._timer = later(FLUSH, self.client.abort)

    # --- both ----------------------------------------------------------------------------------------

    def _next_exchange(self) -> None:
        """Make room for the next request if both the request and its answer are through."""
        if self._answers.raw is not None or not (self._answers.complete and self._requests.body.done):
            return
        self._requests.current = self._answers.current = None
        if self._last or (self._client_left and not self._requests.more_to_come):
            self._close()
        elif self._requests.held:
            asyncio.get_running_loop().call_soon(self.from_client, b"")

    def _finish(self, ending: Ending, at: float | None = None) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            if self._client_left:
                ending = Ending.UNHEARD if ending is Ending.COMPLETE else Ending.CLIENT_GONE
            guard.tell(0, Watcher.ended, self._clock() if at is None else at, ending)

    def _close(self) -> None:
        self.server.close()
        self._end_client(linger=False)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _FromClient:
    def __init__(self, link: Link) -> None:
        self.received = link.from_client
        self.half_closed = link.client_ended
        self.lost = link.client_lost
        self.update_reading = link.update_reading


class _FromServer:
    def __init__(self, link: Link) -> None:
        self.received = link.from_server
        self.half_closed = link.server_ended
        self.lost = link.server_lost
        self.update_reading = link.update_reading
