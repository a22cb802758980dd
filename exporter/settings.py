"""Settings as frozen dataclasses: the fields are the keys of the YAML file, and each names its reader."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from exporter import values
from exporter.values import ListOf, MappingOf, Secret

DEFAULT_METRICS_PATH = "/metrics"
BACKENDS = ("auto", "vllm", "ollama")


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
    """How a target is probed; times are in seconds, and no `models` means whatever is loaded."""

    enabled: Annotated[bool, values.flag] = True
    interval: Annotated[float, values.duration("1s", "24h")] = 60.0
    timeout: Annotated[float, values.duration("1s", "10m")] = 60.0
    first_token_timeout: Annotated[float, values.duration("100ms", "10m")] = 30.0
    max_tokens: Annotated[int, values.whole_number(1, 4096)] = 32
    models: Annotated[tuple[str, ...], ListOf(values.text)] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """One server: `url` is its base, without a trailing slash; `timeout` is in seconds.

    At most one of `bearer_token`, `bearer_token_file` and `basic_auth` is set.
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


@dataclass(frozen=True, slots=True)
class Listen:
    """The address the exporter serves on; an empty `host` is all addresses."""

    host: str
    port: int


DEFAULT_LISTEN = Listen("127.0.0.1", 10434)


@dataclass(frozen=True, slots=True)
class Config:
    """All settings; `discovered` says that the targets are candidates to look for, not configured ones."""

    listen: Listen
    targets: tuple[Target, ...]
    discovered: bool = False
