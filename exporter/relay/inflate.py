"""Undoes the compression of an answer's body, piece by piece, and sees whether the body has come to its end."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

_STEP = 1024
"""Bytes undone at once: they make about 1 MiB at most, so that it can be counted before more is made."""

_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


class Inflate:
    """The body of one answer, by its Content-Encoding: gzip in one or several members, deflate, or none."""

    def __init__(self, encoding: str) -> None:
        """Raise zlib.error for an encoding that was not asked for."""
        self._encoding = encoding.strip().lower()
        if self._encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise zlib.error(f"{self._encoding} was not asked for")
        self._member: zlib._Decompress | None = None

    @property
    def whole(self) -> bool:
        """Whether what was fed so far is a complete body, which the length of an answer does not say."""
        return self._member is None or self._member.eof

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what the body's next bytes make; raise zlib.error where they are not compressed as it is said."""
        if self._encoding in ("", "identity"):
            yield data
            return
        for at in range(0, len(data), _STEP):
            step = data[at : at + _STEP]
            while step:
                if self._member is None or self._member.eof:
                    self._member = zlib.decompressobj(self._window(step[0]))
                yield self._member.decompress(step)
                step = self._member.unused_data

    def _window(self, first: int) -> int:
        if self._encoding != "deflate":
            return _GZIP
        # Some servers leave out the header that RFC 9110 wants; its first byte ends in 8.
        return _ZLIB if first & 0x0F == 8 else _RAW
