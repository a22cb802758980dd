"""Real servers, once a session.  The environment says where they are:

VITALS_VLLM         a command that serves a vLLM when a port and vLLM's arguments are appended
VITALS_VLLM_BENCH   a command that loads it (vllm bench serve) when a port and its arguments are appended
prometheus, promtool are taken from PATH.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.real.servers import free_port, get, process, query, wait_until
from tests.real.tap import Tap


def command(variable: str) -> list[str]:
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set: no real server to be had")
    return shlex.split(value)


@dataclass(frozen=True, slots=True)
class Vllm:
    """A real vLLM with so small a KV cache (20 blocks) that it fills up, queues and preempts."""

    url: str
    bench: list[str]


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def vllm(logs: Path) -> Iterator[Vllm]:
    serve, bench = command("VITALS_VLLM"), command("VITALS_VLLM_BENCH")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with process([*serve, str(port), "--num-gpu-blocks-override", "20"], logs / "vllm.log") as child:
        wait_until("vLLM is ready", lambda: bool(get(f"{url}/v1/models")), 600, child)
        yield Vllm(url, [*bench, str(port)])


@pytest.fixture(scope="session")
def tap(vllm: Vllm) -> Iterator[Tap]:
    with Tap(vllm.url) as tap:
        tap.capture()
        yield tap


@pytest.fixture(scope="session")
def exporter(vllm: Vllm, tap: Tap, logs: Path) -> Iterator[str]:
    """The exporter with the vLLM itself (`live`) and the vLLM's held pages (`held`) as targets."""
    port = free_port()
    config = logs / "vitals.yml"
    config.write_text(
        yaml.safe_dump({"targets": [{"name": "live", "url": vllm.url}, {"name": "held", "url": tap.url}]})
    )
    arguments = [sys.executable, "-m", "exporter", "--config", str(config), "--listen", f"127.0.0.1:{port}"]
    with process(arguments, logs / "exporter.log") as child:
        url = f"http://127.0.0.1:{port}"
        wait_until("the exporter is ready", lambda: "ready" in get(f"{url}/-/ready"), 30, child)
        yield url


@pytest.fixture(scope="session")
def prometheus(
    vllm: Vllm, tap: Tap, exporter: str, logs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A Prometheus that scrapes the exporter (job vitals), the held pages (held) and the vLLM (live) every 2 s."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("prometheus is not on PATH")
    port = free_port()
    jobs = {"vitals": exporter, "held": tap.url, "live": vllm.url}
    config = logs / "prometheus.yml"
    config.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "2s", "scrape_timeout": "2s"},
                "scrape_configs": [
                    {"job_name": job, "static_configs": [{"targets": [url.removeprefix("http://")]}]}
                    for job, url in jobs.items()
                ],
            }
        )
    )
    data = tmp_path_factory.mktemp("prometheus")
    arguments = [
        binary, f"--config.file={config}", f"--storage.tsdb.path={data}", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with process(arguments, logs / "prometheus.log") as child:
        url = f"http://127.0.0.1:{port}"
        wait_until("Prometheus has scraped all", lambda: sum(query(url, "up").values()) == len(jobs), 60, child)
        yield url
