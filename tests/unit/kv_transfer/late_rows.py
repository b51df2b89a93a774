"""A script, run with ``UCX_TLS=tcp``: over TCP a read goes on only while its peer moves, so this peer can hang.

Prints what was seen as JSON; ``test_draining`` says what it must be.
"""

import json
import time

import numpy as np

from tests.unit.kv_transfer.factories import Clock
from tests.unit.kv_transfer.ranks import Rank, pull

ENGINE, TIMEOUT_S, MINE, THEIRS = "prefill-0-life1", 5.0, [4, 5, 6], [11, 2, 7]
OTHERS = 99  # what the next owner of the blocks would have written


def main() -> None:
    clock = Clock()
    prefill, decode = Rank("late-prefill"), Rank("late-decode", read_timeout_s=TIMEOUT_S, clock=clock)
    prefill.fill()
    decode.meet(ENGINE, prefill)
    decode.pulls.begin(pull(ENGINE, [1], [3], request_id="first"))
    decode.move(prefill)
    decode.pulls.begin(pull(ENGINE, MINE, THEIRS))
    ended: set[str] = set()
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        ended |= decode.pulls.move_on(decode.stats)[0]  # the peer hangs
    seen: dict[str, object] = {"ended before the time-out": sorted(ended)}
    clock.now += TIMEOUT_S + 0.1
    ended, failed = decode.pulls.move_on(decode.stats)
    pinned, drained = decode.pulls.draining.take_news()
    seen |= {"ended": sorted(ended), "failed": sorted(failed), "pinned": pinned, "drained": drained}
    decode.rows[MINE] = OTHERS
    decode.pulls.begin(pull(ENGINE, [8], [1], request_id="meanwhile"))
    seen["meanwhile"] = sorted(decode.move(prefill)[1])
    deadline = time.monotonic() + 10
    while not drained and time.monotonic() < deadline:
        prefill.agent.notes()  # the peer moves again
        decode.pulls.move_on(decode.stats)
        drained = decode.pulls.draining.take_news()[1]
    seen["landed"] = bool((decode.rows[MINE] != OTHERS).any())
    seen["drained later"] = drained
    decode.rows[MINE] = OTHERS
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        prefill.agent.notes()
        decode.agent.notes()
    seen["landed after"] = bool((decode.rows[MINE] != OTHERS).any())
    decode.pulls.begin(pull(ENGINE, [8], [1], request_id="again"))
    seen["again"] = [sorted(ids) for ids in decode.move(prefill)]
    seen["right"] = bool(np.array_equal(decode.rows[8], prefill.rows[1]))
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
