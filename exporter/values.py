"""Readers: one function for each kind of value in the configuration, from what YAML holds to a checked value.

A reader raises ValueError with one line that says what was expected; it never prints a secret, nor what an
environment variable holds.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Reader = Callable[[object], Any]

_KINDS: dict[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "a mapping",
    type(None): "nothing",
}
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION = re.compile("".join(rf"(?:(?P<{unit}>[0-9]+(?:\.[0-9]+)?){unit})?" for unit in _UNITS))
_HOST = re.compile(r"[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?|[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*")
_HEADER_VALUE = re.compile(r"[!-~](?:[\t -~]*[!-~])?")
_TOKEN = re.compile(r"[!-~]+")
_PRINTABLE = re.compile(r"[!-~]*")
_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]*)):(?P<port>[0-9]{1,5})")


class Secret:
    """A string which shows itself only to who asks for it by name."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the string itself."""
        return self._value

    def __repr__(self) -> str:
        return "<secret>"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)


class FromEnvironment(str):
    """A string in which environment variables have been filled in; `template` is how it was written."""

    template: str

    def __new__(cls, value: str, template: str) -> FromEnvironment:
        """Keep `template` for messages, which must not show `value`."""
        made = super().__new__(cls, value)
        made.template = template
        return made


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list whose every item has the same reader."""

    item: Reader


@dataclass(frozen=True, slots=True)
class MappingOf:
    """A mapping of free keys, which are told apart without regard to case."""

    key: Reader
    value: Reader


def kind(value: object) -> str:
    """Name a value's type as YAML calls it, for messages that must not show the value."""
    for type_, article_and_name in _KINDS.items():
        if isinstance(value, type_):
            return article_and_name
    return f"a {type(value).__name__}"


def shown(value: object) -> str:
    """Return a value as messages show it."""
    if isinstance(value, FromEnvironment):
        return f"the value of {value.template!r}"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, str | int | float) else kind(value)


def text(value: object) -> str:
    """Read a string that is not empty."""
    if isinstance(value, bool):
        raise ValueError("expected a string, got a boolean (YAML reads on, off, yes, no so); put it in quotes")
    if not isinstance(value, str):
        remedy = "" if isinstance(value, list | dict) else "; put it in quotes"
        raise ValueError(f"expected a string, got {kind(value)}{remedy}")
    if not value:
        raise ValueError("must not be empty")
    return str(value)


def matching(pattern: re.Pattern[str], expected: str) -> Reader:
    """Make the reader of a string that the whole pattern matches."""

    def read(value: object) -> str:
        given = text(value)
        if not pattern.fullmatch(given):
            raise ValueError(f"expected {expected}, got {shown(value)}")
        return given

    return read


name = matching(re.compile(r"(?=.*[^.])[A-Za-z0-9._:-]+"), "letters, digits and any of . _ : - only")
"""A target's name: a label value and a segment of a URL's path, so not `.` nor `..`."""


def _is_host(given: str) -> bool:
    if not given.strip("0123456789."):  # No name is all digits, so this is an IPv4 address or a mistake in one.
        try:
            ipaddress.IPv4Address(given)
        except ValueError:
            return False
    return _HOST.fullmatch(given) is not None


def host(value: object) -> str:
    """Read a host name or an IP address."""
    given = text(value)
    if not _is_host(given):
        raise ValueError(f"expected a host name or an IP address, got {shown(value)}")
    return given


url_path = matching(re.compile(r"/[^\0- ?#\x7f-\U0010ffff]*"), "a path such as /metrics")

