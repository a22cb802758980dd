"""The proxy by environment variables, and as a service of docker-compose.yml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter.config import ConfigError, load
from exporter.settings import Listen, ProxySettings
from tests.test_deploy import interpolate

ROOT = Path(__file__).resolve().parent.parent
COMPOSE: Any = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICE: Any = COMPOSE["services"]["proxy"]


def test_the_service_runs_only_where_it_is_asked_for_and_is_reachable_from_this_machine_alone() -> None:
    assert SERVICE["profiles"] == ["proxy"]
    assert interpolate(SERVICE["ports"][0], {}) == "127.0.0.1:11435:11435"


@pytest.mark.parametrize(
    ("given", "name", "url"),
    [
        ({}, "ollama-host", "http://host.docker.internal:11434"),
        ({"OLLAMA_URL": "http://box:1"}, "ollama", "http://box:1"),
    ],
)
def test_the_service_and_the_exporter_call_the_server_by_one_name(given: dict[str, str], name: str, url: str) -> None:
    environ = {key: interpolate(value, given) for key, value in SERVICE["environment"].items()}
    (target,) = load(None, environ, in_container=True).targets
    assert (target.name, target.url) == (name, url)
    assert target.proxy == ProxySettings(Listen("0.0.0.0", 11435), slots=1, only=True)
    assert (name, url) in {(t.name, t.url) for t in load(None, given, in_container=True).targets}


def test_the_environment_puts_a_proxy_before_the_usual_ollama_and_leaves_the_rest() -> None:
    environ = {"OLLAMA_PROXY_LISTEN": ":11435", "OLLAMA_NUM_PARALLEL": "4", "VLLM_URL": "http://v:8000"}
    vllm, ollama = load(None, environ, in_container=False).targets
    assert vllm.proxy == ProxySettings()
    assert (ollama.name, ollama.url) == ("ollama", "http://127.0.0.1:11434")
    assert ollama.proxy == ProxySettings(Listen("", 11435), slots=4)


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"OLLAMA_PROXY_LISTEN": "11435"}, "OLLAMA_PROXY_LISTEN: expected ADDR:PORT such as 127.0.0.1:10434, "
         "[::1]:10434 or :10434, got the value of '${OLLAMA_PROXY_LISTEN}'"),
        ({"OLLAMA_PROXY_LISTEN": ":1", "OLLAMA_NUM_PARALLEL": "0"},
         "OLLAMA_NUM_PARALLEL: must be in 1..4096, got the value of '${OLLAMA_NUM_PARALLEL}'"),
        ({"OLLAMA_PROXY_LISTEN": ":1", "OLLAMA_URL": "http://a,http://b"},
         "OLLAMA_PROXY_LISTEN: which of several? One Ollama, or a configuration file with a proxy for each"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_variable_names_it(environ: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, environ, in_container=False)
    assert caught.value.problems == (problem,)
