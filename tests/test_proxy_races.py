"""What happens between two turns of the event loop, which sockets cannot be made to do: the peers are transports."""

from __future__ import annotations

import asyncio

import pytest

from exporter.proxy.http1 import Request
from exporter.proxy.link import Link
from exporter.proxy.watching import Ending, Notes, Watcher

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Wire(asyncio.Transport):
    """A connection to a peer that takes nothing: `sent` is on its way for ever."""

    def __init__(self, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__()
        self.sent = b""
        self.ended = self.closing = self.aborted = False
        self._protocol = protocol
        protocol.connection_made(self)

    def comes(self, data: bytes) -> None:
        buffer = memoryview(self._protocol.get_buffer(-1))
        buffer[: len(data)] = data
        self._protocol.buffer_updated(len(data))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data if not self.ended else b"(after the end)"  # where asyncio raises RuntimeError

    def write_eof(self) -> None:
        self.ended = True

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def pause_reading(self) -> None:
        """Come all the same."""

    def resume_reading(self) -> None:
        """Come as ever."""


class Endings:
    """Watches all exchanges, and notes for each how it ended, None while it has not."""

    def __init__(self) -> None:
        self.of: list[Ending | None] = []

    def watch(self, request: Request, at: float) -> Watcher:
        self.of.append(None)
        return _One(self, len(self.of) - 1)


class _One:
    def __init__(self, endings: Endings, index: int) -> None:
        self._endings = endings
        self._index = index

    def uploaded(self, *args: object) -> None: ...
    def asked(self, *args: object) -> None: ...
    def answered(self, *args: object) -> None: ...
    def received(self, *args: object) -> None: ...
    def dropped(self) -> None: ...

    def ended(self, at: float, ending: Ending) -> None:
        self._endings.of[self._index] = ending


class World:
    """A link whose client is there; its server is once the event loop has run, unless it is refused."""

    def __init__(self, refused: bool = False) -> None:
        self.endings = Endings()
        self.notes = Notes(self.endings.watch)
        self.refused = refused
        self.link = Link(self._connect, self.notes, b"", set(), lambda: 0.0)
        self.client = Wire(self.link.client)

    async def _connect(self, protocol: asyncio.BaseProtocol) -> None:
        if self.refused:
            raise ConnectionRefusedError
        assert isinstance(protocol, asyncio.BufferedProtocol)
        self.server = Wire(protocol)


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_request_that_waits_is_not_begun_for_a_client_that_has_left() -> None:
    world = World()
    world.client.comes(GET * 2)
    await turns()
    world.server.comes(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    world.link.client.connection_lost(ConnectionResetError())
    await turns()
    assert world.server.sent == GET
    world.notes.hear()
    assert world.endings.of == [Ending.COMPLETE]


async def test_a_request_that_was_refused_is_not_answered_once_more_when_connecting_fails_too() -> None:
    world = World(refused=True)
    world.client.comes(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    await turns(1)  # The task that connects has failed, and nobody has heard of it yet.
    world.client.comes(b"no chunk\r\n")
    await turns()
    assert world.client.sent.startswith(b"HTTP/1.1 400 ")
    assert world.client.sent.endswith(b"}\n")


async def test_what_comes_after_the_connection_and_before_the_word_of_it_waits_for_what_came_before() -> None:
    world = World()
    world.client.comes(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n")
    await turns(1)
    world.client.comes(b"a")
    await turns()
    world.client.comes(b"b")
    assert world.server.sent.endswith(b"\r\n\r\nab")


@pytest.mark.parametrize("early", [False, True])
async def test_a_client_that_takes_nothing_of_what_is_left_is_let_go_in_the_end(
    early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exporter.proxy.link.FLUSH", 0.01)
    monkeypatch.setattr("exporter.proxy.link.LINGER", 0.01)
    world = World()
    world.client.comes(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % early)
    await turns()
    world.server.comes(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na")
    world.link.server.connection_lost(None)
    assert (world.client.ended, world.client.closing, world.client.aborted) == (early, not early, False)
    async with asyncio.timeout(10):
        while not world.client.aborted:  # noqa: ASYNC110 - a timer has no event
            await asyncio.sleep(0.001)
