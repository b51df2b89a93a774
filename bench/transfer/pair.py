"""The two processes of a measurement: this one is the sink, the child is the source; on CUDA one GPU each."""

import multiprocessing
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bench.transfer import source
from bench.transfer.case import Case
from bench.transfer.pool import Pool
from bench.transfer.sink import VLLM_PREFIX, Effort, make_peer, measure

# vLLM sets it before it loads NIXL. Here NIXL is loaded first, but UCX reads it only when the first agent is made.
VLLM_UCX_SETTING = ("UCX_RCACHE_MAX_UNRELEASED", "1024")
SOURCE_START_S, SOURCE_END_S = 180.0, 20.0
SEED = 0
DEVICES = {"cuda": ("cuda:1", "cuda:0"), "cpu": ("cpu", "cpu")}  # sink, source


def run_group(
    device: str, names: Sequence[str], num_blocks: int, wanted: Sequence[Case], effort: Effort
) -> list[dict[str, Any]]:
    """Start a source, measure the named peers in all cases, and end the source again.

    Args:
        num_blocks: blocks of each pool; the sink's process holds two pools, the source's one.

    Returns:
        for each case, what each peer got.

    Raises:
        RuntimeError: the source did not start in time, or a peer moved wrong bytes.
    """
    here, there = DEVICES[device]
    layouts = tuple(name.removeprefix(VLLM_PREFIX) for name in names if name.startswith(VLLM_PREFIX))
    if layouts:
        os.environ.setdefault(*VLLM_UCX_SETTING)
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=source.run, args=(theirs, there, num_blocks, layouts), daemon=True)
    process.start()
    theirs.close()
    try:
        if device == "cuda":
            torch.cuda.set_device(here)
        pool, replica = Pool.empty(num_blocks, here), Pool.empty(num_blocks, there)
        replica.fill()
        pool.memory.zero_()  # touches all of it: a page fault is not the transfer's
        if not ours.poll(SOURCE_START_S):
            raise RuntimeError("the source did not start")
        offer: source.Offer = ours.recv()
        peers = [make_peer(name, pool, replica, offer) for name in names]
        rng = np.random.default_rng(SEED)
        measured = []
        for case in wanted:
            got = measure(case, peers, pool, replica, effort, rng)
            measured.append(got)
            rates = ", ".join(f"{name} {peer['gb_per_s']:.1f}" for name, peer in got.items())
            print(f"{case.num_blocks} {case.pattern} x{case.num_requests}: {rates} GB/s", file=sys.stderr, flush=True)
        for peer in peers:
            peer.close()
        ours.send(None)
        process.join(SOURCE_END_S)
    finally:
        process.kill()
    return measured
