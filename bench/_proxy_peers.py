"""A server that streams like an Ollama and its clients, as lean as possible: what `bench proxy` puts around a proxy.

Both are plain loops over epoll, and what clients got is read only afterwards: on the same machine, every microsecond
that the peers take is one more that the forwarder between them waits for a processor.
"""

from __future__ import annotations

import gc
import heapq
import json
import re
import select
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from exporter.proxy.http1 import CHUNKED, Body

STAMP = re.compile(rb'"at":(\d+)')
MODELS = b'{"object":"list","data":[{"id":"m"}],"models":[]}'
REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
LINE = b'{"model":"m","created_at":"2026-11-29T19:24:51.072418556Z","at":%d,"response":" word%b","done":false}\n'
DONE = b'{"model":"m","response":"","done":true,"done_reason":"stop","prompt_eval_count":9,"eval_count":%d}\n'
REQUEST = b"POST /api/generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%b"
END = b"0\r\n\r\n"

SETTLE = 2.0
"""Seconds in which all buffers on the way to clients that read nothing fill up."""

BEGIN = 0.5
"""Seconds in which all clients are connected."""

LONGEST = 300.0
"""Seconds that clients wait for their answers at most."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Poll:
    """Waits for sockets, to the microsecond where epoll alone counts milliseconds."""

    def __init__(self) -> None:
        self._epoll = select.epoll()

    def watch(self, sock: socket.socket, events: int = select.EPOLLIN) -> None:
        self._epoll.register(sock, events)

    def change(self, sock: socket.socket, events: int) -> None:
        self._epoll.modify(sock, events)

    def forget(self, sock: socket.socket) -> None:
        self._epoll.unregister(sock)

    def wait(self, seconds: float | None) -> list[tuple[int, int]]:
        if seconds is None or seconds > 0:
            select.select([self._epoll], [], [], seconds)
        return self._epoll.poll(0)


class Stream:
    """A connection to the server, which streams as many lines as it is asked for.

    The first is `due` at a time of CLOCK_MONOTONIC, in seconds, and the others `gap` seconds apart; what is 0 is as
    soon as can be.  Each line has the time, in ns, at which it was written.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.data = self.out = b""
        self.left = self.made = 0
        self.gap = self.due = 0.0
        self.pad = b""

    def asked(self, data: bytes) -> bool:
        """Take what the client sends; return whether a stream begins by it."""
        self.data += data
        head, separator, body = self.data.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if not separator or len(body) < (int(length[1]) if length else 0):
            return False
        self.data = b""
        if not head.startswith(b"POST"):
            body = b'{"version":"0.0.0"}' if b"version" in head else MODELS
            self.send(REPLY % (len(body), body))
            return False
        asked = json.loads(body)
        self.left, self.made, self.gap = asked["lines"], 0, asked["gap"]
        self.pad = b"x" * asked["pad"]
        self.due = asked["begin"]
        return True

    def step(self) -> None:
        """Write the next line."""
        out = chunk(LINE % (time.monotonic_ns(), self.pad))
        if not self.made:
            out = HEAD + out
        self.made += 1
        self.left -= 1
        if self.left <= 0:
            out += chunk(DONE % self.made) + END
        self.due = self.due + self.gap if self.gap else 0.0
        self.send(out)

    def send(self, data: bytes) -> None:
        """Write, and keep in `out` what the client does not take."""
        try:
            self.out = data[self.sock.send(data) :]
        except BlockingIOError:
            self.out = data


def serve(port: int) -> None:
    """Serve for ever."""
    gc.disable()
    poll = Poll()
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    listener.setblocking(False)
    poll.watch(listener)
    streams: dict[int, Stream] = {}
    timed: list[tuple[float, int]] = []
    eager: set[int] = set()

    def proceed(fd: int, stream: Stream) -> None:
        """Wait for what the stream's next line depends on."""
        eager.discard(fd)
        if stream.out:
            poll.change(stream.sock, select.EPOLLIN | select.EPOLLOUT)
        elif stream.left > 0 and stream.due:
            heapq.heappush(timed, (stream.due, fd))
        elif stream.left > 0:
            eager.add(fd)

    while True:
        for fd, events in poll.wait(0.0 if eager else timed[0][0] - time.monotonic() if timed else None):
            if fd == listener.fileno():
                for sock in _accepted(listener):
                    streams[sock.fileno()] = Stream(sock)
                    poll.watch(sock)
                continue
            stream = streams[fd]
            try:
                if events & select.EPOLLOUT:
                    stream.send(stream.out)
                    if not stream.out:
                        poll.change(stream.sock, select.EPOLLIN)
                        proceed(fd, stream)
                if events & ~select.EPOLLOUT:
                    data = stream.sock.recv(2**16)
                    if not data:
                        raise ConnectionError
                    if stream.asked(data):
                        proceed(fd, stream)
            except ConnectionError:
                _forget(fd, streams, timed, eager)
        now = time.monotonic()
        due = []
        while timed and timed[0][0] <= now:
            due.append(heapq.heappop(timed)[1])
        for fd in (*due, *eager):
            try:
                streams[fd].step()
                proceed(fd, streams[fd])
            except ConnectionError:
                _forget(fd, streams, timed, eager)


