"""The source's process: holds random blocks and lets them be read."""

from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch

from bench.transfer.pool import Pool
from bench.transfer.rows_peer import BACKENDS, region_of
from kv_transfer.agent import KVAgent, RowRegion

# The owner of an agent drives it: as often as the product does while somebody may read.
TICK_S = 0.001


@dataclass(frozen=True, slots=True)
class Offer:
    """What the sink needs to reach the source: the agent's metadata and rows; vLLM's handshake by layout name."""

    metadata: bytes
    region: RowRegion
    vllm: dict[str, bytes] = field(default_factory=dict)


def run(connection: Connection, device: str, num_blocks: int, vllm_layouts: tuple[str, ...]) -> None:
    """Fill a pool, send one ``Offer`` and serve reads until anything arrives on ``connection``, or it closes."""
    if device != "cpu":
        torch.cuda.set_device(device)
    pool = Pool.empty(num_blocks, device)
    pool.fill()
    agent = KVAgent("source-rows", BACKENDS)
    region = region_of(pool)
    metadata = agent.register(region)
    workers: dict[str, Any] = {}
    handshakes: dict[str, bytes] = {}
    for name in vllm_layouts:
        from bench.transfer.vllm_peer import make_worker

        workers[name], handshakes[name] = make_worker(f"source-{name}", name, pool)
    connection.send(Offer(metadata, region, handshakes))
    while not connection.poll(TICK_S):
        agent.notes()
        for worker in workers.values():
            worker.nixl_wrapper.get_new_notifs()  # of requests that no scheduler of vLLM's knows
    for worker in workers.values():
        worker.shutdown()
    agent.close()
