"""Readers for the keys of a target that say what it runs on."""

from __future__ import annotations

import json
import re
from pathlib import Path

from exporter import values
from exporter.physics import devices, kv
from exporter.values import FromEnvironment, Reader


def device(value: object) -> str:
    """Read a device's name or alias and return its name in devices.yml."""
    return devices.find(values.text(value)).name


def number(low: float, high: float, what: str) -> Reader:
    """Make the reader of a number in low..high."""

    def read(value: object) -> float:
        given = value
        if isinstance(value, FromEnvironment) and re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,9})?", value):
            given = float(value)
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise ValueError(f"expected {what}, got {values.shown(value)}")
        if not low <= given <= high:
            raise ValueError(f"must be in {low:g}..{high:g}, got {values.shown(value)}")
        return float(given)

    return read


gb_per_second = number(0.1, 1e6, "a number of GB/s such as 1008")
size_bytes = number(1e3, 1e15, "a number of bytes such as 16.06e9")


def model_config(value: object) -> Path | str:
    """Read a model's config.json: its path, or its text (JSON, or the same as YAML), which is returned as JSON."""
    if isinstance(value, dict):
        value = json.dumps(value)
    given = values.text(value)
    return checked_config(given) if given.lstrip().startswith("{") else values.path(given)


def read_model_config(path: Path) -> str:
    """Return a config.json's text; raise ValueError if it cannot be used."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    return checked_config(text)


def checked_config(text: str) -> str:
    """Return a config.json's text; raise ValueError if it is none.

    A shape that is not understood is no mistake of the file's: /debug/TARGET says so.
    """
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("expected a path, or the text of a config.json; this is no valid JSON") from None
    if not isinstance(config, dict) or not {"num_hidden_layers", "n_layer", "text_config"} & config.keys():
        raise ValueError("expected a model's config.json, which has num_hidden_layers")
    return text


cache_type = values.one_of("auto", *kv.ELEMENT_BYTES)