def _accepted(listener: socket.socket) -> Iterator[socket.socket]:
    while True:
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sock


def _forget(fd: int, streams: dict[int, Stream], timed: list[tuple[float, int]], eager: set[int]) -> None:
    eager.discard(fd)
    timed[:] = [one for one in timed if one[1] != fd]
    heapq.heapify(timed)
    streams.pop(fd).sock.close()


@dataclass
class Seen:
    """What clients saw, in ns: from request to first line, and from each other line's writing to its arrival."""

    first: list[int] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)
    lines: int = 0

    def add(self, sent: Sequence[int], reads: Sequence[tuple[int, bytes]]) -> None:
        """Add what came on one connection, read by read, after requests that were sent at these times."""
        head = cut = b""
        body: Body | None = None
        requests, since = iter(sent), 0
        for now, data in reads:
            if body is None:
                head, separator, data = (head + data).partition(b"\r\n\r\n")
                if not separator:
                    continue
                head, body, since = b"", Body(CHUNKED), next(requests)
            # The chunks are taken off first: a forwarder may cut them anywhere, in a time stamp too.
            content = [cut]
            body.feed(data, 0, content)
            whole, feed, cut = b"".join(content).rpartition(b"\n")
            stamps = STAMP.findall(whole + feed)
            self.lines += len(stamps)
            if stamps and since:
                self.first.append(now - since)
                since = 0
                del stamps[0]
            self.delays += [now - int(stamp) for stamp in stamps]
            if body.done:
                body = None


class Client:
    """Sends requests one after the other on one connection; keeps what came, and when (ns), for later."""

    def __init__(self, port: int, body: bytes, times: int) -> None:
        self.request = REQUEST % (len(body), body)
        self.left = times
        self.sent: list[int] = []
        self.reads: list[tuple[int, bytes]] = []
        self.end = b""
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ask()

    def ask(self) -> None:
        self.left -= 1
        self.sent.append(time.monotonic_ns())
        self.sock.sendall(self.request)

    def read(self) -> bool:
        """Read once; return whether that was all."""
        data = self.sock.recv(2**16)
        self.reads.append((time.monotonic_ns(), data))
        if not data:
            raise ConnectionError("an answer ended too early")
        self.end = (self.end + data if len(data) < len(END) else data)[-len(END) :]
        if self.end != END:
            return False
        self.end = b""
        if self.left:
            self.ask()
            return False
        return True


def load(
    port: int, streams: int, lines: int, gap: float, times: int = 1, stalled: int = 0, in_step: bool = False
) -> Seen:
    """Run so many streams at once, besides some whose client reads nothing.

    Streams with a `gap` begin when all are connected, in step or spread over one gap: the same for every way to the
    server, however long it takes to connect.
    """
    stuck = [Client(port, _body(10**9, 0.0, 0.0, 2**16), 1) for _ in range(stalled)]
    if stuck:
        time.sleep(SETTLE)
    begin = time.monotonic() + BEGIN
    clients: dict[int, Client] = {}
    poll = Poll()
    for i in range(streams):
        first = begin + (0.0 if in_step else i * gap / streams) if gap else 0.0
        client = Client(port, _body(lines, gap, first), times)
        clients[client.sock.fileno()] = client
        poll.watch(client.sock)
    under_way = streams
    gc.disable()
    while under_way:
        for fd, _ in poll.wait(LONGEST):
            if clients[fd].read():
                poll.forget(clients[fd].sock)
                under_way -= 1
        if time.monotonic() > begin + LONGEST:
            raise TimeoutError(f"port {port}: {under_way} streams have not ended")
    gc.enable()
    seen = Seen()
    for client in clients.values():
        client.sock.close()
        seen.add(client.sent, client.reads)
    for client in stuck:
        client.sock.close()
    return seen


def _body(lines: int, gap: float, begin: float, pad: int = 0) -> bytes:
    asked = {"model": "m", "prompt": "x" * 200, "lines": lines, "gap": gap, "begin": begin, "pad": pad}
    return json.dumps(asked).encode()
