"""HTTP/1.1 as far as a forwarder has to understand it (RFC 9110, RFC 9112): heads are read, bodies only measured.

Everything that is not hop-by-hop goes on byte by byte.  What two readers could understand differently (two lengths,
a bare line feed, white space before a colon) is refused in a request, since the server behind might read it otherwise.
"""

from __future__ import annotations

import http
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_HEAD = 64 * 2**10
"""Bytes of a head, and of a chunk's extensions or the trailers; servers take 8 to 64 KiB."""

UNTIL_CLOSE = -1
CHUNKED = -2
"""Besides a number of bytes: how the length of a body is told."""

_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-~\x80-\xff]+) HTTP/1\.([01])")
_TARGET = re.compile(rb"([A-Za-z][A-Za-z0-9+.-]*://[^/?#]*|)(.*)")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n]*)?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]++):([^\0\r\n]*+)")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\0\r\n]*)?\r\n")

_OURS = frozenset((b"close", b"keep-alive", b"upgrade", b"te"))
"""Connection options that are as true of our connection as of the one they came by, which are paired for life."""

_FRAMING = frozenset((b"host", b"content-length", b"transfer-encoding"))
_ONE_HOP = frozenset((b"connection", b"te", b"upgrade", b"proxy-connection"))


class BadMessageError(ValueError):
    """A message that no two readers need to understand alike; `status` is the answer to such a request."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Field:
    """A header field: its name in lower case, its value without white space around it, and its line as it was."""

    name: bytes
    value: bytes
    line: bytes


@dataclass(frozen=True, slots=True)
class Head:
    """The start line (without its line end) and the fields of a message, in their order."""

    start: bytes
    fields: tuple[Field, ...]

    def value(self, name: bytes) -> bytes:
        """Return the value of the first field of a name (in lower case), empty if there is none."""
        return next((field.value for field in self.fields if field.name == name), b"")

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of all fields of a name, in lower case."""
        return [field.value.lower() for field in self.fields if field.name == name]

    def options(self, name: bytes) -> list[bytes]:
        """Return the members of a comma-separated field, in lower case."""
        split = (option.strip(b" \t") for value in self.values(name) for option in value.split(b","))
        return [option for option in split if option]

    def forwarded(self, start: bytes) -> bytes:
        """Return the head with another start line and without what is for this hop alone (RFC 9110, 7.6.1).

        Our connections to the two sides are paired, so close, keep-alive, upgrade and TE: trailers hold for the
        next one as for this one and stay; Keep-Alive's times do too.  There is no Via: servers leave compression
        out because of it, and this hop is to change nothing.
        """
        options = self.options(b"connection")
        named = frozenset(options) - _OURS
        if not named.isdisjoint(_FRAMING):
            raise BadMessageError("the field Connection names one that the message cannot do without")
        upgrading = b"upgrade" in options
        lines = [start, b"\r\n"]
        for field in self.fields:
            if field.name in _ONE_HOP or field.name in named:
                lines.append(_for_next_hop(field, upgrading))
            else:
                lines.append(field.line)
        lines.append(b"\r\n")
        return b"".join(lines)


@dataclass(frozen=True, slots=True)
class Request(Head):
    """A request's head; `length` is its body's bytes, or CHUNKED."""

    method: bytes
    target: bytes
    length: int

    @property
    def path(self) -> str:
        """The path of the target without its query, percent-encoded as it was."""
        path = self._origin_and_rest[1].partition(b"?")[0]
        return path.decode("latin-1") if path.startswith(b"/") else "/"

    def under(self, prefix: bytes) -> bytes:
        """Return the head to send to a server whose API is under a path."""
        origin, rest = self._origin_and_rest
        target = origin + prefix + rest if origin or rest.startswith(b"/") else rest
        version = self.start.rpartition(b" ")[2]
        return self.forwarded(b" ".join((self.method, target, version)))

    @property
    def _origin_and_rest(self) -> tuple[bytes, bytes]:
        """The target in two: scheme and authority of one in absolute form, and path and query."""
        match = _TARGET.fullmatch(self.target)
        assert match is not None  # It has no line end.
        return match[1], match[2]


@dataclass(frozen=True, slots=True)
class Response(Head):
    """A response's head; `length` is its body's bytes, CHUNKED or UNTIL_CLOSE."""

    status: int
    length: int


def read_request(raw: bytes) -> Request:
    """Read a request's head, empty line included; raise BadMessageError."""
    start, fields = _split(raw)
    match = _REQUEST_LINE.fullmatch(start)
    if match is None:
        raise BadMessageError("the request line is not HTTP/1.1's")
    head = Head(start, fields)
    # As they are: of an empty member of a list, or of an empty field beside another, readers make different things.
    codings, lengths = head.values(b"transfer-encoding"), set(head.values(b"content-length"))
    if codings and (lengths or match[3] == b"0"):
        raise BadMessageError("a body has one length: Transfer-Encoding or Content-Length, the former not in HTTP/1.0")
    if codings and codings != [b"chunked"]:
        raise BadMessageError("the only transfer coding of a request is chunked", 501)
    length = CHUNKED if codings else _length(lengths)
    return Request(start, fields, match[1], match[2], 0 if length is None else length)


