"""One of the two connections of a link, whichever end it leads to."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Protocol


class Work(Protocol):
    """What is done with what one side receives."""

    def received(self, data: bytes) -> None:
        """Take what a read brought."""
        ...

    def half_closed(self) -> bool:
        """Take note that the peer sends no more; return whether it may still be sent to."""
        ...

    def lost(self, error: Exception | None) -> None:
        """Take note that the connection is gone, by an error or by an orderly end."""
        ...

    def update_reading(self) -> None:
        """Adapt who is read to who takes what was read."""
        ...


_BUFFER = memoryview(bytearray(256 * 2**10))
"""What every read goes into: it is copied out at once, so that no connection needs one of its own.

A view, since TLS fills it in slices, and a slice of a bytearray is a copy.
"""


class Side(asyncio.BufferedProtocol):
    """A connection: hands what comes to `work`, and forgives what is said to it before it is there or after its end.

    `full` says that more is to be written than the peer takes.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._transport: asyncio.Transport | None = None
        self.full = False

    @property
    def open(self) -> bool:
        """Whether it can be written to."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection; a peer whose machine has gone is noticed by TCP's own probes."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._set_option(socket.SO_KEEPALIVE, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next read goes."""
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Hand it on."""
        self._work.received(bytes(_BUFFER[:nbytes]))

    def eof_received(self) -> bool:
        """Hand it on."""
        return self._work.half_closed()

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand it on."""
        self._work.lost(exc)

    def pause_writing(self) -> None:
        """Take note that the peer takes less than it is sent."""
        self.full = True
        self._work.update_reading()

    def resume_writing(self) -> None:
        """Take note that the peer has caught up."""
        self.full = False
        self._work.update_reading()

    def write(self, data: bytes) -> None:
        """Send now, as far as the peer takes it."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def read(self, wanted: bool) -> None:
        """Go on or stop to read."""
        if self._transport is not None and not self._transport.is_closing():
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def end_writing(self) -> bool:
        """Tell the peer that no more is sent; return whether that is possible."""
        if self._transport is None or self._transport.is_closing() or not self._transport.can_write_eof():
            return False
        self._transport.write_eof()
        return True

    def close(self, reset: bool = False) -> None:
        """End when all is written; a reset, unlike an orderly end, cannot be taken for the end of a body."""
        if self.open and self._transport is not None:
            if reset:
                self._set_option(socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.close()

    def abort(self, reset: bool = False) -> None:
        """End now; what is not written is lost."""
        self.close(reset)
        if self._transport is not None:
            self._transport.abort()

    def _set_option(self, option: int, value: int | bytes) -> None:
        own = self._transport.get_extra_info("socket") if self._transport is not None else None
        if own is not None:
            own.setsockopt(socket.SOL_SOCKET, option, value)
