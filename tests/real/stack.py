"""docker-compose.yml as somebody runs it, in a Compose project of its own on free ports."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.real.servers import free_port

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "llm-vitals:local"
LIMIT = 600
"""Seconds for one docker command; the longest builds the image."""


def services() -> list[str]:
    """Return the services whose images can be had here; skip the test if there is no Docker."""
    given = os.environ.get("VITALS_DOCKER", "").split()
    if not given:
        pytest.skip("VITALS_DOCKER does not name the services of docker-compose.yml whose images can be had")
    return given


def docker(*arguments: str) -> str:
    """Run docker and return its output; AssertionError with all of it if it fails."""
    done = run(["docker", *arguments])
    assert done.returncode == 0, f"{' '.join(arguments)}:\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


def run(command: Sequence[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=LIMIT
    )


class Stack:
    """A running project; `settings` are what a user puts into .env."""

    def __init__(self, project: str, *files: str) -> None:
        self.project = project
        self.files = files
        self.ports = {
            name: free_port() for name in ("EXPORTER", "PROMETHEUS", "GRAFANA", "ALERTMANAGER", "PROXY", "DEMO")
        }
        self.settings: dict[str, str] = {}

    def typed(self, command: str, *more: str, check: bool = True) -> str:
        """Run a `docker compose` command as it was typed, but in this project; return stdout and stderr."""
        before, after = command.split()[:2], command.split()[2:]
        assert before == ["docker", "compose"]
        chosen = [word for file in self.files for word in ("-f", file)]
        ports = {f"{name}_PORT": str(port) for name, port in self.ports.items()}
        # An .env of whoever runs the tests has no say.
        line = [*before, "-p", self.project, "--env-file", "/dev/null", *chosen, *after, *more]
        done = run(line, ports | self.settings)
        assert not check or done.returncode == 0, f"{' '.join(line)}:\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def up(self, *names: str, **settings: str) -> None:
        """Start services with these settings and wait until all are healthy."""
        self.settings = settings
        self.typed("docker compose up -d", "--wait", *(names or ("exporter", "prometheus")))

    def url(self, service: str) -> str:
        return f"http://127.0.0.1:{self.ports[service.upper()]}"

    def container(self, service: str) -> str:
        return self.typed("docker compose ps", "-q", service).strip()


@contextmanager
def stack(project: str, *files: str) -> Iterator[Stack]:
    """Yield a stack that is taken down, volumes and all, at the end; its logs go to the test's output."""
    made = Stack(project, *files)
    try:
        yield made
    finally:
        sys.stderr.write(made.typed("docker compose --profile * logs", "--tail", "30", check=False))
        made.typed("docker compose --profile * down", "-v", "--timeout", "5")
