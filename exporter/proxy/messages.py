"""Follows the messages that pass on a pair of connections: what goes on at once, and what of it is whose."""

from __future__ import annotations

from dataclasses import dataclass, field

from exporter.proxy.http1 import (
    MAX_HEAD,
    UNTIL_CLOSE,
    BadMessageError,
    Body,
    Request,
    Response,
    read_request,
    read_response,
)
from exporter.proxy.watching import Ending


@dataclass(slots=True)
class Passed:
    """What one read comes to: the bytes to send on, a head that was completed, and content of the body, unframed."""

    out: bytes = b""
    head: Request | Response | None = None
    content: list[bytes] = field(default_factory=list)


class Requests:
    """What a client sends, one request at a time: the next one is `held` until `current` is taken away.

    `prefix` is the path that the server's API is under.
    """

    def __init__(self, prefix: bytes) -> None:
        self.current: Request | None = None
        self.body = Body(0)
        self.held = b""
        self._prefix = prefix

    @property
    def more_to_come(self) -> bool:
        """Whether something is held that is to be sent on: another request, or what is for another protocol."""
        upgrading = self.current is not None and self.current.value(b"upgrade")
        return bool(self.held) if upgrading else b"\r\n\r\n" in self.held.lstrip(b"\r\n")

    def feed(self, data: bytes) -> Passed:
        """Return what goes on of these bytes and those held; raise BadMessageError."""
        data, start = self.held + data, 0
        passed = Passed()
        out: list[bytes] = []
        while start < len(data):
            if not self.body.done:
                end = self.body.feed(data, start, passed.content)
                out.append(data[start:end])
            elif self.current is None and data.startswith(b"\r\n", start):
                end = start + 2  # Empty lines before a request are nothing (RFC 9112, 2.2).
            elif self.current is not None or not (end := _head_end(data, start)):
                break
            else:
                passed.head = self.current = read_request(data[start:end])
                if self.current.method == b"CONNECT":
                    raise BadMessageError("this proxy stands in front of one server; it connects to no other", 405)
                out.append(self.current.under(self._prefix))
                self.body = Body(self.current.length)
            start = end
        self.held = data[start:]
        passed.out = b"".join(out)
        return passed


class Answers:
    """What a server sends; `current` is the final response to the request under way.

    `raw` is set when what comes can be followed no longer, and says how the exchange ended by that: another
    protocol was switched to, or this is none.
    """

    def __init__(self) -> None:
        self.current: Response | None = None
        self.body = Body(0)
        self.held = b""
        self.raw: Ending | None = None

    @property
    def complete(self) -> bool:
        """Whether the final response is all there."""
        return self.current is not None and self.body.done

    def feed(self, data: bytes, request: Request | None) -> Passed:
        """Return what goes on of these bytes and those held, which answer a request; not while one is `current`."""
        if self.raw is not None:
            return Passed(data)
        passed = Passed()
        data, self.held = self.held + data, b""
        out: list[bytes] = []
        start, final = 0, False
        while not final and self.raw is None:
            end = data.find(b"\r\n\r\n", start) + 4
            if end < 4 and len(data) - start <= MAX_HEAD and request is not None:
                self.held = data[start:]
                passed.out = b"".join(out)
                return passed
            try:
                response = read_response(data[start:end] if end >= 4 else b"", request.method if request else b"")
                out.append(response.forwarded(response.start))
            except BadMessageError:
                break
            start = end
            final = response.status >= 200
            if response.status == 101:
                self.raw = Ending.COMPLETE
        passed.out = b"".join((*out, data[start:]))
        if final and request is not None:
            passed.head = self.current = response
            self.body = Body(response.length)
            self._count(data, start, passed.content)
        elif self.raw is None:
            self.raw = Ending.SERVER_GONE  # The client may make of it what it would make of it without us.
        return passed

    def follow(self, data: bytes) -> list[bytes]:
        """Return the content in bytes that come after the head of `current`; all of them go on."""
        content: list[bytes] = []
        self._count(data, 0, content)
        return content

    def _count(self, data: bytes, start: int, content: list[bytes]) -> None:
        try:
            end = start if self.body.done else self.body.feed(data, start, content)
        except BadMessageError:
            self.body, end = Body(UNTIL_CLOSE), len(data)  # The client sees it too; nobody knows now where it ends.
        if end < len(data):
            self.raw = Ending.COMPLETE  # An answer to nothing.


def _head_end(data: bytes, start: int) -> int:
    """Return where a request's head ends, 0 if it is not all there; raise BadMessageError."""
    end = data.find(b"\r\n\r\n", start) + 4
    if (end if end >= 4 else len(data)) - start > MAX_HEAD:
        raise BadMessageError("the head of the request is too long", 431)
    if end < 4 and data.find(b"\n\n", start) >= 0:
        raise BadMessageError("a line of the head ends without CR LF")
    return end if end >= 4 else 0