header_name = matching(re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"), "a header's name such as X-Tenant")
"""A token as in RFC 9110, section 5.6.2."""


def secret(value: object) -> Secret:
    """Read a password."""
    return Secret(text(value))


def token(value: object) -> Secret:
    """Read a bearer token: printable ASCII without blanks."""
    if not _TOKEN.fullmatch(text(value)):
        raise ValueError("expected printable ASCII characters without blanks or line breaks")
    return secret(value)


def header_value(value: object) -> Secret:
    """Read the value of an HTTP header; it may be a credential, so it is a secret."""
    if not _HEADER_VALUE.fullmatch(text(value)):
        raise ValueError("expected printable ASCII characters without line breaks, and no blank at either end")
    return secret(value)


def username(value: object) -> str:
    """Read the user of HTTP basic authentication, which cannot contain a colon (RFC 7617)."""
    given = text(value)
    if ":" in given:
        raise ValueError("a user name cannot contain ':'; the password has a key of its own")
    return given


def path(value: object) -> Path:
    """Read the name of a file."""
    given = text(value)
    if "\0" in given:
        raise ValueError("the name of a file cannot contain a zero byte")
    return Path(given)


def flag(value: object) -> bool:
    """Read true or false; quotes make a string of it, but an environment variable has nothing else."""
    if isinstance(value, FromEnvironment) and value in ("true", "false"):
        return value == "true"
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false (without quotes), got {shown(value)}")
    return value


def whole_number(low: int, high: int) -> Reader:
    """Make the reader of a whole number in low..high."""

    def read(value: object) -> int:
        number = value
        if isinstance(value, FromEnvironment) and re.fullmatch("-?[0-9]{1,18}", value):
            number = int(value)
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError(f"expected a whole number, got {shown(value)}")
        if not low <= number <= high:
            raise ValueError(f"must be in {low}..{high}, got {shown(value)}")
        return number

    return read


def share(value: object) -> float:
    """Read a part of a whole, such as 0.01 for 1 %; an environment variable may hold it too."""
    number = value
    if isinstance(value, FromEnvironment) and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
        number = float(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError(f"expected a number such as 0.01, got {shown(value)}")
    if not 0.0001 <= number <= 1:
        raise ValueError(f"must be in 0.0001..1, got {shown(value)}")
    return float(number)


def seconds(value: object) -> float:
    """Read a duration such as 250ms, 5s or 1m30s; the number alone is refused, as it hides its unit.

    An environment variable may hold the number alone, in seconds: other programs may read it too.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"a duration needs a unit: write {value}s (or ms, m, h), not {value}")
    if isinstance(value, FromEnvironment) and re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", value):
        return float(value)
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None or not value:
        raise ValueError(f"expected a duration such as 5s or 250ms, got {shown(value)}")
    return sum(float(number) * _UNITS[unit] for unit, number in match.groupdict().items() if number)


def duration(low: str, high: str) -> Reader:
    """Make the reader of a duration in low..high, which are durations as they are written."""

    def read(value: object) -> float:
        number = seconds(value)
        if not seconds(low) <= number <= seconds(high):
            raise ValueError(f"must be in {low}..{high}, got {shown(value)}")
        return number

    return read


def one_of(*choices: str) -> Reader:
    """Make the reader of one of a few words."""

    def read(value: object) -> str:
        if value not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}, got {shown(value)}")
        return str(value)

    return read


def url(value: object) -> str:
    """Read a server's URL and return it without a slash at its end.

    Whatever may hold a credential is refused without being shown.
    """
    given = text(value)
    if not _PRINTABLE.fullmatch(given):
        raise ValueError("expected printable ASCII characters without blanks or line breaks")
    if "@" in given:
        raise ValueError("credentials do not belong in a URL; set basic_auth in the configuration file")
    if "?" in given or "#" in given:
        raise ValueError("a base URL ends before '?' and '#'; remove what follows")
    scheme, separator, _ = given.partition("://")
    if not separator:
        raise ValueError(f"expected a URL such as 'http://localhost:8000', got {shown(value)}; put http:// first")
    if scheme.lower() not in ("http", "https"):
        raise ValueError(f"expected http:// or https://, got {shown(value)}")
    try:
        parts = urlsplit(given)
        hostname, port = parts.hostname or "", parts.port
    except ValueError:
        hostname, port = "", None
    if not _is_host(hostname) or port == 0:
        raise ValueError(f"expected a host and a port in 1..65535, got {shown(value)}")
    authority = (f"[{hostname}]" if ":" in hostname else hostname) + ("" if port is None else f":{port}")
    return f"{parts.scheme}://{authority}{parts.path.rstrip('/')}"


def without_credentials(given: str) -> str:
    """Return what may be a URL without the user and password that it may hold, to be shown."""
    return re.sub(r"^(\w+://)?.*@", r"\1", given)


def base_url(given: str, metrics_path: str) -> str:
    """Return a URL that was read by `url` without the metrics path or `/v1` that people paste along."""
    parts = urlsplit(given)
    for suffix in (metrics_path.rstrip("/"), "/v1"):
        if suffix and parts.path.endswith(suffix):
            return f"{parts.scheme}://{parts.netloc}{parts.path.removesuffix(suffix).rstrip('/')}"
    return given


def host_and_port(given: str) -> str:
    """Return `host:port` of a URL that was read by `url`, an IPv6 address without its brackets."""
    parts = urlsplit(given)
    return f"{parts.hostname}:{parts.port or {'http': 80, 'https': 443}[parts.scheme]}"


def address(value: object) -> tuple[str, int]:
    """Read ADDR:PORT such as 127.0.0.1:10434, [::1]:10434 or :10434, which is all addresses (an empty host).

    Port 0 is a free port of the system's choice.
    """
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"expected ADDR:PORT such as 127.0.0.1:10434, [::1]:10434 or :10434, got {shown(value)}")
    return match["v6"] or match["host"] or "", int(match["port"])
