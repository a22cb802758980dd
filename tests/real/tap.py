"""Holds one page of a real server still, so that two readers can be compared at one moment of a busy server."""

from __future__ import annotations

import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


class Tap:
    """Serves, byte for byte, the last page captured from the server behind it."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._page = b""
        self._type = ""
        tap = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                known = self.path == "/metrics"
                body = tap._page if known else b"{}"
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", tap._type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def capture(self) -> float:
        """Take the server's page of now; return the Unix time at which it was being served here."""
        with urllib.request.urlopen(f"{self._upstream}/metrics", timeout=30) as answer:
            self._type = answer.headers["Content-Type"]
            self._page = answer.read()
        return time.time()

    def __enter__(self) -> Tap:
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=10)
