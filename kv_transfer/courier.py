"""Sends what a decode engine owes prefill engines beside the reads: renewals while a request waits, and releases.

Renewals go out every sixth of a lease, all of an engine's in one message where it holds them; releases at once. By the
side channel, in a thread for each engine that something is owed to: one that does not answer delays nobody else.
"""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from wire.errors import TransferError
from wire.handoff import KVHandoff

logger = logging.getLogger("vllm.tandem.kv_transfer")

RENEWALS_PER_LEASE = 6
RELEASE_ATTEMPTS = 3
MAX_RENEWALS_PER_MESSAGE = 4000  # 36 bytes each; the side channel takes no message of more than 256 KiB

Send = Callable[[str, int, bytes, bytes], bytes]


class Courier:
    """Knows which handoffs of which engines are still wanted here.

    Args:
        send: (host, port, verb, payload) -> reply; raises TransferError.
        renew_verb, release_verb: of the side channel.
    """

    def __init__(
        self, send: Send, *, renew_verb: bytes, release_verb: bytes, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._send, self._renew_verb, self._release_verb, self._clock = send, renew_verb, release_verb, clock
        self._wanted: dict[str, KVHandoff] = {}  # request id -> handoff
        self._renewing: set[tuple[str, int]] = set()  # engines for which a renewal waits in its lane
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._is_stopping = False
        self._lanes: dict[tuple[str, int], deque[Callable[[], None]]] = {}  # of engines with a thread at work
        self._thread: threading.Thread | None = None

    def keep(self, request_id: str, handoff: KVHandoff) -> None:
        """Renew the lease of ``handoff`` until ``done``."""
        with self._lock:
            self._wanted[request_id] = handoff
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kv-renewals", daemon=True)
                self._thread.start()
        self._changed.set()

    def done(self, request_id: str) -> None:
        """The lease of that request's handoff is renewed no longer."""
        with self._lock:
            self._wanted.pop(request_id, None)

    def release(self, handoff: KVHandoff, reader: str) -> None:
        """Tell prefill, in the background, that ``reader`` needs the blocks no longer."""
        payload = json.dumps({"handoff_id": handoff.handoff_id, "reader": reader}).encode()
        self._submit((handoff.remote_host, handoff.remote_port), partial(self._release, handoff, payload))

    def stop(self) -> None:
        self._is_stopping = True
        self._changed.set()
        with self._lock:
            for lane in self._lanes.values():
                lane.clear()

    def _run(self) -> None:
        last_s = self._clock()
        while not self._is_stopping:
            with self._lock:
                handoffs = list(self._wanted.values())
            wait_s = None
            if handoffs:
                wait_s = last_s + min(handoff.lease_s for handoff in handoffs) / RENEWALS_PER_LEASE - self._clock()
                if wait_s <= 0:
                    self._renew_all(handoffs)
                    last_s = self._clock()
                    continue
            self._changed.wait(wait_s)
            self._changed.clear()

    def _renew_all(self, handoffs: list[KVHandoff]) -> None:
        by_address: dict[tuple[str, int], list[str]] = {}
        for handoff in handoffs:
            by_address.setdefault((handoff.remote_host, handoff.remote_port), []).append(handoff.handoff_id)
        for address, ids in by_address.items():
            with self._lock:
                if address in self._renewing:  # it does not answer; another message like the last one helps nobody
                    continue
                self._renewing.add(address)
            parts = [ids[at : at + MAX_RENEWALS_PER_MESSAGE] for at in range(0, len(ids), MAX_RENEWALS_PER_MESSAGE)]
            self._submit(address, partial(self._renew, address, parts))

    def _submit(self, address: tuple[str, int], job: Callable[[], None]) -> None:
        with self._lock:
            if (lane := self._lanes.get(address)) is not None:
                lane.append(job)
                return
            self._lanes[address] = deque([job])
        threading.Thread(target=self._work, args=(address,), name="kv-courier", daemon=True).start()

    def _work(self, address: tuple[str, int]) -> None:
        while True:
            with self._lock:
                if not self._lanes[address]:
                    del self._lanes[address]
                    return
                job = self._lanes[address].popleft()
            try:
                job()
            except Exception:
                logger.exception("a message to %s:%d was not sent", *address)

    def _renew(self, address: tuple[str, int], parts: list[list[str]]) -> None:
        with self._lock:
            self._renewing.discard(address)
        for handoff_ids in parts:
            self._renew_part(address, handoff_ids)

    def _renew_part(self, address: tuple[str, int], handoff_ids: list[str]) -> None:
        try:
            over = json.loads(self._send(*address, self._renew_verb, json.dumps(handoff_ids).encode()))
        except (TransferError, ValueError) as e:  # or the answer is no JSON
            logger.warning("%d lease(s) at %s:%d could not be renewed: %s", len(handoff_ids), *address, e)
            return
        if over:
            logger.debug("%d lease(s) at %s:%d are over", len(over), *address)

    def _release(self, handoff: KVHandoff, payload: bytes) -> None:
        for attempt in range(RELEASE_ATTEMPTS):
            try:
                self._send(handoff.remote_host, handoff.remote_port, self._release_verb, payload)
                return
            except TransferError as e:
                logger.log(
                    logging.WARNING if attempt + 1 == RELEASE_ATTEMPTS else logging.DEBUG,
                    "handoff %s could not be released at %s:%d: %s",
                    handoff.handoff_id,
                    handoff.remote_host,
                    handoff.remote_port,
                    e,
                )
