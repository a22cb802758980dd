"""From a YAML file or the environment to settings; all mistakes are reported at once, each with its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from exporter import values
from exporter.physics.keys import read_model_config
from exporter.reading import BAD, Keys, Reading, build, merge
from exporter.settings import (
    BACKENDS,
    DEFAULT_LISTEN,
    DEFAULT_METRICS_PATH,
    PROBE_DIALECTS,
    BasicAuth,
    Config,
    Listen,
    ProbeSettings,
    ProxySettings,
    Target,
    Tls,
    parse_listen,
)
from exporter.values import Secret
from exporter.yamlfile import YamlError, read_yaml

__all__ = [
    "BACKENDS",
    "DEFAULT_LISTEN",
    "PROBE_DIALECTS",
    "BasicAuth",
    "Config",
    "ConfigError",
    "Listen",
    "ProbeSettings",
    "ProxySettings",
    "Secret",
    "Target",
    "Tls",
    "load",
    "load_one",
    "parse_listen",
]

_USUAL_PORTS = {"vllm": 8000, "ollama": 11434}
_HERE = ("127.0.0.1", "")
_DOCKER_HOST = ("host.docker.internal", "-host")
"""Where to look, and what the name of a target there ends in."""

_PROXY_LISTEN = "OLLAMA_PROXY_LISTEN"
_PROXY_VARIABLES: Mapping[str, tuple[str, values.Reader]] = {
    "listen": (_PROXY_LISTEN, parse_listen),
    "slots": ("OLLAMA_NUM_PARALLEL", values.whole_number(1, 4096)),
    "only": ("OLLAMA_PROXY_ONLY", values.flag),
}

_EVERYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, not listened on
_LOCAL = ("127.0.0.1", "localhost", "::1")


class ConfigError(Exception):
    """All the mistakes of a configuration, each one line that begins with its place."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def load(path: Path | None, environ: Mapping[str, str], in_container: bool) -> Config:
    """Read the settings from the file, or without one from VLLM_URL, OLLAMA_URL, VLLM_API_KEY and PROBE_MODELS.

    OLLAMA_PROXY_LISTEN puts a proxy in front of the Ollama, with OLLAMA_NUM_PARALLEL and OLLAMA_PROXY_ONLY.
    With neither URL, the targets are where a vLLM and an Ollama usually listen (`discovered`).
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


def load_one(which: str, path: Path | None, environ: Mapping[str, str]) -> Target:
    """Return the target that a URL is, or that the file gives this name or URL; raise ConfigError.

    A URL that is in no file has VLLM_API_KEY for its bearer token, if that is set.
    """
    if path is not None:
        for target in load(path, environ, in_container=False).targets:
            if which in (target.name, target.url):
                return target
    try:
        url = values.base_url(values.url(which), DEFAULT_METRICS_PATH)
        key = environ.get("VLLM_API_KEY", "").strip()
        return Target(values.host_and_port(url), url, bearer_token=values.token(key) if key else None)
    except ValueError as error:
        raise ConfigError([f"{values.without_credentials(which)}: {error}"]) from None


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
    taken = {} if listen is BAD else {"listen": listen}
    targets = []
    for index, item in enumerate(items):
        path = f"targets[{index}]"
        own = reading.section(Target, item, path)
        if own is BAD:
            continue
        keys = merge({} if defaults is BAD else defaults, own)
        _complete(keys)
        reading.require(Target, keys, path)
        if defaults is not BAD:  # What excludes or needs each other may be in there.
            _check(keys, path, reading)
        name = keys["name"]
        if name is not BAD and paths.setdefault(name, path) != path:
            reading.problem(f"{path}.name", f"{name!r} is also the name of {paths[name]}; give each its own")
        _check_proxy(keys, path, reading, taken)
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
    """Report what excludes or needs each other in one target."""
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
    _check_probe(keys, path, reading)
    if keys.get("device") is not None and keys.get("memory_bandwidth_gb_s") is not None:
        reading.problem(path, "device and memory_bandwidth_gb_s exclude each other; keep one of them")
    model = keys.get("model_config")
    if isinstance(model, Path):  # Its text is kept, so that a reload sees that the file has changed.
        keys["model_config"] = reading.value(lambda _: read_model_config(model), model, f"{path}.model_config")
    for one, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
        if tls.get(one) is not None and tls.get(other) is None:
            reading.problem(f"{path}.tls.{other}", f"missing; {one} needs it (one file may hold both)")


def _check_probe(keys: Keys, path: str, reading: Reading) -> None:
    probe = _section(keys, "probe")
    kinds, dialect = probe.get("kinds"), probe.get("dialect")
    if isinstance(kinds, tuple) and BAD not in kinds and not {"small", "large"} & set(kinds):
        reading.problem(f"{path}.probe.kinds", "needs small or large; cached only repeats the prompt before it")
    if probe.get("load") is True and not probe.get("models"):
        reading.problem(f"{path}.probe.load", "true needs probe.models: which ones may be loaded?")
    if (
        isinstance(dialect, str)
        and dialect.startswith("ollama_")
        and keys.get("backend") not in (None, "auto", "ollama")
    ):
        reading.problem(f"{path}.probe.dialect", f"{dialect} is Ollama's, and backend is {keys['backend']}")


def _check_proxy(keys: Keys, path: str, reading: Reading, taken: dict[str, Listen]) -> None:
    """Report a proxy whose address something else has: `taken` names who, and gets this one too."""
    listen, url = _section(keys, "proxy").get("listen"), keys.get("url")
    if not isinstance(listen, Listen):
        return
    place = f"{path}.proxy.listen"
    for other, address in taken.items():
        if _same_address(listen, address):
            reading.problem(place, f"{_shown(listen)} is also the address of {other}; give each its own")
    if isinstance(url, str) and values.host_and_port(url) in {
        f"{host}:{listen.port}" for host in (listen.host, *_LOCAL)
    }:
        reading.problem(place, f"{_shown(listen)} is where the target itself is; choose another port")
    taken[place] = listen


def _same_address(one: Listen, other: Listen) -> bool:
    """Return whether two cannot be listened on at once; port 0 is a free one each time."""
    everywhere = not {one.host, other.host}.isdisjoint(_EVERYWHERE)
    return one.port == other.port != 0 and (one.host == other.host or everywhere)


def _shown(listen: Listen) -> str:
    return f"[{listen.host}]:{listen.port}" if ":" in listen.host else f"{listen.host}:{listen.port}"


def _section(keys: Keys, key: str) -> Keys:
    section = keys.get(key)
    return section if isinstance(section, dict) else {}


def _from_environment(environ: Mapping[str, str], in_container: bool) -> Config:
    problems: list[str] = []
    models = tuple(model for item in environ.get("PROBE_MODELS", "").split(",") if (model := item.strip()))
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
            targets[name] = _bare_target(name, url, backend, token, models)
    if environ.get(_PROXY_LISTEN):
        _put_proxy(environ, targets, in_container, problems)
    if problems:
        raise ConfigError(problems)
    return Config(DEFAULT_LISTEN, tuple(targets.values())) if targets else _discover(token, models, in_container)


def _put_proxy(environ: Mapping[str, str], targets: dict[str, Target], in_container: bool, problems: list[str]) -> None:
    """Put the proxy of OLLAMA_PROXY_LISTEN in front of the one Ollama there is, the usual one if none is given."""
    found = [target for target in targets.values() if target.backend == "ollama"] or [_usual_ollama(in_container)]
    if len(found) > 1:
        problems.append(f"{_PROXY_LISTEN}: which of several? One Ollama, or a configuration file with a proxy for each")
    keys: dict[str, Any] = {}
    for key, (variable, read) in _PROXY_VARIABLES.items():
        if given := environ.get(variable, "").strip():
            try:
                keys[key] = read(values.FromEnvironment(given, f"${{{variable}}}"))
            except ValueError as error:
                problems.append(f"{variable}: {error}")
    targets[found[0].name] = replace(found[0], proxy=ProxySettings(**keys))


def _usual_ollama(in_container: bool) -> Target:
    host, suffix = _DOCKER_HOST if in_container else _HERE
    return _bare_target(f"ollama{suffix}", f"http://{host}:{_USUAL_PORTS['ollama']}", "ollama", None, ())


def _discover(token: Secret | None, models: tuple[str, ...], in_container: bool) -> Config:
    candidates = tuple(
        _bare_target(backend + suffix, f"http://{host}:{port}", backend, token, models)
        for host, suffix in ((_HERE, _DOCKER_HOST) if in_container else (_HERE,))
        for backend, port in _USUAL_PORTS.items()
    )
    return Config(DEFAULT_LISTEN, candidates, discovered=True)


def _bare_target(name: str, url: str, backend: str, token: Secret | None, models: tuple[str, ...]) -> Target:
    key = token if backend == "vllm" else None
    return Target(name, url, backend, bearer_token=key, probe=ProbeSettings(models=models))
