"""The two pools: what they ask of vLLM's cache, and that a connector gets one row per block or no start."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.v1.kv_cache_interface import KVCacheLayout, KVQuantMode

from msa_model.backend import MSABackend, MSAImpl, MSAIndexBackend
from msa_model.cache import IndexPool, KVPool
from msa_model.config import BLOCK_SIZE
from msa_model.pages import STATE_BYTES, index_page_bytes, kv_page_bytes
from tests.unit.msa_model.factories import make_shape

SHAPE = make_shape()


@pytest.fixture
def config() -> Iterator[VllmConfig]:
    config = VllmConfig()
    with set_current_vllm_config(config):
        yield config


def make_pools() -> tuple[KVPool, IndexPool]:
    impl = MSAImpl(SHAPE, 64, torch.device("cpu"))
    kv_pool = KVPool("model.kv_pool.0", SHAPE, impl)
    return kv_pool, IndexPool("model.index_pool.0", SHAPE, impl, kv_pool)


def engine(block_size: int) -> Any:
    return SimpleNamespace(cache_config=SimpleNamespace(block_size=block_size))


def caches(*, is_block_outermost: bool) -> list[torch.Tensor]:
    slots = [8, 2]
    if is_block_outermost:
        return list(torch.zeros(3, sum(slots), BLOCK_SIZE, STATE_BYTES, dtype=torch.uint8).split(slots, dim=1))
    parts = torch.zeros(3 * sum(slots), BLOCK_SIZE, STATE_BYTES, dtype=torch.uint8).split([3 * n for n in slots])
    return [part.unflatten(0, (3, -1)) for part in parts]


def test_pages_are_as_long_as_their_slots(config: VllmConfig) -> None:
    kv, index = (pool.get_kv_cache_spec(engine(BLOCK_SIZE)) for pool in make_pools())
    assert kv.page_size_bytes == kv_page_bytes(SHAPE.num_layers, SHAPE.num_kv_heads)
    assert index.page_size_bytes == index_page_bytes(SHAPE.num_layers)
    assert kv.kv_quant_mode == index.kv_quant_mode == KVQuantMode.NONE


def test_another_block_size_is_refused(config: VllmConfig) -> None:
    for pool in make_pools():
        with pytest.raises(ValueError, match="block_size=64"):
            pool.get_kv_cache_spec(engine(64))


def test_both_pools_are_cache_layers_with_backends_of_their_own(config: VllmConfig) -> None:
    kv_pool, index_pool = make_pools()
    layers = config.compilation_config.static_forward_context
    assert layers == {"model.kv_pool.0": kv_pool, "model.index_pool.0": index_pool}
    assert [pool.get_attn_backend() for pool in (kv_pool, index_pool)] == [MSABackend, MSAIndexBackend]


def test_a_second_model_with_the_same_name_is_refused(config: VllmConfig) -> None:
    make_pools()
    with pytest.raises(ValueError, match="two cache layers"):
        make_pools()


def test_block_outermost_is_the_layout_of_choice() -> None:
    assert MSABackend.supported_kv_cache_layouts()[0] == KVCacheLayout.BLHNC


@pytest.mark.parametrize("has_connector", [False, True])
def test_rows_are_bound_with_and_without_a_connector(config: VllmConfig, has_connector: bool) -> None:
    config.kv_transfer_config = object() if has_connector else None
    kv_pool, index_pool = make_pools()
    for pool, cache in zip((kv_pool, index_pool), caches(is_block_outermost=True), strict=True):
        pool.bind_kv_cache(cache)
        assert pool.pages is not None


def test_layer_outermost_is_fine_without_a_connector_and_refused_with_one(config: VllmConfig) -> None:
    kv_cache, index_cache = caches(is_block_outermost=False)
    kv_pool, index_pool = make_pools()
    kv_pool.bind_kv_cache(kv_cache)
    index_pool.bind_kv_cache(index_cache)
    index_pool.needs_row = True
    with pytest.raises(ValueError, match="BLHNC"):
        index_pool.bind_kv_cache(index_cache)
