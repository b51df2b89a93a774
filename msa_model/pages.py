"""Byte layout of the paged cache, and reads and writes of head vectors in it.

A pool's page holds one slot per layer and head of one block of 128 tokens. A slot holds one head of one layer::

    offset in slot    bytes     content
    0                 128 x 64  E2M1 data of token 0, then of token 1, ...
    8192              128 x 8   E4M3 scales of token 0, then of token 1, ...
                      9,216     together (128 tokens x 72 bytes)

Slots of the K/V pool, heads outermost, so that all layers of one KV head are contiguous and a rank's heads can be cut
out of another rank's row with one read; K and V of a layer stay together::

    slot 2 x (head x num_layers + layer)        K
    slot 2 x (head x num_layers + layer) + 1    V

Slots of the index pool: one per layer with an index branch, in their order. In a block-outermost layout a block's row
is its K/V page followed by its index page. Bytes of tokens that were not written yet are stale: they may decode to NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from msa_model.config import BLOCK_SIZE, HEAD_DIM
from msa_model.reference.nvfp4 import GROUP, dequantize, nvfp4_bytes, quantize

STATE_BYTES = nvfp4_bytes(HEAD_DIM)
SLOT_BYTES = BLOCK_SIZE * STATE_BYTES
DATA_BYTES = HEAD_DIM // 2
SCALE_BYTES = HEAD_DIM // GROUP
SCALES_OFFSET = BLOCK_SIZE * DATA_BYTES


def kv_page_bytes(num_layers: int, num_kv_heads: int) -> int:
    """Bytes of one block in the K/V pool of a rank."""
    return 2 * num_layers * num_kv_heads * SLOT_BYTES


def index_page_bytes(num_index_layers: int) -> int:
    """Bytes of one block in the index pool, the same on every rank."""
    return num_index_layers * SLOT_BYTES


def key_slot(layer: int, head: int, num_layers: int) -> int:
    """Slot of a KV head's keys in the K/V pool; its values are in the next one."""
    return 2 * (head * num_layers + layer)


class SlotPages:
    """Views of one pool's data and scales; the memory is vLLM's.

    ``cache``: uint8 [num_blocks, num_slots, 128, 72], with any stride between blocks and none within one.
    Raises ValueError for another shape or stride.
    """

    def __init__(self, cache: torch.Tensor) -> None:
        inner = (SLOT_BYTES, STATE_BYTES, 1)
        if cache.shape[2:] != (BLOCK_SIZE, STATE_BYTES) or cache.stride()[1:] != inner:
            raise ValueError(
                f"a pool must be [blocks, slots, {BLOCK_SIZE}, {STATE_BYTES}] with contiguous pages, "
                f"not {tuple(cache.shape)} with strides {cache.stride()}"
            )
        self.cache = cache
        slots = cache.flatten(2)
        self.data = slots[..., :SCALES_OFFSET].unflatten(-1, (BLOCK_SIZE, DATA_BYTES))
        self.scale = slots[..., SCALES_OFFSET:].unflatten(-1, (BLOCK_SIZE, SCALE_BYTES))

    def write(self, slot_mapping: torch.Tensor, head_slots: torch.Tensor, values: torch.Tensor) -> None:
        """Quantise and store ``values`` [T, len(head_slots), 128] at the tokens of ``slot_mapping`` int [T].

        A negative slot is padding. It goes to the null block 0, which no request owns, so that shapes stay static.
        """
        data, scale = quantize(values)
        slot = slot_mapping.clamp(min=0).long()
        block, offset = (slot // BLOCK_SIZE)[:, None], (slot % BLOCK_SIZE)[:, None]
        self.data[block, head_slots, offset] = data
        self.scale[block, head_slots, offset] = scale.view(torch.uint8)

    def read(self, blocks: torch.Tensor, head_slots: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """float32 [len(head_slots), B, 128, 128] of one request's ``blocks`` int [B].

        Zero from token ``num_tokens`` on, whatever stale bytes lie there.
        """
        values = dequantize(self.data[blocks][:, head_slots], self.scale[blocks][:, head_slots]).transpose(0, 1)
        token = torch.arange(blocks.shape[0] * BLOCK_SIZE, device=blocks.device).view(-1, BLOCK_SIZE)
        return values.masked_fill(token[..., None] >= num_tokens, 0.0)

    def gather(self, blocks: torch.Tensor, head_slots: torch.Tensor) -> torch.Tensor:
        """float32 [..., k * 128, 128] of ``blocks`` int [..., k] in ``head_slots``, broadcast to it.

        Nothing is cut off: stale tokens come along and may be NaN.
        """
        return dequantize(self.data[blocks, head_slots], self.scale[blocks, head_slots]).flatten(-3, -2)


@dataclass(frozen=True, kw_only=True)
class LayerPages:
    """Where one layer's heads lie in the two pools, as int64 device tensors and as plain numbers."""

    kv: SlotPages
    index: SlotPages
    key_slots: torch.Tensor
    """[kv_heads]: ``first_key_slot``, and so on in steps of ``head_slots``."""
    value_slots: torch.Tensor
    index_slots: torch.Tensor
    first_key_slot: int
    head_slots: int
    index_slot: int

    def write(
        self, slot_mapping: torch.Tensor, key: torch.Tensor, value: torch.Tensor, index_key: torch.Tensor | None
    ) -> None:
        """Store a step's ``key`` and ``value`` [T, kv_heads, 128] and ``index_key`` [T, 1, 128].

        A dense layer has no ``index_key``.
        """
        self.kv.write(slot_mapping, self.key_slots, key)
        self.kv.write(slot_mapping, self.value_slots, value)
        if index_key is not None:
            self.index.write(slot_mapping, self.index_slots, index_key)


def check_row(caches: Sequence[torch.Tensor], *, is_whole_row: bool = True) -> int:
    """Bytes of one block's row, if ``caches`` (each [num_blocks, ...], in row order) are its consecutive pages.

    With ``is_whole_row`` the distance between blocks must be the sum of the pages, so that a block is one contiguous
    range; without it the row may go on after them (a drafter's pages). Raises ValueError otherwise.
    """
    storages = {cache.untyped_storage().data_ptr() for cache in caches}
    if len(storages) != 1:
        raise ValueError(f"the caches lie in {len(storages)} storages; a row must lie in one")
    strides = {cache.stride(0) * cache.element_size() for cache in caches}
    if len(strides) != 1:
        raise ValueError(f"the caches step through blocks by {sorted(strides)} bytes; a row has one step")
    end = start = caches[0].data_ptr()
    for number, cache in enumerate(caches):
        if cache.data_ptr() != end:
            raise ValueError(f"cache {number} begins {cache.data_ptr() - start} bytes into the row, not {end - start}")
        end += cache[0].numel() * cache.element_size()
    row_bytes = strides.pop()
    if end - start > row_bytes or (is_whole_row and end - start != row_bytes):
        raise ValueError(f"blocks are {row_bytes} bytes apart, but their pages sum up to {end - start}")
    return row_bytes
