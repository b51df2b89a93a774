"""Reads an HTTP/1.1 answer as the parser finds its parts: what a connection to a worker knows of the newest answer."""

from functools import lru_cache
from typing import Any

# A reader that is behind by this much stops the socket; about four reads of the event loop's own 64 KiB buffers.
MAX_BUFFERED_BYTES = 256 << 10
# What a piece costs beside its bytes, so that a body of one-byte chunks is bounded too.
PIECE_OVERHEAD_BYTES = 64
# Heads of workers have a few hundred bytes; other clients and servers stop at 8 to 100 KiB.
MAX_HEAD_BYTES = 64 << 10


class AnswerReader:
    """The parser's callbacks, and what they have found; ``router.http1_connection`` derives from it."""

    _parser: Any
    _is_clean: bool
    """Nothing came that belongs to no answer; the connection may be used again."""

    def begin_answer(self) -> None:
        """Forget the last answer: the next is waited for."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        self._raw_headers: list[tuple[bytes, bytes]] = []
        self._num_buffered = self._num_head_bytes = self._num_overhead_bytes = 0
        self._has_head = self._is_complete = self._ends_with_connection = False

    @property
    def is_head_too_long(self) -> bool:
        """Or what lies between the pieces of a body; of a complete answer it doesn't matter any more."""
        return max(self._num_head_bytes, self._num_overhead_bytes) > MAX_HEAD_BYTES and not self._is_complete

    def _on_much_buffered(self) -> None:
        """Whoever reads the body is behind by ``MAX_BUFFERED_BYTES``."""
        raise NotImplementedError

    def _has_unsent(self) -> bool:
        """Part of the request is still here."""
        raise NotImplementedError

    # --- httptools ---

    def on_message_begin(self) -> None:
        if self._is_complete:
            self._is_clean = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_head_bytes += len(name) + len(value)
        # Those after the body (trailers) are counted and dropped.
        if not self._has_head:
            self._raw_headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._is_complete:
            return
        status = self._parser.get_status_code()
        raw, self._raw_headers = self._raw_headers, []
        if status < 200:
            # Interim: the answer itself follows. How many may come is bounded by their bytes.
            return
        headers = self.headers
        for name, value in raw:
            key, text = _lower(name), value.decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        self.status, self._has_head = status, True
        is_bounded = "content-length" in headers or headers.get("transfer-encoding", "").lower().endswith("chunked")
        self._ends_with_connection = not is_bounded and status not in (204, 304)

    def on_body(self, data: bytes) -> None:
        if self._is_complete:
            return
        self._num_overhead_bytes = 0
        self._pieces.append(data)
        self._num_buffered += len(data) + PIECE_OVERHEAD_BYTES
        if self._num_buffered > MAX_BUFFERED_BYTES:
            self._on_much_buffered()

    def on_message_complete(self) -> None:
        if not self._has_head or self._is_complete:
            return
        self._is_complete = True
        # With part of the request still here the worker answered without reading it all: what follows is unclear.
        if not self._parser.should_keep_alive() or self._has_unsent():
            self._is_clean = False


@lru_cache(maxsize=256)
def _lower(name: bytes) -> str:
    return name.decode("latin-1").lower()
