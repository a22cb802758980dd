"""The table of devices and their published memory bandwidth, devices.yml, and how a name is found in it."""

from __future__ import annotations

import difflib
import functools
import re
from dataclasses import dataclass
from importlib import resources
from typing import Literal, get_args

import yaml

Memory = Literal["device", "host", "unified"]

_NOISE = re.compile(r"\((?:r|tm|c)\)|[^a-z0-9+]+|\b(?:nvidia|geforce|amd|intel|apple)\b")


@dataclass(frozen=True, slots=True)
class Device:
    """A device: `bandwidth` in bytes/s, where its memory is, and the vendor's page that says so."""

    name: str
    bandwidth: float
    memory: Memory
    source: str
    aliases: tuple[str, ...]

    @property
    def shares_host_memory(self) -> bool:
        """Whether what it does not hold itself, in RAM, is read at the same bandwidth."""
        return self.memory != "device"


def table() -> tuple[Device, ...]:
    """Return all devices in the file's order."""
    return tuple(dict.fromkeys(_by_key().values()))


def find(name: str) -> Device:
    """Return a device by its name or an alias; raise ValueError with the nearest names if there is none."""
    by_key = _by_key()
    key = _key(name)
    if key in by_key:
        return by_key[key]
    near = dict.fromkeys(by_key[close].name for close in difflib.get_close_matches(key, by_key, n=3, cutoff=0.5))
    remedy = f"did you mean {' or '.join(map(repr, near))}? If not, " if near else ""
    raise ValueError(f"no device is called {name!r}; {remedy}set memory_bandwidth_gb_s instead")


@functools.cache
def _by_key() -> dict[str, Device]:
    found: dict[str, Device] = {}
    text = resources.files(__package__).joinpath("devices.yml").read_text(encoding="utf-8")
    for name, row in yaml.safe_load(text).items():
        memory: Memory = row.get("memory", "device")
        if memory not in get_args(Memory):
            raise ValueError(f"devices.yml: {name}: memory is {memory!r}")
        device = Device(name, row["gb_s"] * 1e9, memory, row["source"], tuple(row.get("aliases", ())))
        for spelling in (name, *device.aliases):
            if found.setdefault(_key(spelling), device) is not device:
                raise ValueError(f"devices.yml: {spelling!r} is {name} and {found[_key(spelling)].name}")
    return found


def _key(name: str) -> str:
    """Return what makes two spellings one."""
    return " ".join(_NOISE.sub(" ", name.lower()).split())
