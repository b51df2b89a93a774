"""A log that several processes write to gets whole lines, however many are written at once."""

import os
from select import PIPE_BUF

import pytest

from router.line_stream import whole_lines

LINE = "x" * 100 + "é\n"


def pieces_of(text: str, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is handed to the kernel at once."""
    pieces: list[bytes] = []

    def write(fd: int, data: bytes) -> int:
        pieces.append(data)
        return len(data)

    with whole_lines(2) as stream, monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        stream.write(text)
        stream.flush()
    return pieces


def test_many_lines_go_out_in_pieces_that_end_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = pieces_of(LINE * 256, monkeypatch)
    assert b"".join(pieces) == (LINE * 256).encode()
    assert all(piece.endswith(b"\n") and len(piece) <= PIPE_BUF for piece in pieces)


def test_a_line_longer_than_the_kernel_keeps_whole_goes_out_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    long = "y" * (3 * PIPE_BUF) + "\n"
    assert b"".join(pieces_of(LINE + long + LINE, monkeypatch)) == (LINE + long + LINE).encode()


def test_a_log_that_nobody_reads_any_more_fails_nobody() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with whole_lines(writer) as stream:
        stream.write(LINE)
    os.close(writer)
