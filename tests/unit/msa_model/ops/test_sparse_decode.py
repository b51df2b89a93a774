"""The decode kernel equals its twin in Triton's interpreter, whatever lies around a request's own tokens."""

import pytest
import torch

from msa_model.ops.sparse_decode import decode_splits, sparse_attention_decode
from msa_model.ops.target import Target
from msa_model.reference.block_attention import attend_decode
from msa_model.reference.tolerances import relative_l2, tolerance
from tests.unit.msa_model.ops.attention_batch import (
    KEY_SLOT,
    NUM_LAYERS,
    AttentionBatch,
    make_batch,
    make_stale,
)

TOLERANCE = tolerance("sparse_attention", "float16")


def attend(batch: AttentionBatch, splits: int | None = None, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    out = torch.full(batch.query.shape, float("nan"), dtype=dtype)
    sparse_attention_decode(*batch.pages, splits=splits, out=out)
    return out


def expected(batch: AttentionBatch) -> torch.Tensor:
    return attend_decode(*batch.pages, rounds_products=False)


@pytest.mark.parametrize(
    ("seq_lens", "rows", "kv_heads", "topk"),
    [
        ([1], 1, 1, 16),
        ([128, 129], 1, 2, 16),
        ([700, 3, 255], 3, 1, 4),
        ([1153], 8, 1, 4),
        ([4096], 1, 1, 16),
        ([3999], 2, 1, 16),
    ],
)
def test_a_step_equals_its_twin(seq_lens: list[int], rows: int, kv_heads: int, topk: int) -> None:
    batch = make_batch(seq_lens, [rows] * len(seq_lens), kv_heads=kv_heads, topk=topk)
    assert relative_l2(attend(batch), expected(batch)) < TOLERANCE


def test_more_requests_than_a_wave_of_programs_are_all_served() -> None:
    lengths = [17 + 5 * row for row in range(24)]
    batch = make_batch(lengths, [1] * 24, topk=1)
    assert relative_l2(attend(batch), expected(batch)) < TOLERANCE


@pytest.mark.parametrize("splits", [2, 4, 16])
def test_shares_of_the_chosen_blocks_add_up_to_the_whole(splits: int) -> None:
    batch = make_batch([1500, 200], [1, 1], topk=8)
    assert relative_l2(attend(batch, splits), expected(batch)) < TOLERANCE


def test_any_number_of_chosen_blocks_and_of_heads_to_a_kv_head_will_do() -> None:
    batch = make_batch([900], [1], kv_heads=2, group_size=5, topk=3)
    assert relative_l2(attend(batch, splits=2), expected(batch)) < TOLERANCE


def test_padded_requests_and_rows_before_the_context_get_zeros() -> None:
    batch = make_batch([130, 0, 1], [2, 2, 2], topk=2)
    out = attend(batch)
    assert (out[2:5] == 0).all()
    assert relative_l2(out, expected(batch)) < TOLERANCE


def test_what_lies_behind_a_query_changes_no_bit() -> None:
    batch = make_batch([300], [2], topk=3)
    before = attend(batch)
    last_block = int(batch.block_table[0, 2])
    # The token at 299 is the second row's own: the first must not see it, nor anything that is not written.
    make_stale(batch.pool, last_block, 299 - 256)
    assert torch.equal(attend(batch)[0], before[0])
    assert not torch.equal(attend(batch)[1], before[1])


def test_a_context_is_read_through_its_own_row_of_the_table_alone() -> None:
    batch = make_batch([400, 250], [1, 1], topk=2)
    before = attend(batch)
    other_blocks = batch.block_table[1, :2].long()
    batch.pool[other_blocks] = batch.pool[other_blocks].flip(0)
    after = attend(batch)
    assert torch.equal(after[0], before[0])
    assert not torch.equal(after[1], before[1])


def test_other_layers_and_heads_slots_are_not_read() -> None:
    batch = make_batch([200], [1], kv_heads=2, topk=2)
    before = attend(batch)
    for slot in set(range(batch.pool.shape[1])) - {2, 3, 6, 7}:
        batch.pool[:, slot] = 0
    assert torch.equal(attend(batch), before)


def test_queries_are_rounded_to_e4m3_once_and_saturate() -> None:
    batch = make_batch([200], [1], topk=2)
    batch.query[0, 3] *= 1000
    rough = attend(batch)
    batch.query = batch.query.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    assert torch.equal(attend(batch), rough)


def test_half_precision_queries_and_outputs_are_the_rounded_float32_ones() -> None:
    batch = make_batch([200], [1], topk=2)
    rounded = batch.query.bfloat16()
    batch.query = rounded.float()
    out = attend(batch)
    batch.query = rounded
    assert torch.equal(attend(batch), out)
    assert torch.equal(attend(batch, dtype=torch.float16), out.half())
    # The interpreter cuts bits off where bfloat16 should round.
    assert relative_l2(attend(batch, dtype=torch.bfloat16), out) < tolerance("sparse_attention", "bfloat16")


def test_heads_of_a_wider_projection_are_read_in_place() -> None:
    batch = make_batch([200], [2], topk=2)
    dense = attend(batch)
    wide = torch.full((2, 40, 128), float("nan"))
    wide[:, 8:24] = batch.query
    batch.query = wide[:, 8:24]
    assert torch.equal(attend(batch), dense)


def test_work_is_split_until_every_multiprocessor_has_a_program() -> None:
    target = Target(name="sm_90", num_sms=132, shared_memory_bytes=0)
    assert [decode_splits(target, pairs, 16) for pairs in (1, 8, 9, 64, 66, 67, 1024)] == [16, 16, 8, 2, 2, 1, 1]
    assert decode_splits(target, 1, 1) == 1


def test_what_a_kernel_cannot_do_is_refused() -> None:
    batch = make_batch([200], [1], topk=2)
    out = torch.empty_like(batch.query)
    query, pool, slot, head_slots, chosen, table, lengths = batch.pages
    refused = {
        "query rows": (query.repeat(9, 1, 1), pool, slot, head_slots, chosen.repeat(9, 1, 1), table, lengths),
        "query heads": (query.repeat(1, 2, 1), pool, slot, head_slots, chosen, table, lengths),
        "chosen": (query, pool, slot, head_slots, chosen.float(), table, lengths),
        "slot": (query, pool, 4, head_slots, chosen, table, lengths),
        "block_table": (query, pool, slot, head_slots, chosen, table.long(), lengths),
        "alike": (query[..., :64], pool, slot, head_slots, chosen, table, lengths),
    }
    for reason, arguments in refused.items():
        with pytest.raises(ValueError, match=reason):
            sparse_attention_decode(*arguments, out=torch.empty_like(arguments[0]))
    with pytest.raises(ValueError, match="alike"):
        sparse_attention_decode(*batch.pages, out=out[..., :64])
    assert (slot, head_slots) == (KEY_SLOT, 2 * NUM_LAYERS)
