"""A pool that kernels could not read right is refused before they are launched."""

import pytest
import torch

from msa_model.ops.pool import check_block_table, check_pool

POOL = torch.zeros(2, 3, 128, 72, dtype=torch.uint8)


def test_rows_longer_than_their_pages_are_fine() -> None:
    row = torch.zeros(4, 3 * 9216 + 64, dtype=torch.uint8)
    check_pool(row.as_strided((4, 3, 128, 72), (row.stride(0), 9216, 72, 1)), 2)


@pytest.mark.parametrize(
    "pool",
    [POOL.int(), POOL[..., :64], POOL[:, ::2], torch.zeros(2, 9216 * 3 + 8, dtype=torch.uint8)],
    ids=["dtype", "page", "gaps", "alignment"],
)
def test_another_layout_is_refused(pool: torch.Tensor) -> None:
    if pool.dim() == 2:
        pool = pool.as_strided((2, 3, 128, 72), (pool.stride(0), 9216, 72, 1))
    with pytest.raises(ValueError, match="must"):
        check_pool(pool, 0)


@pytest.mark.parametrize("slot", [-1, 3])
def test_a_slot_that_is_not_there_is_refused(slot: int) -> None:
    with pytest.raises(ValueError, match="not one of the pool's 3"):
        check_pool(POOL, slot)


def test_the_table_says_how_many_requests_and_blocks_there_are() -> None:
    table = torch.zeros(2, 5, dtype=torch.int32)
    assert check_block_table(table, torch.zeros(2, dtype=torch.int32)) == (2, 5)
    for bad in (table.long(), table.T, table[0]):
        with pytest.raises(ValueError, match="int32"):
            check_block_table(bad, torch.zeros(2, dtype=torch.int32))
