"""Prefill ranks in processes of their own, which live until killed: ``FOLDER NAME...`` on the command line.

One parent imports NIXL for all of them, which takes seconds, and ends when its last child has. A rank that can be read
from leaves its encoded hello in the folder, in a file that is named for it and its process.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

from kv_transfer.agent import KVAgent, RowRegion
from kv_transfer.fence import Fence
from kv_transfer.handshake import Hello, encode_hello
from kv_transfer.layout import pool_row
from tests.unit.kv_transfer.model import GEOMETRY

NUM_BLOCKS = 12
LIFE_S = 300.0  # should the test die before it has killed us


def serve(folder: Path, name: str) -> None:
    """Rows full of 7, a fence without an ended lease, and an agent that is driven."""
    layout = pool_row(GEOMETRY, 1)
    rows = np.full((NUM_BLOCKS, layout.row_bytes), 7, dtype=np.uint8)
    fence, scratch = Fence(8), np.zeros(1, dtype=np.uint64)
    agent = KVAgent(name, ["UCX"])
    agent.register_words(fence.words, scratch)
    hello = Hello(
        tp_rank=0,
        layout=layout,
        num_blocks=NUM_BLOCKS,
        base_address=rows.ctypes.data,
        device_id=0,
        memory="DRAM",
        fence_address=fence.words.ctypes.data,
        num_fence_words=len(fence.words),
        agent_metadata=agent.register(RowRegion(rows.ctypes.data, layout.row_bytes, NUM_BLOCKS, 0, "DRAM")),
    )
    unfinished = folder / f".{name}"
    unfinished.write_bytes(encode_hello(hello))
    unfinished.rename(folder / f"{name}.{os.getpid()}")
    deadline = time.monotonic() + LIFE_S
    while time.monotonic() < deadline:
        agent.notes()
        time.sleep(0.001)


def main() -> None:
    """One child for each name."""
    folder, *names = sys.argv[1:]
    for name in names:
        if os.fork() == 0:
            serve(Path(folder), name)
            os._exit(1)
    for _ in names:
        os.wait()


if __name__ == "__main__":
    main()
