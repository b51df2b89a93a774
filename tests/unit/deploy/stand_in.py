"""A small process in a worker's or router's place: answers /health and /ready, and misbehaves on demand.

Usage: stand_in.py BEHAVIOUR,BEHAVIOUR --config FILE
"""

import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

# "engine" has the first below it, in its session; "family" also the second, in another session and without a parent.
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
ORPHAN_MAKER = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STUBBORN!r}], start_new_session=True)"

MISMATCH = "can't serve: max_model_len differs: 4096 on decode-0, 8192 on prefill-0"
LEAK_WARNING = "resource_tracker: leaked objects"


class Handler(BaseHTTPRequestHandler):
    not_ready = False
    crashes_when_up = False
    refuses_when_up = False

    def do_GET(self) -> None:
        status = 503 if self.path == "/ready" and self.not_ready else 200
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()
        if self.crashes_when_up:
            print("the engine fell over", file=sys.stderr, flush=True)
            threading.Timer(0.5, os._exit, (3,)).start()
        if self.refuses_when_up:
            print(MISMATCH, file=sys.stderr, flush=True)
            threading.Timer(0.5, os._exit, (78,)).start()

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet: the log file is for what tests look for."""


def main(arguments: list[str]) -> None:
    behaviours, config_path = arguments[0].split(","), Path(arguments[-1])
    config = json.loads(config_path.read_text())
    print("token is in the environment:", bool(os.environ.get("TANDEM_CLUSTER_TOKEN")))
    print("handoff key is in the environment:", bool(os.environ.get("TANDEM_HANDOFF_KEY")))
    if "refuse-peers" in behaviours:
        sys.exit(_fail(78, f"ERROR an engine's own trouble\n(Engine pid=1) {MISMATCH}\n{LEAK_WARNING}"))
    if "refuse-silently" in behaviours:
        sys.exit(78)
    if "refuse-config" in behaviours:
        sys.exit(_fail(2, "max_model_len: 9 is too short"))
    if "crash" in behaviours:
        sys.exit(_fail(3, "the engine fell over"))
    first_start = not (marker := config_path.with_suffix(".started")).exists()
    marker.touch()
    if "crash-once" in behaviours and first_start:
        sys.exit(_fail(4, "fell over once"))
    if "stubborn" in behaviours:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if {"engine", "family"} & set(behaviours):
        subprocess.Popen([sys.executable, "-c", STUBBORN])
    if "family" in behaviours:
        subprocess.run([sys.executable, "-c", ORPHAN_MAKER], check=True)
    Handler.crashes_when_up = "crash-when-up" in behaviours
    Handler.refuses_when_up = "refuse-when-up" in behaviours
    Handler.not_ready = "never-ready" in behaviours
    HTTPServer((config["host"], config["port"]), Handler).serve_forever()


def _fail(exit_code: int, message: str) -> int:
    print(message, file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    main(sys.argv[1:])
