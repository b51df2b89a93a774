"""A peer book whose peers are a dictionary and whose dialling waits until a test lets it go on."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from kv_transfer.fingerprint import differences
from kv_transfer.handshake import Greeting, encode_greeting
from kv_transfer.peer_book import PeerBook
from tests.unit.kv_transfer.factories import ENGINE, FINGERPRINT, HOST, PORT, Clock
from wire.errors import TransferFailed
from wire.worker import KVPeer

RETRY_S = 5.0


class LaterExecutor(Executor):
    """Keeps what it is given until ``run``."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        self.waiting.append(lambda: fn(*args, **kwargs))
        return Future()

    def run(self) -> None:
        """Errors end in a future that nobody looks at, as those of a real executor do."""
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            try:
                call()
            except Exception as e:  # noqa: BLE001 - see above
                Future[Any]().set_exception(e)


class Network:
    """What answers at which address, and who was dialled."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, int], bytes | Exception] = {}
        self.dialled: list[tuple[str, int]] = []

    def dial(self, host: str, port: int) -> bytes:
        self.dialled.append((host, port))
        answer = self.answers.get((host, port), TransferFailed(f"no answer from {host}:{port}"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def greet(self, engine_id: str = ENGINE, host: str = HOST, port: int = PORT, **changes: Any) -> Greeting:
        """From now on that engine answers at that address."""
        values: dict[str, Any] = {"fingerprint": FINGERPRINT, "num_kv_heads": 4, "hellos": [engine_id.encode()]}
        greeting = Greeting(engine_id=engine_id, **(values | changes))
        self.answers[host, port] = encode_greeting(greeting)
        return greeting


def peer(engine_id: str = ENGINE, host: str = HOST, port: int = PORT) -> KVPeer:
    return KVPeer(engine_id=engine_id, host=host, port=port)


def peer_book(network: Network, executor: Executor, clock: Clock, *extra: tuple[str, int]) -> PeerBook:
    return PeerBook(
        fingerprint=FINGERPRINT,
        num_kv_heads=4,
        extra=extra,
        dial=network.dial,
        executor=executor,
        retry_s=RETRY_S,
        clock=clock,
        differences=lambda mine, theirs: differences(mine, theirs, my_role="decode", their_role="prefill"),
    )
