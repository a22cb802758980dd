r"""Reads one line of the Prometheus text format or of OpenMetrics, strictly and without losing its neighbours.

The grammar is Prometheus's own (text format 0.0.4): blanks are spaces and tabs; a label value knows the
escapes \\, \" and \n, and any other backslash stands for itself; a value is a Go float, without underscores.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)(?=[ \t{]|$)[ \t]*")
_QUOTED_NAME = re.compile(r'[ \t]*\{[ \t]*"(?:[^"\\\n]|\\.)*"[ \t]*[,}]')
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\\n]|\\.)*)"[ \t]*(,|(?=\}))')
_REST = re.compile(r"[ \t]*(\S+)(?:[ \t]+(-?[0-9]+(?:\.[0-9]+)?))?(?:[ \t]+(#[ \t]*\{.*))?[ \t]*")
_ESCAPE = re.compile(r"\\(.)")
_COMMENT = re.compile(r"[ \t]*#[ \t]*(HELP|TYPE)[ \t]+([^\s]+)[ \t]*(.*)")
NUMBER = re.compile(
    r"[-+]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|nan|inf(?:inity)?)", re.IGNORECASE | re.ASCII
)
"""What is a value.  Python's float() also takes 1_000 and other scripts' digits, which Prometheus does not."""


@dataclass(frozen=True, slots=True)
class Line:
    """A sample line: its name, its labels (sorted, unescaped), its value's text, and whether it is plain.

    Plain means that what stands before the last blank is the series and nothing else (no timestamp, no
    exemplar), so that the text before the blank may be remembered.
    """

    name: str
    labels: tuple[tuple[str, str], ...]
    text: str
    plain: bool


@dataclass(frozen=True, slots=True)
class Comment:
    """A HELP or TYPE line: the keyword, the metric's name, and the text after it."""

    keyword: str
    name: str
    text: str


def parse_comment(line: str) -> Comment | None:
    """Read a comment; None if it is neither HELP nor TYPE."""
    match = _COMMENT.match(line)
    return Comment(*match.groups()) if match else None


def parse_name(line: str) -> str | None:
    r"""Return the name that a sample line begins with; "" for a quoted UTF-8 name; None if there is none."""
    match = _NAME.match(line)
    if match:
        return match[1]
    return "" if _QUOTED_NAME.match(line) else None


def parse_line(line: str) -> Line:
    """Read a sample line.

    Raises ValueError, with a short reason, where the line is no sample.
    """
    match = _NAME.match(line)
    if not match:
        raise ValueError("no metric name")
    name, at = match[1], match.end()
    labels: dict[str, str] = {}
    if line.startswith("{", at):
        at += 1
        while label := _LABEL.match(line, at):
            if label[1] in labels:
                raise ValueError(f"label {label[1]} stands twice")
            labels[label[1]] = _unescape(label[2])
            at = label.end()
            if not label[3]:
                break
        closing = line[at:].lstrip(" \t")
        if not closing.startswith("}"):
            raise ValueError("labels cannot be read")
        at = len(line) - len(closing) + 1
    elif at == match.end(1):
        raise ValueError("no value")
    rest = _REST.fullmatch(line, at)
    if not rest or not NUMBER.fullmatch(rest[1]):
        raise ValueError("no value")
    plain = rest[2] is None and rest[3] is None and line.endswith(" " + rest[1])
    return Line(name, tuple(sorted(labels.items())), rest[1], plain)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: {"n": "\n", '"': '"', "\\": "\\"}.get(match[1], match[0]), text)
