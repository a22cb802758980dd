"""The demo's episodes, read by the exporter and by a real Prometheus with the recording rules.

The vLLM's users and troubles come ten times as fast.  The Ollama keeps to the clock, because the exporter does: a
model that expires ten times as fast is a model loaded anew to it.  A third server, which the demo has not, is broken:
what the dashboards say of faults must be seen too.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import shutil
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter.simulator.ollama_models import QWEN3
from prometheus.build.files import rule_files
from prometheus.build.settings import Settings
from tests.real.servers import free_port, get, process, query, wait_until

TARGETS = ("vllm", "ollama")
OPTIONS = {
    "vllm": ["--ollama", "off", "--speed", "10"],
    "ollama": ["--vllm", "off", "--episode", "calm"],
}
LONGEST = 240
"""Seconds until the vLLM was killed and is back and both have been probed: all episodes take 90."""

BROKEN_PAGE = b"""\
# HELP vllm:num_requests_running Requests in the batch.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="broken"} 1.0
vllm:num_requests_running{engine="0",model_name="broken"} 2.0
vllm:num_requests_running{engine="1",model_name="broken} 1.0
# HELP vllm:generation_tokens_total Tokens generated.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="broken"} NaN
"""

SHAPE = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}


@contextlib.contextmanager
def playing(folder: Path) -> Iterator[str]:
    """Play all episodes once; yield the URL of the Prometheus that saw them."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("prometheus is not on PATH")
    ports = {name: free_port() for name in (*TARGETS, "broken", "exporter", "prometheus")}
    at = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    simulators = [
        [sys.executable, "-m", "exporter", "simulate", f"--{name}", at[name], *OPTIONS[name]] for name in TARGETS
    ]
    exporter = [sys.executable, "-m", "exporter", "--config", str(_exporter(folder, at))]
    prometheus = [
        binary, f"--config.file={_prometheus(folder, at)}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={at['prometheus']}",
    ]  # fmt: skip
    url = f"http://{at['prometheus']}"
    with contextlib.ExitStack() as started:
        # The servers come last: what Prometheus has not seen at zero has not risen to one.
        first = started.enter_context(process(prometheus, folder / "prometheus.log"))
        started.enter_context(_broken(ports["broken"]))
        started.enter_context(process(exporter, folder / "exporter.log"))
        absent = 'vitals_target_up{target="ollama"} == 0'
        wait_until("Prometheus reads the exporter", lambda: bool(query(url, absent)), 60, first)
        servers = started.enter_context(process(simulators[0], folder / "vllm.log"))
        started.enter_context(process(simulators[1], folder / "ollama.log"))
        preempted = "max(max_over_time(target_model:vitals_preemptions:rate5m[5m])) > 0"
        # It came, was restarted, was killed, and is back each time.
        back = 'max(changes(vitals_target_up{target="vllm"}[5m])) >= 5 and min(vitals_target_up) == 1'
        drafted = "max(max_over_time(rate(vitals_spec_decode_accepted_tokens_total[4s])[5m:1s])) > 0"
        probed = (
            "count(target_model:vitals_probe_time_to_first_token_seconds:p50_bounded_rate5m) == 2"
            ' and on () vitals_probe_phase_seconds{target="ollama"}'
            " and on () vitals_probe_alone_decode_tokens_per_second"
        )
        wait_until(
            "the episodes have been played",
            lambda: bool(query(url, f"{preempted} and {drafted} and {back} and {probed}")),
            LONGEST,
            servers,
        )
        yield url


@contextlib.contextmanager
def _broken(port: int) -> Iterator[None]:
    """Serve a page with a line that is none, a series twice and a NaN, and 500 for every request for text."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), _Broken) as server:
        thread = threading.Thread(target=server.serve_forever, name="broken server")
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


class _Broken(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        models = b'{"object": "list", "data": [{"id": "broken", "max_model_len": 4096}]}'
        pages = {"/metrics": BROKEN_PAGE, "/v1/models": models}
        self._answer(200 if self.path in pages else 404, pages.get(self.path, b"{}"))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(500, b'{"error": {"message": "out of order", "code": 500}}')

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


def _exporter(folder: Path, at: dict[str, str]) -> Path:
    file = folder / "vitals.yml"
    devices: dict[str, dict[str, object]] = {
        "vllm": {"device": "NVIDIA A10", "weight_bytes": 16.06e9, "model_config": SHAPE},
        "ollama": {"device": "NVIDIA RTX 3060", "probe": {"models": [QWEN3.name], "load": True}},
        "broken": {"backend": "vllm"},
    }
    targets = [{"name": name, "url": f"http://{at[name]}", **facts} for name, facts in devices.items()]
    probe = {"interval": "1s", "max_share": 1, "timeout": "10s", "first_token_timeout": "10s"}
    config = {"listen": at["exporter"], "defaults": {"probe": probe}, "targets": targets}
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file


def _prometheus(folder: Path, at: dict[str, str]) -> Path:
    for name, text in rule_files(Settings(interval="1s")).items():
        (folder / name).write_text(text, encoding="utf-8")
    file = folder / "prometheus.yml"
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / name) for name in ("load.yml", "latency.yml", "bounds.yml")],
        "scrape_configs": [{"job_name": Settings().job, "static_configs": [{"targets": [at["exporter"]]}]}],
    }
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file


def series(prometheus: str, promql: str, range_s: int, now: float) -> list[Any]:
    """Return what a query over the last seconds gives."""
    parameters = {"query": promql, "start": now - range_s, "end": now, "step": 1}
    answer = json.loads(get(f"{prometheus}/api/v1/query_range?{urllib.parse.urlencode(parameters)}"))
    assert answer["status"] == "success", answer
    return list(answer["data"]["result"])
