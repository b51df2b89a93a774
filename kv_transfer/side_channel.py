"""The side channel: a small request/reply service beside each engine, and its client. Carries bytes; knows no meaning.

Frames of a request: verb, payload. Frames of a reply: b"ok" and a payload, or b"error" and a text.

All of it runs inside ZeroMQ's CURVE. The server's key pair follows from the cluster token, so whoever lacks the token
doesn't know the public key that its first bytes must be sealed for, and is cut off before it can send a message: a
greeting would let it read all KV by NIXL, and a message without an end would fill the engine's memory. The token itself
never crosses. Without a token the keys follow from the empty one, which anybody can do: such a server listens on
loopback only, where it trusts this machine's processes.
"""

import hashlib
import logging
import threading
from collections.abc import Callable, Mapping

import zmq
from zmq.utils import z85

from wire.errors import TransferFailed
from wire.worker_config import CLUSTER_TOKEN_ENV, is_loopback

logger = logging.getLogger(__name__)

HELLO, RELEASE, RENEW, PEERS, STATUS = b"hello", b"release", b"renew", b"peers", b"status"
# The longest requests are lists of peers and of leases, some 100 and 40 bytes each. It also bounds what a connection
# can make us hold before its handshake has failed, and the next limit for how long. How many there are nothing bounds.
_MAX_FRAME_BYTES = 1 << 18
_HANDSHAKE_MS = 5000
_MAX_ERROR_CHARS = 300
_KEY_CONTEXT = b"tandem-kv-curve"  # no other use of the token gives the same bytes
_POLL_MS = 200  # how soon the thread notices that it shall stop


class UnsafeSideChannel(ValueError):
    """A side channel that strangers could listen to or use; it is not opened."""


def server_keys(token: str) -> tuple[bytes, bytes]:
    """Public and secret CURVE key (Z85) of every side channel of the deployment that has this cluster token.

    Both are secrets: who knows the public one may ask.

    Raises:
        UnsafeSideChannel: the installed ZeroMQ library can't encrypt.
    """
    if not zmq.has("curve"):
        raise UnsafeSideChannel("the installed ZeroMQ library was built without CURVE, which the KV side channel needs")
    secret = z85.encode(hashlib.blake2b(token.encode(), digest_size=32, person=_KEY_CONTEXT).digest())
    return zmq.curve_public(secret), secret


def check_secrecy(host: str, token: str) -> None:
    """Whether a side channel may listen at ``host`` with the keys of ``token``.

    Raises:
        UnsafeSideChannel: it may not, and why.
    """
    server_keys(token)
    if not token and not is_loopback(host):
        raise UnsafeSideChannel(
            f"{CLUSTER_TOKEN_ENV} is not set, and the KV side channel listens at {host}, which others can reach"
        )


class SideChannelServer:
    """Answers requests in a thread of its own until closed.

    The port is bound in the constructor, so that a taken port fails the start-up and never another engine's peer.

    Raises:
        UnsafeSideChannel: see ``check_secrecy``.
        zmq.ZMQError: the address can't be bound.
    """

    def __init__(self, host: str, port: int, handlers: Mapping[bytes, Callable[[bytes], bytes]], token: str) -> None:
        check_secrecy(host, token)
        self._handlers = dict(handlers)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.maxmsgsize = _MAX_FRAME_BYTES
        self._socket.handshake_ivl = _HANDSHAKE_MS
        self._socket.curve_server = True
        self._socket.curve_publickey, self._socket.curve_secretkey = server_keys(token)
        try:
            self._socket.bind(f"tcp://{host}:{port}")
        except zmq.ZMQError:
            self._context.destroy(linger=0)
            raise
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="kv-side-channel", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                if self._socket.poll(_POLL_MS):
                    self._socket.send_multipart(self._answer(self._socket.recv_multipart()))
            except zmq.ZMQError:
                logger.exception("side channel: a request could not be received or answered")
        self._context.destroy(linger=0)

    def _answer(self, frames: list[bytes]) -> list[bytes]:
        if len(frames) != 2:
            return [b"error", b"a request has two frames: verb, payload"]
        verb, payload = frames
        handler = self._handlers.get(verb)
        if handler is None:
            return [b"error", b"unknown verb"]
        try:
            return [b"ok", handler(payload)]
        except Exception as e:  # noqa: BLE001 - a peer's bad request must reach the peer, and must not end this thread
            reason = _summary(e)
            logger.warning("side channel: %s failed: %s", verb.decode("ascii", "replace"), reason)
            return [b"error", reason.encode(errors="replace")]


def _summary(error: Exception) -> str:
    """One bounded line: the text of a validation error grows with the request, by lines for each of its faults."""
    text = " ".join(str(error).split())
    return text if len(text) <= _MAX_ERROR_CHARS else text[:_MAX_ERROR_CHARS] + "..."


def ask(host: str, port: int, verb: bytes, payload: bytes = b"", *, token: str = "", timeout_s: float) -> bytes:
    """One request to a side channel; blocks for at most ``timeout_s``.

    Raises:
        TransferFailed: no answer in time (one with another token never answers), or the answer is an error.
    """
    try:
        with zmq.Context() as context, context.socket(zmq.REQ) as socket:
            socket.linger = 0
            socket.curve_serverkey, _ = server_keys(token)
            socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
            socket.connect(f"tcp://{host}:{port}")
            socket.send_multipart([verb, payload])
            if not socket.poll(int(timeout_s * 1000)):
                raise TransferFailed(
                    f"no answer from the side channel at {host}:{port} within {timeout_s:g} s; "
                    f"it gives none to a process with another {CLUSTER_TOKEN_ENV}"
                )
            reply = socket.recv_multipart()
    except zmq.ZMQError as e:
        raise TransferFailed(f"the side channel at {host}:{port} can't be asked: {e}") from e
    if len(reply) != 2:
        raise TransferFailed(f"what answers at {host}:{port} is no side channel: {len(reply)} frame(s)")
    status, answer = reply
    if status != b"ok":
        raise TransferFailed(f"the side channel at {host}:{port} refused: {answer.decode('utf-8', 'replace')}")
    return answer
