"""The head of an answer to a client, in HTTP/1.1's bytes: what ``router.client_cycle`` sends before the body.

A module of its own, as it can be compiled where uvicorn's classes can't.
"""

from collections.abc import Iterable
from http import HTTPStatus
from typing import NamedTuple

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
# Workers may answer with numbers that have no name.
STATUS_LINES = {status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode() for status in range(100, 600)}

Header = tuple[bytes, bytes]


class AnswerHead(NamedTuple):
    """A head, and what it has promised."""

    data: bytes
    num_body_bytes: int | None
    """None: the body has no stated length."""
    is_chunked: bool
    keeps_connection: bool


def answer_head(status: int, usual: Iterable[Header], headers: Iterable[Header], *, keep_alive: bool) -> AnswerHead:
    """The status line and the headers, ``usual`` ones first, with the blank line after them.

    Raises:
        RuntimeError: a header that could be read as more than one.
    """
    lines = [STATUS_LINES[status]]
    num_lines, num_body_bytes, has_close = 1, None, False
    for some in (usual, headers):
        for name, value in some:
            num_lines += 1
            if name == b"content-length":
                num_body_bytes = int(value)
            elif name == b"connection" and b"close" in value.lower():
                keep_alive, has_close = False, True
            lines.append(b"%b: %b\r\n" % (name, value))
    if not keep_alive and not has_close:
        num_lines += 1
        lines.append(b"connection: close\r\n")
    is_chunked = num_body_bytes is None and status not in (204, 304)
    if is_chunked:
        num_lines += 1
        lines.append(b"transfer-encoding: chunked\r\n")
    head = b"".join(lines)
    if head.count(b"\r") != num_lines or head.count(b"\n") != num_lines or b"\0" in head:
        raise RuntimeError("a header of the answer is not one line of text")
    return AnswerHead(head + b"\r\n", num_body_bytes, is_chunked, keep_alive)
