"""Sizes of a cache: what the facts say, and what follows for other ranks and dtypes."""

from dataclasses import replace
from typing import Any

import pytest

from kv_transfer.geometry import PROFILES, Dtype, heads_of_rank, heads_per_rank, vector_bytes

FLASH, M3 = PROFILES["m31-flash"], PROFILES["m3"]


@pytest.mark.parametrize(("dtype", "num_bytes"), [("nvfp4", 64 + 8), ("fp8", 128), ("bf16", 256)])
def test_a_vector_of_128_values_has_the_bytes_of_facts_m4(dtype: Dtype, num_bytes: int) -> None:
    assert vector_bytes(dtype, 128) == num_bytes


def test_a_vector_that_no_dtype_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="no multiple of 16"):
        vector_bytes("nvfp4", 120)
    with pytest.raises(ValueError, match="no cache dtype 'int4'"):
        vector_bytes("int4", 128)  # type: ignore[arg-type]


@pytest.mark.parametrize(("dtype", "num_bytes"), [("fp8", 61_440), ("nvfp4", 34_560)])
def test_a_token_keeps_the_bytes_of_facts_m5(dtype: Dtype, num_bytes: int) -> None:
    assert replace(FLASH, kv_dtype=dtype).kv_bytes_per_token == num_bytes


@pytest.mark.parametrize(("dtype", "num_bytes"), [("fp8", 7_680), ("nvfp4", 4_320)])
def test_a_token_s_index_keys_come_on_top_as_in_facts_m5(dtype: Dtype, num_bytes: int) -> None:
    assert 60 * replace(FLASH, index_dtype=dtype).index_bytes == 128 * num_bytes


def test_pages_of_one_head_have_the_bytes_of_facts_k2() -> None:
    assert (FLASH.kv_head_bytes, FLASH.index_bytes, FLASH.drafter_head_bytes) == (128 * 144, 128 * 72, 128 * 256)


def test_m3_differs_by_its_fp8_cache_and_three_layers_without_index() -> None:
    flash = replace(FLASH, kv_dtype="fp8", index_dtype="fp8", num_drafter_layers=0)  # facts M3, M7
    assert replace(flash, num_index_layers=57) == M3


@pytest.mark.parametrize(
    ("tp_size", "heads"),
    [
        (1, [[0, 1, 2, 3]]),
        (2, [[0, 1], [2, 3]]),
        (4, [[0], [1], [2], [3]]),  # facts K2: at TP4 a rank holds 1 of 4 KV heads
        (8, [[0], [0], [1], [1], [2], [2], [3], [3]]),
    ],
)
def test_four_heads_spread_over_ranks_and_replicas_are_neighbours(tp_size: int, heads: list[list[int]]) -> None:
    assert [list(heads_of_rank(tp_size, rank, 4)) for rank in range(tp_size)] == heads
    assert heads_per_rank(tp_size, 4) == len(heads[0])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((3, 0, 4), "TP 3 neither divides 4 KV heads nor is a multiple of them"),
        ((0, 0, 4), "at least 1"),
        ((1, 0, 0), "at least 1"),
        ((4, 4, 4), "TP 4 has no rank 4"),
        ((4, -1, 4), "TP 4 has no rank -1"),
    ],
)
def test_ranks_that_heads_don_t_fit_are_refused(arguments: tuple[int, int, int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        heads_of_rank(*arguments)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_layers": 0}, "num_layers is 0"),
        ({"num_kv_heads": -4}, "num_kv_heads is -4"),
        ({"num_drafter_kv_heads": 0}, "num_drafter_kv_heads is 0"),
        ({"num_index_layers": 61}, "num_index_layers is 61, of 60 layers"),
        ({"num_drafter_layers": -1}, "num_drafter_layers is -1"),
        ({"head_dim": 120}, "no multiple of 16"),
        ({"index_dtype": "fp4"}, "no cache dtype 'fp4'"),
    ],
)
def test_a_cache_that_can_t_be_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(FLASH, **change)
