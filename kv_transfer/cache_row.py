"""The row as vLLM lays it out: from KVCacheConfig to RowLayout, and the check that the bound tensors lie so."""

from collections.abc import Mapping
from typing import Literal

import torch
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    KVCacheConfig,
    KVQuantMode,
    MLAAttentionSpec,
    UniformTypeKVCacheSpecs,
)

from kv_transfer.agent import RowRegion
from kv_transfer.layout import Page, RowLayout

REQUIRED_LAYOUT = "BLHNC"  # block, layer, head, token, content: blocks outermost


def row_bytes_of(config: KVCacheConfig) -> int:
    """Bytes from one block to the next; right on both sides of the connector.

    Raises:
        ValueError: several cache groups, or a layout that is not block-outermost.
    """
    if len(config.kv_cache_groups) != 1:
        names = [group.layer_names for group in config.kv_cache_groups]
        raise ValueError(f"a KV row needs all cache layers in one group, vLLM made {len(names)}: {names}")
    strides = {tensor.block_stride for tensor in config.kv_cache_tensors}
    if len(strides) != 1:
        raise ValueError(f"block strides {sorted(strides)} differ: the KV-cache layout is not {REQUIRED_LAYOUT}")
    return int(strides.pop())


def row_of(config: KVCacheConfig) -> RowLayout:
    """The row that ``config`` describes; worker side only, as vLLM gives the scheduler one spec for all layers.

    Raises:
        ValueError: a block is not one dense row.
    """
    block_stride = row_bytes_of(config)
    group_spec = config.kv_cache_groups[0].kv_cache_spec
    pages = []
    for tensor in config.kv_cache_tensors:
        for i, name in enumerate(tensor.layers):
            spec = group_spec.kv_cache_specs[name] if isinstance(group_spec, UniformTypeKVCacheSpecs) else group_spec
            # vLLM's own mark for "one head, the same on every rank"
            is_sharded = not isinstance(spec, MLAAttentionSpec)
            num_heads = _heads_of_page(name, spec) if is_sharded else 1
            offset = tensor.offset + i * tensor.layer_stride
            pages.append(Page(name, offset, spec.page_size_bytes, is_sharded, num_heads))
    return RowLayout.from_pages(pages, block_stride)


def _heads_of_page(name: str, spec: AttentionSpec) -> int:
    """KV heads of this rank in a page that is cut by head; each must be contiguous."""
    if spec.page_size_bytes != spec.unpadded_page_size_bytes:
        raise ValueError(f"page {name} is padded, so its heads can't be told apart")
    if spec.kv_quant_mode is KVQuantMode.NVFP4:
        raise ValueError(f"page {name} keeps the scales of all heads behind their data, so a head is not contiguous")
    return int(spec.num_kv_heads)


def block_size_of(config: KVCacheConfig) -> int:
    """Tokens a block."""
    size: int = config.kv_cache_groups[0].kv_cache_spec.block_size
    return size


def region_of(layout: RowLayout, num_blocks: int, kv_caches: Mapping[str, torch.Tensor]) -> RowRegion:
    """The memory behind ``kv_caches``, checked against ``layout``.

    Args:
        kv_caches: cache layer name -> tensor [num_blocks, ...] as bound to the layers.

    Raises:
        ValueError: a layer lies elsewhere than the layout says, or the layers don't share one storage.
    """
    missing = {page.name for page in layout.pages} ^ set(kv_caches)
    if missing:
        raise ValueError(f"cache layers and the row's pages differ: {sorted(missing)}")
    storages = {kv_caches[page.name].untyped_storage().data_ptr() for page in layout.pages}
    if len(storages) != 1:
        raise ValueError(f"the row's pages lie in {len(storages)} storages; expected one backing row")
    base = storages.pop()
    for page in layout.pages:
        tensor = kv_caches[page.name]
        offset, stride = tensor.data_ptr() - base, tensor.stride(0) * tensor.element_size()
        if (offset, stride) != (page.offset, layout.row_bytes):
            raise ValueError(
                f"{page.name} is bound at byte {offset} with block stride {stride}, "
                f"the row wants byte {page.offset} and stride {layout.row_bytes}"
            )
    first = kv_caches[layout.pages[0].name]
    memory: Literal["DRAM", "VRAM"] = "VRAM" if first.is_cuda else "DRAM"
    return RowRegion(base, layout.row_bytes, num_blocks, max(first.get_device(), 0), memory)
