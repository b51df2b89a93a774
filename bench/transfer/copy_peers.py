"""Ceilings: the same bytes by plain copies inside the sink's process, without NIXL.

On CUDA the sink's process has a copy of the source's pool on the source's GPU and pulls from it with the driver's own
calls, all on one stream of the sink's GPU. On CPU one ``memcpy`` by torch is the ceiling.

    copy              one contiguous copy of all bytes: the peer-copy rate
    copy_rows         one cuMemcpyDtoDAsync for each row, without UCX, events or flushes between them
    copy_rows_batch   all rows in one cuMemcpyBatchAsync (CUDA 13)
"""

import ctypes
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from bench.transfer.case import Request
from bench.transfer.geometry import ROW_BYTES, Layout
from bench.transfer.peer import Sample
from bench.transfer.pool import Pool

SRC_ACCESS_ORDER_STREAM = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM


class _CopyAttributes(ctypes.Structure):
    """CUmemcpyAttributes of cuda.h: access order, two location hints (type, id), flags."""

    _fields_ = [(name, ctypes.c_int) for name in ("order", "src_type", "src_id", "dst_type", "dst_id", "flags")]


class CopyPeer:
    """One contiguous copy of as many bytes; its blocks are the first ones of each pool, whichever are asked for."""

    name = "copy"
    layout: Layout = "block_outer"

    def __init__(self, pool: Pool, replica: Pool) -> None:
        self._pool, self._replica = pool, replica

    def move(self, requests: Sequence[Request]) -> Sample:
        size = sum(len(request.mine) for request in requests) * ROW_BYTES
        self._pool.synchronize()
        began = time.perf_counter()
        self._pool.memory[:size].copy_(self._replica.memory[:size], non_blocking=True)
        posted = time.perf_counter()
        self._replica.synchronize()  # torch copies between GPUs on the source's stream
        self._pool.synchronize()
        return Sample(time.perf_counter() - began, posted - began, 0)

    def close(self) -> None:
        pass


class CopyRowsPeer:
    """The asked rows by the CUDA driver, in one of two ways."""

    layout: Layout = "block_outer"

    def __init__(self, name: str, pool: Pool, replica: Pool) -> None:
        self.name, self._pool, self._replica = name, pool, replica
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._stream = torch.cuda.Stream(pool.memory.device)
        _open_peer_access(pool, replica)
        ways: dict[str, Callable[[np.ndarray, np.ndarray], None]] = {
            "copy_rows": self._one_by_one,
            "copy_rows_batch": self._batch,
        }
        self._copy = ways[name]

    def move(self, requests: Sequence[Request]) -> Sample:
        mine = np.concatenate([request.mine for request in requests]).astype(np.uint64)
        theirs = np.concatenate([request.theirs for request in requests]).astype(np.uint64)
        to = mine * np.uint64(ROW_BYTES) + np.uint64(self._pool.address)
        of = theirs * np.uint64(ROW_BYTES) + np.uint64(self._replica.address)
        self._pool.synchronize()
        began = time.perf_counter()
        self._copy(to, of)
        posted = time.perf_counter()
        self._stream.synchronize()
        return Sample(time.perf_counter() - began, posted - began, 0)

    def _one_by_one(self, to: np.ndarray, of: np.ndarray) -> None:
        stream, size = ctypes.c_void_p(self._stream.cuda_stream), ctypes.c_size_t(ROW_BYTES)
        for destination, source in zip(to.tolist(), of.tolist(), strict=True):
            copied = self._cuda.cuMemcpyDtoDAsync_v2(
                ctypes.c_uint64(destination), ctypes.c_uint64(source), size, stream
            )
            _check(copied, "cuMemcpyDtoDAsync")

    def _batch(self, to: np.ndarray, of: np.ndarray) -> None:
        sizes = np.full(len(to), ROW_BYTES, dtype=np.uint64)
        attributes, first = _CopyAttributes(SRC_ACCESS_ORDER_STREAM, 0, 0, 0, 0, 0), ctypes.c_size_t(0)
        copied = self._cuda.cuMemcpyBatchAsync_v2(
            ctypes.c_void_p(to.ctypes.data),
            ctypes.c_void_p(of.ctypes.data),
            ctypes.c_void_p(sizes.ctypes.data),
            ctypes.c_size_t(len(to)),
            ctypes.byref(attributes),
            ctypes.byref(first),
            ctypes.c_size_t(1),
            ctypes.c_void_p(self._stream.cuda_stream),
        )
        _check(copied, "cuMemcpyBatchAsync")

    def close(self) -> None:
        pass


def _open_peer_access(pool: Pool, replica: Pool) -> None:
    """Let each GPU reach the other; torch does so at the first copy of each direction, and only for its source."""
    for first, second in ((pool, replica), (replica, pool)):
        torch.ones(1, device=first.memory.device).to(second.memory.device)
        first.synchronize()


def _check(status: int, call: str) -> None:
    if status != 0:
        raise RuntimeError(f"{call} gives CUDA error {status}")
