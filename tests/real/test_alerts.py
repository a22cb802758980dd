"""The demo's script with a real Prometheus and Alertmanager: what a webhook is told, and whether its links work."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from prometheus.build.files import render
from prometheus.build.settings import Settings
from tests.real.servers import free_port, get, process, wait_until

pytestmark = pytest.mark.timeout(400)

ROOT = Path(__file__).resolve().parents[2]
SPEED = 5
KV, ITL = "LLMKVCacheExhausted", "LLMInterTokenLatencyHigh"

SHORT = replace(Settings(), interval="1s", window="8s", kv_for="3s", latency_for="3s")
"""The rules of the shipped files but for these: a simulated minute is a few seconds here."""

LATE = 8 + 3 + 10
"""Seconds from a cause to its message: window, waiting time, and 10 for scrape, evaluation and grouping."""

RECOVERY = 240 / SPEED
"""Seconds of the episode in which the queue drains; what comes after it ends every alert anyhow."""


@dataclass
class Webhook:
    """Receives Alertmanager's messages, and is Grafana as far as links to dashboards go."""

    url: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)

    def state(self, alert: str) -> str:
        """What the last message about the alert said; empty before the first."""
        told = [m for message in self.messages for m in message["alerts"] if m["labels"]["alertname"] == alert]
        return str(told[-1]["status"]) if told else ""

    def told(self, alert: str) -> dict[str, Any]:
        return next(m for message in self.messages for m in message["alerts"] if m["labels"]["alertname"] == alert)


@contextmanager
def serving(webhook: Webhook) -> Iterator[None]:
    boards = (ROOT / "dashboards/json").glob("*.json")
    paths = {f"/d/{json.loads(board.read_text(encoding='utf-8'))['uid']}" for board in boards}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            webhook.messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.answer(200)

        def do_GET(self) -> None:
            self.answer(200 if self.path.split("?")[0] in paths else 404)

        def answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        webhook.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield
        finally:
            server.shutdown()
            thread.join(10)


def binary(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not on PATH")
    return path


@contextmanager
def alertmanager(folder: Path, webhook: str) -> Iterator[str]:
    """The shipped configuration, but it tells the webhook, and at once."""
    config = yaml.safe_load((ROOT / "prometheus/alertmanager.yml").read_text(encoding="utf-8"))
    config["route"] |= {"group_wait": "1s", "group_interval": "1s"}
    config["receivers"][0]["webhook_configs"] = [{"url": webhook}]
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        binary("alertmanager"), f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/alertmanager",
        "--cluster.listen-address=", f"--web.listen-address={url.removeprefix('http://')}",
    ]  # fmt: skip
    with process(command, folder / "alertmanager.log") as child:
        wait_until("Alertmanager is ready", lambda: get(f"{url}/-/ready") != "", 30, child)
        yield url


@contextmanager
def prometheus(folder: Path, exporter: str, alertmanager: str, grafana: str) -> Iterator[str]:
    """The shipped configuration and rules, but each second, and with short waiting times."""
    url = f"http://127.0.0.1:{free_port()}"
    settings = replace(SHORT, runbooks_url=f"{url}/user/runbooks.md", grafana_url=grafana)
    for path, text in render(settings).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    config = yaml.safe_load((ROOT / "prometheus/prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"] = [{"job_name": settings.job, "static_configs": [{"targets": [exporter]}]}]
    address = alertmanager.removeprefix("http://")
    config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [address]}]}]}
    (folder / "prometheus/prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [
        binary("prometheus"), f"--config.file={folder}/prometheus/prometheus.yml",
        f"--storage.tsdb.path={folder}/data", f"--web.listen-address={url.removeprefix('http://')}",
        f"--web.user-assets={ROOT}/docs", "--rules.alert.resend-delay=1s",
    ]  # fmt: skip
    with process(command, folder / "prometheus.log") as child:
        wait_until("Prometheus is ready", lambda: get(f"{url}/-/ready") != "", 60, child)
        yield url


def test_a_full_kv_cache_is_told_and_its_end_too_with_links_that_work(tmp_path: Path) -> None:
    webhook, exporter = Webhook(), f"127.0.0.1:{free_port()}"
    log = tmp_path / "demo.log"
    command = [sys.executable, "-m", "exporter", "demo", "--listen", exporter, f"--speed={SPEED}", "--ollama=off"]
    with (
        serving(webhook),
        alertmanager(tmp_path, f"{webhook.url}/hook") as manager,
        prometheus(tmp_path, exporter, manager, webhook.url) as url,
        process(command, log) as demo,
    ):
        wait_until("the KV cache's episode", lambda: "episode kv-exhausted" in log.read_text(), 120, demo)
        wait_until("both alerts", lambda: webhook.state(KV) == webhook.state(ITL) == "firing", LATE, demo)
        wait_until("the recovery", lambda: "episode recovered" in log.read_text(), 60, demo)
        wait_until("their ends", lambda: webhook.state(KV) == webhook.state(ITL) == "resolved", RECOVERY, demo)
        assert "episode killed" not in log.read_text()
        groups = json.loads(get(f"{url}/api/v1/rules"))["data"]["groups"]
        assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
        for name in (KV, ITL):
            told = webhook.told(name)
            assert told["labels"]["target"] == "demo-vllm"
            assert told["annotations"]["summary"].startswith("demo-vllm: ")
            page, anchor = told["annotations"]["runbook_url"].split("#")
            assert f"## {name}\n" in get(page)
            assert anchor == name.lower()
            get(told["annotations"]["dashboard_url"])


def test_of_a_server_that_is_down_nothing_else_is_told(tmp_path: Path) -> None:
    webhook = Webhook()
    alerts = [
        {"labels": {"alertname": name, "target": target, "severity": "warning"}}
        for name, target in (("LLMTargetDown", "a"), (ITL, "a"), (ITL, "b"))
    ]
    with serving(webhook), alertmanager(tmp_path, f"{webhook.url}/hook") as manager:
        request = urllib.request.Request(
            f"{manager}/api/v2/alerts", json.dumps(alerts).encode(), {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=10).close()
        wait_until("both servers are told of", lambda: len(webhook.messages) >= 2, 30)
        told = {
            (alert["labels"]["target"], alert["labels"]["alertname"])
            for message in webhook.messages
            for alert in message["alerts"]
        }
        assert told == {("a", "LLMTargetDown"), ("b", ITL)}
        # One message for each server.
        assert all(len({alert["labels"]["target"] for alert in m["alerts"]}) == 1 for m in webhook.messages)
