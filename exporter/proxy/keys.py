"""Reads a few values at the top of a JSON object that passes by in pieces of any size, without keeping the rest.

A request may carry megabytes of images or a long conversation: parsing it as a whole would hold up every other stream.
"""

from __future__ import annotations

import json
import re

LONGEST = 512
"""Bytes of a key or a value that is kept; a longer one counts as not there."""

MOST = 4096
"""Quotes, commas, colons and brackets at the top that are looked at; after them nothing more is looked for."""

_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_TOP = re.compile(rb'["{}\[\],:]')
_PLAIN = rb'(?:[^"{}\[\]]++|"(?:[^"\\]++|\\.)*+")*+'
_NESTED = re.compile(_PLAIN, re.DOTALL)
_BRACKETS = re.compile(_PLAIN + rb"([{\[]++|[}\]]++)", re.DOTALL)


class TopValues:
    """Collects in `found` the strings, numbers and words (true, false, null) that stand under some keys.

    What is not JSON is not noticed; it finds nothing, or what is there.
    """

    def __init__(self, *keys: str) -> None:
        self.found: dict[str, object] = {}
        self._keys = keys
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._key = ""
        self._in_value = False
        self._kept = bytearray()
        self._left = MOST

    def feed(self, data: bytes) -> None:
        """Read the next piece."""
        at = 0
        while at < len(data) and self._left:
            if self._in_string:
                at = self._string(data, at)
            elif self._depth > 1:
                at = self._nested(data, at)
            else:
                at = self._top(data, at)
                self._left -= 1

    def _string(self, data: bytes, at: int) -> int:
        if self._escaped:
            self._escaped = False
            self._keep(data[at : at + 1])
            return at + 1
        match = _STRING.match(data, at)
        end = match.end() if match else at
        self._keep(data[at:end])
        if end == len(data):
            return end
        self._escaped = data[end] == ord("\\")  # The last byte, so that what it escapes comes with the next piece.
        self._in_string = self._escaped
        self._keep(data[end : end + 1])
        if not self._in_string and self._depth == 1 and not self._in_value:
            key = self._take()
            self._key = key if isinstance(key, str) else ""
        return end + 1

    def _nested(self, data: bytes, at: int) -> int:
        """Pass over what stands deeper, in one step from bracket to bracket: definitions of tools have thousands."""
        while self._depth > 1:
            match = _BRACKETS.match(data, at)
            if match is None:
                match = _NESTED.match(data, at)
                end = match.end() if match else at
                self._in_string = end < len(data)  # It ends in a later piece.
                return end + self._in_string
            run = len(match[1])
            if match[1][0] in b"{[":
                self._depth += run
                at = match.end()
            else:
                closed = min(run, self._depth - 1)
                self._depth -= closed
                at = match.end() - run + closed
        self._in_value = False
        return at

    def _top(self, data: bytes, at: int) -> int:
        match = _TOP.search(data, at)
        if match is None:
            self._keep(data[at:])
            return len(data)
        self._keep(data[at : match.start()])
        token = match[0]
        if token == b'"':
            self._in_string = True
            self._keep(token)
        elif token in b"{[":
            self._depth += 1
            self._kept.clear()
        elif token == b":":
            self._in_value = True
            self._kept.clear()
        else:  # A value ends.
            if self._depth == 1 and self._in_value and self._key in self._keys and self._kept.strip():
                self.found[self._key] = self._take()
            self._depth -= token in b"}]"
            self._in_value = False
            self._kept.clear()
        return match.end()

    def _keep(self, piece: bytes) -> None:
        if self._depth == 1 and len(self._kept) <= LONGEST:
            self._kept += piece[: LONGEST + 1]

    def _take(self) -> object:
        text = bytes(self._kept)
        self._kept.clear()
        try:
            return None if len(text) > LONGEST else json.loads(text)
        except ValueError:
            return None
