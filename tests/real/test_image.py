"""The image: small, quick, without rights, and the same whenever it is built from the same sources."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from exporter import __version__
from tests.real.servers import wait_until
from tests.real.stack import docker, run, services

pytestmark = pytest.mark.timeout(1800)

BASE = "python:3.13-slim"
SHOW = """
cd /opt/llm-vitals
find . -printf '%p %M %U %G %T@ %l\\n' | sort
find . -type f | sort | xargs -d '\\n' sha256sum
"""
NARROW = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true")


@pytest.fixture(scope="module")
def image() -> str:
    services()
    docker("build", "-q", "-t", "llm-vitals:test", ".")
    return "llm-vitals:test"


@contextmanager
def container(image: str, *options: str) -> Iterator[str]:
    """Run the image without any right to spare and yield the container's id when it serves."""
    made = docker("run", "--detach", "--name", f"llm-vitals-{uuid.uuid4()}", *NARROW, *options, image)
    try:
        wait_until("it serves", lambda: "serving on" in logged(made), 30)
        yield made
    finally:
        docker("rm", "--force", made)


def logged(container: str) -> str:
    """Return the log with its times; Docker gives what a program writes to standard error there too."""
    done = run(["docker", "logs", "--timestamps", container])
    return done.stdout + done.stderr


def test_it_is_less_than_90_mb_over_its_base(image: str) -> None:
    [ours], [base] = (json.loads(docker("inspect", name)) for name in (image, BASE))
    assert ours["RootFS"]["Layers"][: len(base["RootFS"]["Layers"])] == base["RootFS"]["Layers"]
    assert ours["Size"] - base["Size"] < 90_000_000


def test_it_says_what_it_is_and_runs_as_a_user_that_is_not_root(image: str) -> None:
    [found] = json.loads(docker("inspect", image))
    config = found["Config"]
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    assert labels["title"] == "llm-vitals"
    assert labels["version"] == __version__
    assert labels["licenses"] == "Apache-2.0"
    assert {"description", "revision"} <= labels.keys()
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", config["User"])


def test_nothing_in_it_needs_a_shell(image: str) -> None:
    [found] = json.loads(docker("inspect", image))
    for words in (found["Config"]["Entrypoint"], found["Config"]["Cmd"], found["Config"]["Healthcheck"]["Test"][1:]):
        assert not {"sh", "/bin/sh", "bash"} & set(words)
    assert found["Config"]["Healthcheck"]["Test"][0] == "CMD"
    # An empty file in the shell's place: whatever started one would fail.
    with container(image, "--volume", "/dev/null:/bin/sh:ro", "--volume", "/dev/null:/usr/bin/sh:ro") as made:
        assert docker("exec", made, "llm-vitals", "check", "--self").startswith("ok ")


def test_its_start_takes_less_than_a_second_of_processor_time(image: str) -> None:
    # Not by the clock: that would measure what else the machine does. The best of three, since caches have to warm up.
    def once() -> float:
        with container(image) as made:
            times = "sum(map(int, open('/proc/1/stat').read().rpartition(')')[2].split()[11:13]))"
            ticks = docker("exec", made, "python", "-c", f"import os; print({times} / os.sysconf('SC_CLK_TCK'))")
            return float(ticks)

    assert min(once() for _ in range(3)) < 1.0


def test_its_health_check_sees_that_it_serves_and_that_it_does_not(image: str) -> None:
    with container(image, "--health-interval", "1s") as made:
        wait_until("it is healthy", lambda: health(made) == "healthy", 30)
        docker("kill", "--signal", "STOP", made)
        wait_until("it is not", lambda: health(made) == "unhealthy", 90)


def health(container: str) -> str:
    return docker("inspect", "--format", "{{.State.Health.Status}}", container)


def test_it_writes_nothing_to_its_disk_and_needs_no_rights(image: str) -> None:
    with container(image) as made:
        assert docker("diff", made) == ""
        status = docker("exec", made, "python", "-c", "print(open('/proc/1/status').read())")
        assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)


def test_it_ends_at_once_and_well_when_it_is_told_to(image: str) -> None:
    with container(image) as made:
        docker("stop", "--time", "5", made)
        assert docker("inspect", "--format", "{{.State.ExitCode}}", made) == "0"


def test_the_demo_runs_in_it(image: str) -> None:
    made = docker("run", "--detach", *NARROW, image, "demo")
    try:
        wait_until("it serves", lambda: "serving on" in logged(made), 30)
        read = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:10434/metrics').read().decode())"
        name = "vitals_kv_cache_usage_ratio{"
        wait_until("it has numbers", lambda: name in docker("exec", made, "python", "-c", read), 60)
    finally:
        docker("rm", "--force", made)


def test_built_again_from_the_same_sources_it_holds_the_same_files(image: str) -> None:
    def files() -> str:
        docker("build", "-q", "--no-cache", "-t", "llm-vitals:again", ".")
        return docker("run", "--rm", "--entrypoint", "sh", "llm-vitals:again", "-c", SHOW)

    first, second = files().splitlines(), files().splitlines()
    assert len(first) > 1000
    assert first[0].startswith(". ")  # the topmost folder, whose time is that of the build
    assert first[1:] == second[1:]
