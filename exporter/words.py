"""What a server says in words, before it becomes a label, a line of the log or part of a page."""

from __future__ import annotations

import re
from typing import TypeGuard

NAME_LENGTH = 512
"""Characters of a name at most: a path can be long, and a label that is longer is refused by some databases."""

LINE_LENGTH = 500
"""Characters of a line for a person at most."""

_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What ends a line, steers a terminal, turns the direction of writing, or is only half of a character."""

_VERSION = re.compile(r"[A-Za-z0-9_.+-]{1,64}")


def is_name(said: object) -> TypeGuard[str]:
    """Return whether this is a text that can be a label: not empty, not too long, and printable."""
    return isinstance(said, str) and 0 < len(said) <= NAME_LENGTH and _UNFIT.search(said) is None


def name(said: object) -> str:
    """Return a text that can be a label, "" for anything else."""
    return said if is_name(said) else ""


def version(said: object) -> str:
    """Return a version as programs write theirs, "" for anything else."""
    return said if isinstance(said, str) and _VERSION.fullmatch(said) else ""


def printable(said: str) -> str:
    """Return a text as one printable line."""
    return _UNFIT.sub("\ufffd", said)


def line(said: str) -> str:
    """Return a text as one printable line of LINE_LENGTH at most."""
    shown = printable(said)
    return shown if len(shown) <= LINE_LENGTH else f"{shown[: LINE_LENGTH - 4]} ..."
