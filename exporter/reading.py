"""From what YAML holds to a section's values, as the fields of its dataclass say; problems are gathered."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from exporter import values
from exporter.values import FromEnvironment, ListOf, MappingOf, Reader

Keys = dict[str, Any]
"""What was given of a section: values as read, Keys for a section in it, None for null, or BAD."""

BAD = object()
"""Stands for a value that has been reported, so that it is not reported again as missing."""

_VARIABLE = re.compile(r"\$\$|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}|\$\{")
_KeyReader = Reader | ListOf | MappingOf | type


class Reading:
    """One pass over a document: `problems` has a line for each mistake, which begins with its dotted path."""

    def __init__(self, environ: Mapping[str, str], directory: Path) -> None:
        self.problems: list[str] = []
        self._environ = environ
        self._directory = directory

    def problem(self, path: str, message: object) -> object:
        """Note a mistake and return BAD."""
        place = path if path.isprintable() else ascii(path)
        self.problems.append(f"{place}: {message}")
        return BAD

    def refuse_unknown(self, given: Mapping[Any, Any], allowed: Iterable[str], prefix: str) -> None:
        """Report each key that is not allowed, with the one that was meant or else all that are."""
        allowed = tuple(allowed)
        for key in given:
            if key not in allowed:
                near = difflib.get_close_matches(str(key), allowed, n=1)
                remedy = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(allowed)}"
                self.problem(f"{prefix}{key}", f"unknown key; {remedy}")

    def require(self, section: type, keys: Keys, path: str) -> None:
        """Report each key of the section that has no default and is not given."""
        for field in dataclasses.fields(section):
            if field.default is dataclasses.MISSING and keys.get(field.name) is None:
                self.problem(f"{path}.{field.name}", "missing; it has no default")

    def section(self, section: type, given: object, path: str, without: tuple[str, ...] = ()) -> Any:
        """Return the Keys of a section, or BAD where it is not a mapping."""
        if not isinstance(given, dict):
            return self.problem(path, f"expected a mapping, got {values.kind(given)}")
        readers = {key: reader for key, reader in _readers(section).items() if key not in without}
        self.refuse_unknown(given, readers, f"{path}.")
        return {key: self._key(readers[key], given[key], f"{path}.{key}") for key in given if key in readers}

    def value(self, reader: Reader, given: object, path: str) -> Any:
        """Return one value as read, or BAD; a file's name is relative to the document's directory."""
        try:
            value = reader(self._fill_in(given) if isinstance(given, str) else given)
        except ValueError as error:
            return self.problem(path, error)
        return self._directory / value if isinstance(value, Path) else value

    def _key(self, reader: _KeyReader, given: object, path: str) -> Any:
        if given is None:
            return None
        if isinstance(reader, type):
            return self.section(reader, given, path)
        if isinstance(reader, MappingOf):
            return self._mapping(reader, given, path)
        if isinstance(reader, ListOf):
            return self._list(reader, given, path)
        return self.value(reader, given, path)

    def _list(self, reader: ListOf, given: object, path: str) -> Any:
        if not isinstance(given, list):
            return self.problem(path, f"expected a list, got {values.kind(given)}")
        return tuple(self.value(reader.item, item, f"{path}[{index}]") for index, item in enumerate(given))

    def _mapping(self, reader: MappingOf, given: object, path: str) -> Any:
        if not isinstance(given, dict):
            return self.problem(path, f"expected a mapping, got {values.kind(given)}")
        entries: Keys = {}
        for key, item in given.items():
            try:
                name = reader.key(key)
            except ValueError as error:
                self.problem(f"{path}.{key}", error)
                continue
            if name.lower() in entries:
                self.problem(f"{path}.{key}", "given twice, as case makes no difference; keep one")
            value = None if item is None else self.value(reader.value, item, f"{path}.{key}")
            entries[name.lower()] = None if value is None else (name, value)
        return entries

    def _fill_in(self, template: str) -> str:
        """Replace ${NAME} by what the environment has and $$ by $."""

        def replace(match: re.Match[str]) -> str:
            name = match["name"]
            if name is None and match[0] != "$$":
                raise ValueError("${ begins the name of an environment variable as in ${NAME}; write $${ for the text")
            if name is not None and name not in self._environ:
                raise ValueError(f"the environment variable {name} is not set")
            return "$" if name is None else self._environ[name]

        filled = _VARIABLE.sub(replace, template)
        has_variable = any(match["name"] for match in _VARIABLE.finditer(template))
        return FromEnvironment(filled, template) if has_variable else filled


def merge(defaults: Keys, own: Keys) -> Keys:
    """Return the defaults with what a target gives itself, section by section, key by key."""
    merged = dict(defaults)
    for key, value in own.items():
        default = merged.get(key)
        merged[key] = merge(default, value) if isinstance(default, dict) and isinstance(value, dict) else value
    return merged


def build(section: Any, keys: Keys) -> Any:
    """Return the dataclass `section` of keys that were read without a problem."""
    arguments = {}
    for key, reader in _readers(section).items():
        value = keys.get(key)
        if value is None:
            continue
        if isinstance(reader, MappingOf):
            value = tuple(entry for entry in value.values() if entry is not None)
        elif isinstance(reader, type):
            value = build(reader, value)
        arguments[key] = value
    return section(**arguments)


def _readers(section: type) -> dict[str, _KeyReader]:
    """Return the reader of each key, or the dataclass of a section in it."""
    return {
        key: hint.__metadata__[0] if get_origin(hint) is Annotated else (get_args(hint) or (hint,))[0]
        for key, hint in get_type_hints(section, include_extras=True).items()
    }
