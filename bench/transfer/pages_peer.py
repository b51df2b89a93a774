"""The layer-outer layout (facts K1): 125 pages a block, a NIXL descriptor each, posted as well as NIXL lets one.

Prepared lists (one strided line a page) and index arrays, like our rows; an agent with the settings of ours. Pages are
listed layer by layer, so that NIXL merges those of neighbouring blocks.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from nixl._api import nixl_agent, nixl_agent_config

from bench.transfer.case import Request
from bench.transfer.geometry import Layout, page_indices, page_lines
from bench.transfer.peer import Sample, wait_until
from bench.transfer.pool import Pool
from kv_transfer.agent import RowRegion


class PagesPeer:
    """One read for each request, of 125 descriptors a block before merging."""

    name = "pages"
    layout: Layout = "layer_outer"

    def __init__(self, pool: Pool, source: tuple[bytes, RowRegion]) -> None:
        config = nixl_agent_config(backends=["UCX"], capture_telemetry=True, enable_prog_thread=False)
        self._nixl = nixl_agent("sink-pages", config)
        self._blocks, self._peer_blocks = pool.num_blocks, source[1].num_blocks
        self._registered = self._nixl.register_memory(
            [(pool.address, pool.memory.numel(), pool.device_id, "")], pool.nixl_memory
        )
        metadata, region = source
        peer = self._nixl.add_remote_agent(metadata)
        self._peer = peer.decode() if isinstance(peer, bytes) else peer
        self._local = self._prepare("NIXL_INIT_AGENT", pool.address, pool.num_blocks, pool.device_id, pool.nixl_memory)
        self._remote = self._prepare(
            self._peer, region.base_address, region.num_blocks, region.device_id, region.memory
        )

    def _prepare(self, owner: str, address: int, num_blocks: int, device_id: int, memory: str) -> Any:
        pages = page_lines("layer_outer", num_blocks)
        lines = np.empty((len(pages), 5), dtype=np.uint64)
        lines[:, 0] = pages[:, 0].astype(np.uint64) + np.uint64(address)
        lines[:, 1], lines[:, 2] = pages[:, 1], device_id
        lines[:, 3], lines[:, 4] = pages[:, 2], num_blocks
        return self._nixl.prep_xfer_dlist(owner, lines, memory)

    def move(self, requests: Sequence[Request]) -> Sample:
        nixl = self._nixl
        began = time.perf_counter()
        handles = []
        for request in requests:
            mine = page_indices(request.mine, self._blocks)
            theirs = page_indices(request.theirs, self._peer_blocks)
            handle = nixl.make_prepped_xfer("READ", self._local, mine, self._remote, theirs)
            nixl.transfer(handle)
            handles.append(handle)
        posted = time.perf_counter()
        waiting = list(handles)

        def is_done() -> bool:
            nonlocal waiting
            states = [(handle, nixl.check_xfer_state(handle)) for handle in waiting]
            if any(state == "ERR" for _, state in states):
                raise RuntimeError(f"{self.name}: NIXL reports an error")
            waiting = [handle for handle, state in states if state == "PROC"]
            return not waiting

        wait_until(is_done, self.name)
        ended = time.perf_counter()
        num_descriptors = sum(int(nixl.get_xfer_telemetry(handle).descCount) for handle in handles)
        for handle in handles:
            nixl.release_xfer_handle(handle)
        return Sample(ended - began, posted - began, num_descriptors)

    def close(self) -> None:
        self._nixl.release_dlist_handle(self._local)
        self._nixl.release_dlist_handle(self._remote)
        self._nixl.remove_remote_agent(self._peer)
        self._nixl.deregister_memory(self._registered)
