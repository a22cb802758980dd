"""Settings as frozen dataclasses: the fields are the keys of the YAML file, and each names its reader."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from exporter import values
from exporter.physics import keys
from exporter.values import ListOf, MappingOf, Secret

DEFAULT_METRICS_PATH = "/metrics"
BACKENDS = ("auto", "vllm", "ollama", "openai")
PROBE_KINDS = ("small", "large", "cached")
PROBE_DIALECTS = ("auto", "ollama_generate", "ollama_chat", "openai_completions", "openai_chat")


@dataclass(frozen=True, slots=True)
class BasicAuth:
    """HTTP basic authentication (RFC 7617): exactly one of `password` and `password_file` is set."""

    username: Annotated[str, values.username]
    password: Annotated[Secret | None, values.secret] = None
    password_file: Annotated[Path | None, values.path] = None


@dataclass(frozen=True, slots=True)
class Tls:
    """How an https target is verified, and the client certificate it is shown (PEM files)."""

    ca_file: Annotated[Path | None, values.path] = None
    cert_file: Annotated[Path | None, values.path] = None
    key_file: Annotated[Path | None, values.path] = None
    server_name: Annotated[str | None, values.host] = None
    insecure_skip_verify: Annotated[bool, values.flag] = False


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """How a target is probed; times are in seconds, and no `models` means whatever is loaded or served.

    `load`: whether models that nobody has loaded are loaded for a probe.  `max_share`: the part of the server's
    time, 0 to 1, that probes take at most.
    """

    enabled: Annotated[bool, values.flag] = True
    interval: Annotated[float, values.duration("1s", "24h")] = 60.0
    timeout: Annotated[float, values.duration("1s", "10m")] = 60.0
    first_token_timeout: Annotated[float, values.duration("100ms", "10m")] = 30.0
    max_tokens: Annotated[int, values.whole_number(1, 4096)] = 32
    models: Annotated[tuple[str, ...], ListOf(values.text)] = ()
    kinds: Annotated[tuple[str, ...], ListOf(values.one_of(*PROBE_KINDS))] = PROBE_KINDS
    dialect: Annotated[str, values.one_of(*PROBE_DIALECTS)] = "auto"
    load: Annotated[bool, values.flag] = False
    max_share: Annotated[float, values.share] = 0.01


@dataclass(frozen=True, slots=True)
class Listen:
    """An address to serve on; an empty `host` is all addresses."""

    host: str
    port: int


def parse_listen(value: object) -> Listen:
    """Return the address of ADDR:PORT, [::1]:PORT or :PORT (all addresses); raise ValueError."""
    return Listen(*values.address(value))


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """Where a proxy in front of the target listens, if it has one; `slots` requests of a model run at once.

    `context_length`: tokens of one slot's context, for models whose server does not tell it.
    `only`: what passes through is all that is exported; the server is not probed, and read only to know its models.
    """

    listen: Annotated[Listen | None, parse_listen] = None
    slots: Annotated[int, values.whole_number(1, 4096)] = 1
    context_length: Annotated[int | None, values.whole_number(1, 2**30)] = None
    only: Annotated[bool, values.flag] = False


@dataclass(frozen=True, slots=True)
class Target:
    """One server: `url` is its base, without a trailing slash; `timeout` is in seconds.

    At most one of `bearer_token`, `bearer_token_file` and `basic_auth` is set.  What it runs on: `devices` of a kind
    `device` hold one copy of the model; sizes are in bytes, bandwidths in 10^9 bytes/s, and `model_config` is the
    text of a config.json.
    """

    name: Annotated[str, values.name]
    url: Annotated[str, values.url]
    backend: Annotated[str, values.one_of(*BACKENDS)] = "auto"
    metrics_path: Annotated[str, values.url_path] = DEFAULT_METRICS_PATH
    timeout: Annotated[float, values.duration("100ms", "5m")] = 5.0
    headers: Annotated[tuple[tuple[str, Secret], ...], MappingOf(values.header_name, values.header_value)] = ()
    bearer_token: Annotated[Secret | None, values.token] = None
    bearer_token_file: Annotated[Path | None, values.path] = None
    basic_auth: BasicAuth | None = None
    tls: Tls = Tls()
    probe: ProbeSettings = ProbeSettings()
    proxy: ProxySettings = ProxySettings()
    device: Annotated[str | None, keys.device] = None
    devices: Annotated[int, values.whole_number(1, 1024)] = 1
    memory_bandwidth_gb_s: Annotated[float | None, keys.gb_per_second] = None
    host_memory_bandwidth_gb_s: Annotated[float | None, keys.gb_per_second] = None
    weight_bytes: Annotated[float | None, keys.size_bytes] = None
    active_weight_bytes: Annotated[float | None, keys.size_bytes] = None
    model_config: Annotated[str | None, keys.model_config] = None
    kv_cache_type: Annotated[str, keys.cache_type] = "auto"


DEFAULT_LISTEN = Listen("127.0.0.1", 10434)


@dataclass(frozen=True, slots=True)
class Config:
    """All settings; `discovered` says that the targets are candidates to look for, not configured ones."""

    listen: Listen
    targets: tuple[Target, ...]
    discovered: bool = False
