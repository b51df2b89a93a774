"""The prefill kernel equals its twin in Triton's interpreter, for whole prompts, chunks and prefix hits."""

import pytest
import torch

from msa_model.ops.sparse_decode import sparse_attention_decode
from msa_model.ops.sparse_prefill import sparse_attention_prefill
from msa_model.reference.block_attention import attend_prefill
from msa_model.reference.tolerances import relative_l2, tolerance
from tests.unit.msa_model.ops.attention_batch import AttentionBatch, make_batch

TOLERANCE = tolerance("sparse_attention", "float16")


def attend(batch: AttentionBatch, max_query_len: int) -> torch.Tensor:
    out = torch.full(batch.query.shape, float("nan"))
    sparse_attention_prefill(*batch.pages, batch.query_start_loc, max_query_len=max_query_len, out=out)
    return out


@pytest.mark.parametrize(
    ("seq_lens", "query_lens", "kv_heads", "topk"),
    [
        ([37], [37], 2, 1),
        ([140, 1, 600], [12, 1, 5], 1, 2),
        ([4001], [3], 1, 16),
    ],
)
def test_requests_of_any_length_equal_their_twin(
    seq_lens: list[int], query_lens: list[int], kv_heads: int, topk: int
) -> None:
    batch = make_batch(seq_lens, query_lens, kv_heads=kv_heads, topk=topk)
    expected = attend_prefill(*batch.pages, batch.query_start_loc, rounds_products=False)
    assert relative_l2(attend(batch, max(query_lens)), expected) < TOLERANCE


def test_a_prompt_in_chunks_gives_what_it_gives_at_once() -> None:
    batch = make_batch([150], [12], topk=2)
    whole = attend(batch, 12)
    query, pool, slot, head_slots, chosen, table, _ = batch.pages
    out = torch.empty_like(query)
    for start, end in ((0, 5), (5, 12)):
        starts, lengths = torch.tensor([0, end - start]).int(), torch.tensor([138 + end]).int()
        span = slice(start, end)
        sparse_attention_prefill(
            query[span],
            pool,
            slot,
            head_slots,
            chosen[span],
            table,
            lengths,
            starts,
            max_query_len=end - start,
            out=out[span],
        )
    assert torch.equal(out, whole)


def test_a_token_gets_the_same_bits_from_prefill_and_from_decode() -> None:
    batch = make_batch([500, 300], [4, 4], topk=3)
    out = torch.empty_like(batch.query)
    sparse_attention_decode(*batch.pages, splits=1, out=out)
    assert torch.equal(attend(batch, 4), out)


def test_a_bound_above_the_longest_query_changes_nothing() -> None:
    batch = make_batch([40, 90], [2, 5], topk=1)
    assert torch.equal(attend(batch, 9), attend(batch, 5))


def test_tokens_behind_the_last_request_are_left_alone() -> None:
    batch = make_batch([40, 90], [2, 3], topk=1)
    batch.query_start_loc = batch.query_start_loc[:2]
    batch.seq_lens, batch.block_table = batch.seq_lens[:1], batch.block_table[:1]
    out = attend(batch, 3)
    assert out[:2].isfinite().all()
    assert out[2:].isnan().all()


def test_what_a_kernel_cannot_do_is_refused() -> None:
    batch = make_batch([40], [2], topk=1)
    for starts, max_query_len, reason in (
        (batch.query_start_loc.long(), 2, "query_start_loc"),
        (batch.query_start_loc[:1], 2, "query_start_loc"),
        (batch.query_start_loc, 0, "max_query_len"),
    ):
        with pytest.raises(ValueError, match=reason):
            sparse_attention_prefill(
                *batch.pages, starts, max_query_len=max_query_len, out=torch.empty_like(batch.query)
            )
