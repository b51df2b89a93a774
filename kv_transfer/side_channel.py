"""The side channel: a small request/reply service beside each engine, and its client. Carries bytes; knows no meaning.

Frames of a request: verb, token, payload. Frames of a reply: b"ok" and a payload, or b"error" and a text.
Each request needs the cluster token when one is set: a greeting alone would let a stranger read all KV by NIXL.
"""

import hmac
import logging
import threading
from collections.abc import Callable, Mapping

import zmq

from wire.errors import TransferFailed

logger = logging.getLogger(__name__)

HELLO, RELEASE, RENEW, PEERS, STATUS = b"hello", b"release", b"renew", b"peers", b"status"
_MAX_REQUEST_BYTES = 1 << 20  # requests are small; a stranger must not fill our memory
_POLL_MS = 200  # how soon the thread notices that it shall stop


class SideChannelServer:
    """Answers requests in a thread of its own until closed.

    The port is bound in the constructor, so that a taken port fails the start-up and never another engine's peer.

    Raises:
        zmq.ZMQError: the address can't be bound.
    """

    def __init__(self, host: str, port: int, handlers: Mapping[bytes, Callable[[bytes], bytes]], token: str) -> None:
        self._handlers, self._token = dict(handlers), token.encode()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.maxmsgsize = _MAX_REQUEST_BYTES
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
        if len(frames) != 3:
            return [b"error", b"a request has three frames: verb, token, payload"]
        verb, token, payload = frames
        handler = self._handlers.get(verb)
        if handler is None:
            return [b"error", b"unknown verb"]
        if self._token and not hmac.compare_digest(token, self._token):
            return [b"error", b"wrong or missing cluster token"]
        try:
            return [b"ok", handler(payload)]
        except Exception as e:  # noqa: BLE001 - a peer's bad request must reach the peer, and must not end this thread
            logger.warning("side channel: %s failed: %s", verb.decode("ascii", "replace"), e)
            return [b"error", str(e).encode()]


def ask(host: str, port: int, verb: bytes, payload: bytes = b"", *, token: str = "", timeout_s: float) -> bytes:
    """One request to a side channel; blocks for at most ``timeout_s``.

    Raises:
        TransferFailed: no answer in time, or the answer is an error.
    """
    try:
        with zmq.Context() as context, context.socket(zmq.REQ) as socket:
            socket.linger = 0
            socket.connect(f"tcp://{host}:{port}")
            socket.send_multipart([verb, token.encode(), payload])
            if not socket.poll(int(timeout_s * 1000)):
                raise TransferFailed(f"no answer from the side channel at {host}:{port} within {timeout_s:g} s")
            reply = socket.recv_multipart()
    except zmq.ZMQError as e:
        raise TransferFailed(f"the side channel at {host}:{port} can't be asked: {e}") from e
    if len(reply) != 2:
        raise TransferFailed(f"what answers at {host}:{port} is no side channel: {len(reply)} frame(s)")
    status, answer = reply
    if status != b"ok":
        raise TransferFailed(f"the side channel at {host}:{port} refused: {answer.decode('utf-8', 'replace')}")
    return answer
