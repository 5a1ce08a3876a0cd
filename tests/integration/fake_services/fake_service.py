"""A process that stands in for a service of a mesh: takes its flags, serves /ready, obeys SIGTERM.

FAKE_DIES, FAKE_NEVER_READY and FAKE_STUBBORN name the module (or worker's layers) that shall die
after its start, never become ready, or ignore SIGTERM.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import sys
import threading
import time


def _flag(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


class _Ready(http.server.BaseHTTPRequestHandler):
    """Answers every GET as /ready."""

    ready = True

    def do_GET(self) -> None:
        """Answer 200, or 503 with state and progress."""
        body = json.dumps({"ready": self.ready, "state": "loading", "progress": 0.5}).encode()
        self.send_response(200 if self.ready else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_parts: object) -> None:
        """Say nothing."""


def run(module: str) -> None:
    """Serve until SIGTERM."""
    names = {module, _flag("--layers") if "--layers" in sys.argv else module}
    print(json.dumps({"module": module, "argv": sys.argv[1:]}), flush=True)
    if os.environ.get("FAKE_DIES") in names:
        time.sleep(0.3)
        sys.exit("fake: cannot go on")
    _Ready.ready = os.environ.get("FAKE_NEVER_READY") not in names
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(_flag("--http-port"))), _Ready)
    stop = threading.Event()
    if os.environ.get("FAKE_STUBBORN") in names:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while not stop.is_set():
        time.sleep(0.05)
    print("fake: stopped", flush=True)
