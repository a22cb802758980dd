"""A YAML file read strictly: no key twice, and errors that give the place but no piece of the file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

_QUOTED = re.compile(r"""'<[a-z ]+>'|'\\?.'|(['"]).*?\1""")
"""What YAML's messages quote: a kind of token, one character, or else (group 1) a piece of the file."""


class YamlError(Exception):
    """A file that cannot be read, as one line that begins with its name and, where known, line and column."""


class _DuplicateKey(yaml.MarkedYAMLError):
    """A key that stands twice in one mapping."""


class _Loader(yaml.SafeLoader):
    """YAML's safe subset, in which a key may not stand twice and a date is a string."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the base class declares it so
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuse a second key of the same text; merged keys (<<) are not there yet."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _DuplicateKey(problem=f"duplicate key {key.value!r}", problem_mark=key.start_mark)
                seen.add(key.value)
        return node


def read_yaml(path: Path) -> object:
    """Return the one document of the file; raise YamlError."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise YamlError(f"{path}: cannot be read: {error.strerror}; check the path and its permissions") from None
    except UnicodeDecodeError as error:
        raise YamlError(f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8") from None
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        raise YamlError(f"{path}{_place(error.problem_mark)}: {_problem(error)}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlError(f"{path}:{line}: a control character, which YAML does not allow; remove it") from None
    except (ValueError, RecursionError):
        raise YamlError(f"{path}: a value does not fit its tag, or is nested too deeply") from None


def _place(mark: yaml.Mark | None) -> str:
    return "" if mark is None else f":{mark.line + 1}:{mark.column + 1}"


def _problem(error: yaml.MarkedYAMLError) -> str:
    if isinstance(error, _DuplicateKey):
        return f"{error.problem}; keep one"
    message = ", ".join(filter(None, (error.context, error.problem)))
    return "not YAML: " + _QUOTED.sub(lambda match: "..." if match[1] else match[0], message)