def read_response(raw: bytes, method: bytes) -> Response:
    """Read the head of a response to a request of a method; raise BadMessageError."""
    start, fields = _split(raw)
    match = _STATUS_LINE.fullmatch(start)
    if match is None:
        raise BadMessageError("the status line is not HTTP/1.1's")
    status = int(match[2])
    head = Head(start, fields)
    codings = head.options(b"transfer-encoding")
    if method == b"HEAD" or status < 200 or status in (204, 304):
        length: int | None = 0
    elif codings:
        length = CHUNKED if codings[-1] == b"chunked" else UNTIL_CLOSE
    else:
        length = _length(set(head.options(b"content-length")))
    return Response(start, fields, status, UNTIL_CLOSE if length is None else length)


def _for_next_hop(field: Field, upgrading: bool) -> bytes:
    if field.name == b"upgrade" and upgrading:
        return field.line
    if field.name == b"te" and b"trailers" in field.value.lower():
        return field.line if field.value.lower() == b"trailers" else b"TE: trailers\r\n"
    if field.name == b"connection":
        own = [option.strip(b" \t") for option in field.value.split(b",")]
        if all(option.lower() in _OURS for option in own):
            return field.line
        own = [option for option in own if option.lower() in _OURS]
        return b"Connection: " + b", ".join(own) + b"\r\n" if own else b""
    return b""


def _split(raw: bytes) -> tuple[bytes, tuple[Field, ...]]:
    start, *lines = raw.removesuffix(b"\r\n\r\n").split(b"\r\n")
    return start, tuple(_fields(lines))


def _fields(lines: list[bytes]) -> Iterator[Field]:
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise BadMessageError("a header line is no field")
        yield Field(match[1].lower(), match[2].strip(b" \t"), line + b"\r\n")


def _length(values: set[bytes]) -> int | None:
    if not values:
        return None
    value = values.pop()
    if values or not re.fullmatch(rb"[0-9]{1,18}", value):
        raise BadMessageError("Content-Length is no number of bytes")
    return int(value)


def own_answer(status: int, text: str, request: Request | None) -> bytes:
    """Return an answer of our own, whose error has the shape that the clients of the API asked for expect."""
    openai = request is not None and request.path.startswith("/v1/")
    error: object = {"message": text, "type": "proxy_error", "param": None, "code": None} if openai else text
    body = json.dumps({"error": error}).encode() + b"\n"
    reason = http.HTTPStatus(status).phrase
    head = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if request is not None and request.method == b"HEAD" else body)


class Body:
    """Where a body ends: counts the bytes of one that passes by.  `done` is true from the start for an empty one."""

    __slots__ = ("_line", "_state", "done", "left")

    def __init__(self, length: int) -> None:
        self.left = max(length, 0)
        self.done = length == 0
        self._state = {CHUNKED: "size", UNTIL_CLOSE: "all"}.get(length, "fixed")
        self._line = b""

    def feed(self, data: bytes, start: int, content: list[bytes]) -> int:
        """Return where, in `data` from `start`, the body ends or the data does; put what is its content in a list.

        Raise BadMessageError for a chunk that is none.
        """
        if self._state == "all":
            content.append(data[start:])
            return len(data)
        if self._state == "fixed":
            end = self._content(data, start, content)
            self.done = not self.left
            return end
        while start < len(data) and not self.done:
            # The usual read, of whole chunks, in fewer steps.
            while self._state == "size" and not self._line and (match := _CHUNK.match(data, start)) is not None:
                begin = match.end()
                end = begin + int(match[1], 16)
                if begin == end or data[end : end + 2] != b"\r\n":
                    break
                content.append(data[begin:end])
                start = end + 2
            if start == len(data):
                return start
            if self._state == "content":
                start = self._content(data, start, content)
                self._state = "content" if self.left else "end"
            else:
                start = self._framing(data, start)
        return start

    def _content(self, data: bytes, start: int, content: list[bytes]) -> int:
        end = min(start + self.left, len(data))
        content.append(data[start:end])
        self.left -= end - start
        return end

    def _framing(self, data: bytes, start: int) -> int:
        """Read a line between two chunks' contents, or a trailer; lines may be split anywhere."""
        feed = data.find(b"\n", start) + 1
        end = feed or len(data)
        self._line += data[start:end]
        if len(self._line) > MAX_HEAD:
            raise BadMessageError("a chunk's first line or the trailers are too long")
        if not feed:
            return end
        if not self._line.endswith(b"\r\n"):
            raise BadMessageError("a line of a chunk ends without CR LF")
        if self._state == "size":
            match = _CHUNK.fullmatch(self._line)
            if match is None:
                raise BadMessageError("a chunk has no size")
            self.left = int(match[1], 16)
            self._state = "content" if self.left else "trailers"
        elif self._state == "end":
            if self._line != b"\r\n":
                raise BadMessageError("a chunk is longer than its size")
            self._state = "size"
        elif self._line == b"\r\n":
            self.done = True
        elif self._line.endswith(b"\r\n\r\n"):
            _split(b"\r\n" + self._line)
            self.done = True
        else:
            return end  # Trailers are kept together to bound them as a whole.
        self._line = b""
        return end
