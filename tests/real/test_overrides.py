"""The examples in deploy/compose: each reaches a server of the kind that it is for."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.conftest import FIXTURES
from tests.peers import server_tls
from tests.real import hosts
from tests.real.stack import IMAGE, Stack, docker, run, services, stack

pytestmark = pytest.mark.timeout(900)

BASE = "docker-compose.yml"


@pytest.fixture(scope="module", autouse=True)
def _image() -> None:
    services()
    docker("build", "-q", "-t", IMAGE, ".")


@contextmanager
def vllm_in_docker(*options: str) -> Iterator[str]:
    """Run a simulated vLLM in a container and yield its name."""
    name = f"llm-vitals-test-{uuid.uuid4()}"
    serve = ("simulate", "--vllm", "0.0.0.0:8000", "--ollama", "off")
    docker("run", "--detach", "--name", name, *options, IMAGE, *serve)
    try:
        yield name
    finally:
        docker("rm", "--force", name)


@contextmanager
def network(name: str) -> Iterator[None]:
    """Have a network of that name; one that was there before is left alone."""
    made = run(["docker", "network", "create", name]).returncode == 0
    try:
        yield
    finally:
        if made:
            docker("network", "rm", name)


def found(stack: Stack) -> bool:
    return "\nok   vllm" in "\n" + stack.typed("docker compose exec exporter llm-vitals check")


def test_a_server_of_another_compose_file_is_found_on_the_shared_network() -> None:
    with (
        network("llm"),
        vllm_in_docker("--network", "llm", "--network-alias", "vllm"),
        stack("llm-vitals-test-shared", BASE, "deploy/compose/shared-network.yml") as made,
    ):
        made.up("exporter")
        assert found(made)


def test_a_server_in_a_container_of_this_host_is_found_in_the_exporters_network() -> None:
    with (
        vllm_in_docker() as name,
        stack("llm-vitals-test-same-host", BASE, "deploy/compose/same-host.yml") as made,
    ):
        made.up("exporter")
        docker("network", "connect", "--alias", "vllm", f"{made.project}_default", name)
        try:
            assert found(made)
        finally:
            docker("network", "disconnect", f"{made.project}_default", name)


def test_a_remote_server_behind_tls_with_a_ca_and_a_key_is_read(tmp_path: Path) -> None:
    # The name in the certificate leads to this host, and config/ is a folder of the test's.
    (tmp_path / "config").mkdir()
    (tmp_path / "config/ca.pem").write_bytes((FIXTURES / "tls/ca.pem").read_bytes())
    for path in (tmp_path, tmp_path / "config"):
        path.chmod(0o755)
    here = {"extra_hosts": ["llm.test:host-gateway"], "volumes": [f"{tmp_path}/config:/etc/llm-vitals:ro"]}
    (tmp_path / "here.yml").write_text(yaml.safe_dump({"services": {"exporter": here}}))
    files = (BASE, "deploy/compose/remote-tls.yml", str(tmp_path / "here.yml"))
    with (
        hosts.vllm("simulated", hosts.LOOPBACK, tmp_path) as port,
        hosts.gate(port, server_tls()) as guarded,
        stack("llm-vitals-test-tls", *files) as made,
    ):
        made.up("exporter", VLLM_URL=f"https://llm.test:{guarded}", VLLM_API_KEY=hosts.KEY)
        assert found(made)
        (tmp_path / "config/ca.pem").write_bytes(b"")
        said = made.typed("docker compose exec exporter llm-vitals check", check=False)
        assert said.startswith("FAIL vllm") and "ca_file" in said
