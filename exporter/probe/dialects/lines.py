"""What the dialects share: lines out of bytes, and numbers out of JSON that may hold anything."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from exporter.probe.events import Error

MAX_LINE = 4 * 2**20
"""Bytes of one line: the last one of Ollama's lists every token of the context, about 7 bytes each."""

MAX_ERROR = 200
"""Characters of an error that are kept."""

NANOSECOND = 1e-9
MILLISECOND = 1e-3


class Lines:
    """Joins bytes, which may begin and end anywhere, to whole lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that these bytes complete; ValueError if one has no end."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            self._rest = b""
            raise ValueError(f"a line of more than {MAX_LINE >> 20} MiB")
        return lines

    def finish(self) -> list[bytes]:
        """Return the last line where it lacks its line feed."""
        line, self._rest = self._rest, b""
        return [line] if line else []


def json_object(data: bytes) -> dict[str, object] | Error:
    """Return the JSON object in `data`; an Error if it is none, or if it is the report of one.

    Servers report errors as `{"error": "text"}`, `{"error": {"message": "text"}}` and, older vLLMs,
    `{"object": "error", "message": "text"}`; one becomes a short line.
    """
    try:
        row = json.loads(data)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        return Error(f"no JSON object: {data[:80].decode(errors='replace')}", malformed=True)
    error = row if row.get("object") == "error" else row.get("error")
    if error is None:
        return row
    return reported(error)


def reported(error: object) -> Error:
    """Return the error that a server reported as a text, or as an object with a `message`, as one short line."""
    words = str(error.get("message", error) if isinstance(error, dict) else error).split()
    return Error(" ".join(words)[:MAX_ERROR])


def mapping(row: Mapping[str, object], key: str) -> Mapping[str, object]:
    """Return the object under a key, an empty one if there is none."""
    value = row.get(key)
    return value if isinstance(value, dict) else {}


def text(row: Mapping[str, object], *keys: str) -> str:
    """Return the strings under these keys, joined."""
    return "".join(value for key in keys if isinstance(value := row.get(key), str))


def seconds(row: Mapping[str, object], key: str, unit: float) -> float | None:
    """Return a duration given in `unit` seconds; None if it is no finite number from 0 on."""
    match row.get(key):
        case bool():
            return None
        case int() | float() as value if 0 <= value <= sys.float_info.max:  # JSON's whole numbers have no end
            return value * unit
    return None


def count(row: Mapping[str, object], key: str) -> int | None:
    """Return a number of tokens; None if it is no number from 0 on."""
    value = seconds(row, key, 1.0)
    return None if value is None else int(value)
