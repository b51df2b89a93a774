"""Which prefill engines a decode engine may read from, and what they said when they were asked.

Only registered addresses are dialled: those that the router names with each heartbeat, and those in the configuration.
An engine is asked as soon as it is named, so that a mismatch shows at start-up and the first handoff need not wait.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import Enum

from kv_transfer.handshake import Greeting, decode_greeting
from wire.errors import HandshakeMismatch, TransferError
from wire.handoff import KVHandoff
from wire.refusal import Refusal
from wire.worker import Fingerprint, KVPeer

logger = logging.getLogger("vllm.tandem.kv_transfer")


# A router that was restarted knows nobody for a moment; its silence about an engine must not cut reads from it.
GONE_AFTER_S = 30.0


class _Asking(Enum):
    ASKING = "asking"


ASKING = _Asking.ASKING


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a handoff can't be used."""

    reason: Refusal
    text: str


@dataclass(slots=True)
class _Entry:
    address: tuple[str, int]
    outcome: Greeting | Refused | _Asking = ASKING
    until_s: float = float("inf")  # an engine that did not answer is asked again after this time


class PeerBook:
    """Reached from the engine core's thread, the side channel's and the dialling threads.

    Args:
        fingerprint: of this worker; a peer's must be equal.
        num_kv_heads: of the whole model.
        extra: (host, port) of peers from the configuration, whose engine ids are not known in advance.
        dial: (host, port) -> the peer's encoded greeting; raises TransferError.
        executor: runs ``dial``.
        retry_s: seconds for which a peer that did not answer counts as unreachable.
        differences: (mine, theirs) -> one line for each difference of two fingerprints.
    """

    def __init__(
        self,
        *,
        fingerprint: Fingerprint,
        num_kv_heads: int,
        extra: Iterable[tuple[str, int]],
        dial: Callable[[str, int], bytes],
        executor: Executor,
        retry_s: float,
        clock: Callable[[], float],
        differences: Callable[[Fingerprint, Fingerprint], list[str]],
    ) -> None:
        self._fingerprint, self._num_kv_heads = fingerprint, num_kv_heads
        self._extra = frozenset(extra)
        self._dial, self._executor, self._retry_s, self._clock = dial, executor, retry_s, clock
        self._differences = differences
        self._registered: dict[str, tuple[str, int]] = {}
        self._unnamed_since: dict[str, float] = {}  # engines that were registered, until they count as gone
        self._entries: dict[str, _Entry] = {}
        self._met: list[Greeting] = []
        self._fenced: list[str] = []
        self._lock = threading.Lock()

    def register(self, peers: Iterable[KVPeer]) -> None:
        """Take the whole list of registered engines: new ones are asked at once.

        One that is no longer named is fenced after ``GONE_AFTER_S``, or at once where another is named at its address;
        of two that are named at one address, the one that answers there stays.
        """
        now = self._clock()
        with self._lock:
            named = {peer.engine_id: (peer.host, peer.port) for peer in peers}
            for engine_id in self._registered.keys() - named.keys():
                self._unnamed_since.setdefault(engine_id, now)
            for engine_id in named:
                self._unnamed_since.pop(engine_id, None)
            for engine_id, address in list(self._registered.items()):
                if engine_id not in named and address in named.values():
                    self._fence(engine_id)
            self._registered |= named
            for engine_id, address in named.items():
                if engine_id not in self._entries:
                    self._ask(engine_id, address)

    def may_dial(self, host: str, port: int) -> bool:
        """Whether that address is registered or configured. No other is ever dialled, whoever signed it."""
        with self._lock:
            return (host, port) in self._extra or (host, port) in self._registered.values()

    def look_up(self, handoff: KVHandoff) -> Greeting | Refused | _Asking:
        """The engine that ``handoff`` names, why it can't be read from, or ASKING while the answer is on its way."""
        engine_id, address = handoff.remote_engine_id, (handoff.remote_host, handoff.remote_port)
        with self._lock:
            if self._registered.get(engine_id) != address and address not in self._extra:
                return Refused(Refusal.UNREGISTERED, f"engine {engine_id} is not registered at its address")
            entry = self._entries.get(engine_id)
            if entry is None or self._clock() >= entry.until_s:
                entry = self._ask(engine_id, address)
            return entry.outcome

    def take_news(self) -> tuple[list[Greeting], list[str]]:
        """Engines met and engine ids fenced since the last call."""
        with self._lock:
            for engine_id, since_s in list(self._unnamed_since.items()):
                if self._clock() - since_s >= GONE_AFTER_S:
                    self._fence(engine_id)
            met, self._met = self._met, []
            fenced, self._fenced = self._fenced, []
        return met, fenced

    def _fence_earlier_lives(self, engine_id: str, address: tuple[str, int]) -> None:
        others = self._registered | {known: entry.address for known, entry in self._entries.items()}
        for other, others_address in others.items():
            if other != engine_id and others_address == address:
                self._fence(other)

    def _fence(self, engine_id: str) -> None:
        self._registered.pop(engine_id, None)
        self._unnamed_since.pop(engine_id, None)
        if self._entries.pop(engine_id, None) is not None:
            self._fenced.append(engine_id)

    def _ask(self, engine_id: str, address: tuple[str, int]) -> _Entry:
        entry = self._entries[engine_id] = _Entry(address)
        self._executor.submit(self._greet, engine_id, entry)
        return entry

    def _greet(self, engine_id: str, entry: _Entry) -> None:
        outcome: Greeting | Refused
        until_s = float("inf")
        try:
            outcome = self._check(engine_id, decode_greeting(self._dial(*entry.address)))
        except HandshakeMismatch as e:
            logger.error("prefill engine %s is refused: %s", engine_id, e)
            outcome = Refused(Refusal.MISMATCH, str(e))
        except TransferError as e:
            logger.warning("prefill engine %s does not answer: %s", engine_id, e)
            outcome, until_s = Refused(Refusal.UNREACHABLE, str(e)), self._clock() + self._retry_s
        except Exception as e:
            logger.exception("prefill engine %s can't be asked", engine_id)
            outcome, until_s = Refused(Refusal.UNREACHABLE, f"{type(e).__name__}: {e}"), self._clock() + self._retry_s
        with self._lock:
            if self._entries.get(engine_id) is not entry:
                return  # it left while we asked
            entry.outcome, entry.until_s = outcome, until_s
            if isinstance(outcome, Greeting):
                self._met.append(outcome)
                self._fence_earlier_lives(engine_id, entry.address)

    def _check(self, engine_id: str, theirs: Greeting) -> Greeting:
        """Raises HandshakeMismatch, naming every difference with both sides' values."""
        if theirs.engine_id != engine_id:
            raise HandshakeMismatch(f"the handoff names engine {engine_id}, {theirs.engine_id} answers at its address")
        if differences := self._differences(self._fingerprint, theirs.fingerprint):
            raise HandshakeMismatch("; ".join(differences))
        if theirs.num_kv_heads != self._num_kv_heads:
            raise HandshakeMismatch(
                f"KV heads differ: {theirs.num_kv_heads} on prefill, {self._num_kv_heads} on decode"
            )
        return theirs
