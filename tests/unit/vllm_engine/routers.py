"""A router that answers over real HTTP as a test tells it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Router:
    """``answers`` are used up one after the other; the last one stays."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        self.answers = list(answers)
        self.seen: list[tuple[str, str, dict[str, str], Any]] = []
        self.url = ""

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        self.seen.append((method, path, headers, json.loads(body) if body else None))
        status, content = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return status, content if isinstance(content, bytes) else json.dumps(content).encode()


@contextmanager
def serving(*answers: tuple[int, Any]) -> Iterator[Router]:
    router = Router(*answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, content = router.answer(self.command, self.path, headers, body)
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_DELETE = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        router.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield router
        finally:
            server.shutdown()
            thread.join()


def refusal(message: str) -> tuple[int, Any]:
    return 409, {"error": {"message": message, "type": "conflict_error", "param": None, "code": 409}}
