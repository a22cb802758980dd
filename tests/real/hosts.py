"""A vLLM on this host, real or simulated, that listens where and asks for what a test says."""

from __future__ import annotations

import json
import ssl
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.real.conftest import command
from tests.real.servers import free_port, get, process, wait_until

KEY = "k3y-for-tests"
MODES = ("on 127.0.0.1 only", "on all addresses", "behind a key")
LOOPBACK, EVERYWHERE, BEHIND_KEY = MODES


@contextmanager
def vllm(kind: str, mode: str, logs: Path) -> Iterator[int]:
    """Start a vLLM that has answered some requests and yield the port on this host."""
    port = free_port()
    if kind == "real":
        more = {LOOPBACK: [], EVERYWHERE: ["--host", "0.0.0.0"], BEHIND_KEY: ["--host", "0.0.0.0", "--api-key", KEY]}
        serve = [*command("VITALS_VLLM"), str(port), *more[mode]]
    else:
        host = "0.0.0.0" if mode == EVERYWHERE else "127.0.0.1"
        serve = [sys.executable, "-m", "exporter", "simulate", "--vllm", f"{host}:{port}", "--ollama", "off"]
    with process(serve, logs / f"{kind}.log") as child:
        wait_until("vLLM is ready", lambda: get(f"http://127.0.0.1:{port}/health") == "", 600, child)
        if kind == "real":
            for _ in range(3):
                complete(port)
            yield port
        elif mode == BEHIND_KEY:
            with gate(port) as guarded:
                yield guarded
        else:
            yield port


@contextmanager
def ollama(logs: Path) -> Iterator[int]:
    """Start a simulated Ollama on all addresses and yield its port."""
    port = free_port()
    serve = [sys.executable, "-m", "exporter", "simulate", "--vllm", "off", "--ollama", f"0.0.0.0:{port}"]
    with process(serve, logs / "ollama.log") as child:
        wait_until("Ollama is ready", lambda: "models" in get(f"http://127.0.0.1:{port}/api/ps"), 30, child)
        yield port


def complete(port: int) -> None:
    """Have an answer of a few tokens streamed."""
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 8, "stream": True, "ignore_eos": True}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.read().endswith(b"data: [DONE]\n\n")


@contextmanager
def gate(port: int, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Yield the port of a gateway, on all addresses, that lets only who has the key get the vLLM's pages."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            known = self.headers.get("Authorization") == f"Bearer {KEY}"
            body = get(f"http://127.0.0.1:{port}{self.path}").encode() if known else b"who are you?"
            self.send_response(200 if known else 401)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.send_error(403, "only pages pass here")

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("0.0.0.0", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)
