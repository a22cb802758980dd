"""From a YAML file or the environment to settings; all mistakes are reported at once, each with its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from exporter import values
from exporter.reading import BAD, Keys, Reading, build, merge
from exporter.settings import (
    BACKENDS,
    DEFAULT_LISTEN,
    DEFAULT_METRICS_PATH,
    BasicAuth,
    Config,
    Listen,
    ProbeSettings,
    Target,
    Tls,
)
from exporter.values import Secret
from exporter.yamlfile import YamlError, read_yaml

__all__ = [
    "BACKENDS",
    "DEFAULT_LISTEN",
    "BasicAuth",
    "Config",
    "ConfigError",
    "Listen",
    "ProbeSettings",
    "Secret",
    "Target",
    "Tls",
    "load",
    "parse_listen",
]

_USUAL_PORTS = {"vllm": 8000, "ollama": 11434}
_HERE = ("127.0.0.1", "")
_DOCKER_HOST = ("host.docker.internal", "-host")
"""Where to look, and what the name of a target there ends in."""


class ConfigError(Exception):
    """All the mistakes of a configuration, each one line that begins with its place."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def parse_listen(value: object) -> Listen:
    """Return the address of ADDR:PORT, [::1]:PORT or :PORT (all addresses); raise ValueError."""
    return Listen(*values.address(value))


def load(path: Path | None, environ: Mapping[str, str], in_container: bool) -> Config:
    """Read the settings from the file, or without one from VLLM_URL, OLLAMA_URL and VLLM_API_KEY.

    With none of them, the targets are where a vLLM and an Ollama usually listen (`discovered`).
    File names in the file are relative to its directory.  Raise ConfigError with every mistake.
    """
    if path is None:
        return _from_environment(environ, in_container)
    try:
        document = read_yaml(path)
    except YamlError as error:
        raise ConfigError([str(error)]) from None
    if not isinstance(document, dict):
        raise ConfigError([f"{path}: expected a mapping with the key 'targets', got {values.kind(document)}"])
    return _from_document(document, Reading(environ, path.parent))


def _from_document(document: Mapping[Any, Any], reading: Reading) -> Config:
    reading.refuse_unknown(document, ("listen", "defaults", "targets"), "")
    address = document.get("listen")
    listen = DEFAULT_LISTEN if address is None else reading.value(parse_listen, address, "listen")
    given = document.get("defaults")
    defaults = {} if given is None else reading.section(Target, given, "defaults", without=("name", "url"))
    items = document.get("targets")
    if not isinstance(items, list) or not items:
        got = "an empty list" if items == [] else values.kind(items)
        reading.problem("targets", f"expected a list of at least one target, got {got}")
        items = []
    paths: dict[str, str] = {}
    targets = []
    for index, item in enumerate(items):
        path = f"targets[{index}]"
        own = reading.section(Target, item, path)
        if own is BAD or defaults is BAD:
            continue
        keys = merge(defaults, own)
        _complete(keys)
        _check(keys, path, reading)
        name = keys["name"]
        if name is not BAD and paths.setdefault(name, path) != path:
            reading.problem(f"{path}.name", f"{name!r} is also the name of {paths[name]}; give each its own")
        targets.append(keys)
    if reading.problems:
        raise ConfigError(reading.problems)
    return Config(listen, tuple(build(Target, keys) for keys in targets))


def _complete(keys: Keys) -> None:
    """Reduce the URL to its base, and name a target without a name after its host and port."""
    url = keys.get("url")
    if isinstance(url, str):
        metrics_path = keys.get("metrics_path") or DEFAULT_METRICS_PATH
        if metrics_path is not BAD:
            keys["url"] = url = values.base_url(url, metrics_path)
    if keys.get("name") is None:
        keys["name"] = values.host_and_port(url) if isinstance(url, str) else BAD


def _check(keys: Keys, path: str, reading: Reading) -> None:
    """Report what is missing and what excludes each other in one target."""
    reading.require(Target, keys, path)
    given = [key for key in ("bearer_token", "bearer_token_file", "basic_auth") if keys.get(key) is not None]
    if len(given) > 1:
        reading.problem(path, f"{' and '.join(given)} exclude each other; keep one of them")
    headers, basic_auth, tls = (_section(keys, key) for key in ("headers", "basic_auth", "tls"))
    if given and headers.get("authorization") is not None:
        reading.problem(f"{path}.headers", f"{given[0]} makes the header Authorization; keep one of them")
    if isinstance(keys.get("basic_auth"), dict):
        reading.require(BasicAuth, basic_auth, f"{path}.basic_auth")
        if (basic_auth.get("password") is None) == (basic_auth.get("password_file") is None):
            reading.problem(f"{path}.basic_auth", "expected exactly one of password and password_file")
    for one, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
        if tls.get(one) is not None and tls.get(other) is None:
            reading.problem(f"{path}.tls.{other}", f"missing; {one} needs it (one file may hold both)")


def _section(keys: Keys, key: str) -> Keys:
    section = keys.get(key)
    return section if isinstance(section, dict) else {}


def _from_environment(environ: Mapping[str, str], in_container: bool) -> Config:
    problems: list[str] = []
    token = None
    if key := environ.get("VLLM_API_KEY", "").strip():
        try:
            token = values.token(key)
        except ValueError as error:
            problems.append(f"VLLM_API_KEY: {error}")
    targets: dict[str, Target] = {}
    for backend in _USUAL_PORTS:
        variable = f"{backend.upper()}_URL"
        urls = [item.strip() for item in environ.get(variable, "").split(",") if item.strip()]
        for given in urls:
            try:
                url = values.base_url(values.url(given), DEFAULT_METRICS_PATH)
            except ValueError as error:
                problems.append(f"{variable}: {error}")
                continue
            name = backend if len(urls) == 1 else values.host_and_port(url)
            if name in targets:
                problems.append(f"{variable}: {name} is there twice; only a configuration file can name both")
            targets[name] = _bare_target(name, url, backend, token)
    if problems:
        raise ConfigError(problems)
    return Config(DEFAULT_LISTEN, tuple(targets.values())) if targets else _discover(token, in_container)


def _discover(token: Secret | None, in_container: bool) -> Config:
    candidates = tuple(
        _bare_target(backend + suffix, f"http://{host}:{port}", backend, token)
        for host, suffix in ((_HERE, _DOCKER_HOST) if in_container else (_HERE,))
        for backend, port in _USUAL_PORTS.items()
    )
    return Config(DEFAULT_LISTEN, candidates, discovered=True)


def _bare_target(name: str, url: str, backend: str, token: Secret | None) -> Target:
    return Target(name, url, backend, bearer_token=token if backend == "vllm" else None)
