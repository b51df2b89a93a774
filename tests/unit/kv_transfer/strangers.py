"""Clients of the side channel that speak ZMTP by hand and mean it ill, and a wire that takes down what crosses."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

FRAME = b"\x03" + (1 << 16).to_bytes(8, "big") + bytes(1 << 16)  # flags: long, and more to come
OLD_FRAME = b"\xff" + ((1 << 16) + 1).to_bytes(8, "big") + b"\x01" + bytes(1 << 16)  # the same in ZMTP/1.0
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x03REQ"
POUR_LIMIT_BYTES = 64 << 20


def greeting(mechanism: bytes) -> bytes:
    """Of ZMTP/3.0."""
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


# What a stranger says before it pours, and of what: each version of the protocol, the old ones know no security.
OPENINGS: dict[str, tuple[bytes, bytes]] = {
    "plain": (greeting(b"NULL") + b"\x04" + bytes([len(READY)]) + READY, FRAME),
    "curve, in name": (greeting(b"CURVE"), FRAME),
    "version 2": (b"\xff" + bytes(8) + b"\x7f\x01\x03" + b"\x00\x00", FRAME),
    "version 1": (b"\x01\x00", OLD_FRAME),
}


def connect(port: int, opening: bytes = b"") -> socket.socket:
    stranger = socket.create_connection(("127.0.0.1", port), timeout=5)
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)  # so that what was sent was mostly taken
    with suppress(OSError):  # cut so soon; it shows at the next word
        stranger.sendall(opening)
    return stranger


def pour(stranger: socket.socket, frame: bytes) -> int:
    """One message without an end; the bytes of it that were sent before the other side cut the connection."""
    sent = 0
    try:
        while sent < POUR_LIMIT_BYTES:
            sent += stranger.send(frame)
    except OSError:
        pass
    return sent


def is_cut(stranger: socket.socket) -> bool:
    """Whether the other side closes the connection within its time limit."""
    try:
        while stranger.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@contextmanager
def tapped(port: int) -> Iterator[tuple[int, bytearray]]:
    """A port that leads to ``port`` for one connection, and all that crosses in either direction."""
    heard = bytearray()

    def copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while part := source.recv(1 << 16):
                heard.extend(part)
                target.sendall(part)
        except OSError:
            pass

    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(("127.0.0.1", port)) as server:

        def carry() -> None:
            client, _ = listener.accept()
            with client:
                back = threading.Thread(target=copy, args=(server, client), daemon=True)
                back.start()
                copy(client, server)
                server.shutdown(socket.SHUT_RDWR)
                back.join(5)

        thread = threading.Thread(target=carry, daemon=True)
        thread.start()
        yield listener.getsockname()[1], heard
        thread.join(5)
