"""The sparse attention kernels on a GPU do what their twins do, up to 512K tokens, and in CUDA graphs."""

import pytest
import torch

from msa_model.ops.index_score import score_decode
from msa_model.ops.select import select_decode
from msa_model.ops.sparse_decode import sparse_attention_decode
from msa_model.ops.sparse_prefill import sparse_attention_prefill
from msa_model.ops.target import target_of
from msa_model.reference.block_attention import attend_decode, attend_prefill
from msa_model.reference.tolerances import relative_l2, tolerance
from tests.unit.msa_model.ops.attention_batch import AttentionBatch, make_batch, random_pool

pytestmark = pytest.mark.one_gpu

DEVICE = "cuda"
LONGEST = 512 * 1024
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def rounds_products() -> bool:
    return target_of(torch.device(DEVICE, 0)).rounds_products


def attend(batch: AttentionBatch, splits: int | None = None, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    out = torch.full(batch.query.shape, float("nan"), dtype=dtype, device=DEVICE)
    sparse_attention_decode(*batch.pages, splits=splits, out=out)
    return out


def limit(dtype: torch.dtype) -> float:
    return tolerance("sparse_attention", "bfloat16" if dtype == torch.bfloat16 else "float16")


@pytest.mark.parametrize(
    ("seq_lens", "rows", "kv_heads"),
    [
        ([1], 1, 1),
        ([LONGEST], 1, 1),
        ([LONGEST - 37, 0, 100_001], 8, 1),
        ([200_000, 129, 5, 128], 2, 4),
        ([2049 + 611 * row for row in range(64)], 1, 1),
        ([1000 + 17 * row for row in range(64)], 5, 2),
        ([8 + 7 * row for row in range(40)], 8, 4),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_equals_its_twin(seq_lens: list[int], rows: int, kv_heads: int, dtype: torch.dtype) -> None:
    batch = make_batch(seq_lens, [rows] * len(seq_lens), kv_heads=kv_heads, device=DEVICE, dtype=dtype)
    expected = attend_decode(*batch.pages, rounds_products=rounds_products())
    assert relative_l2(attend(batch, dtype=dtype), expected) < limit(dtype)


@pytest.mark.parametrize("splits", [1, 2, 4, 8, 16])
def test_shares_of_the_chosen_blocks_add_up_to_the_whole(splits: int) -> None:
    batch = make_batch([70_000, 1500, 300, 0], [2] * 4, kv_heads=2, device=DEVICE)
    expected = attend_decode(*batch.pages, rounds_products=rounds_products())
    assert relative_l2(attend(batch, splits), expected) < limit(torch.float32)


@pytest.mark.parametrize(("group_size", "topk"), [(16, 3), (5, 16), (1, 1)])
def test_any_number_of_chosen_blocks_and_of_heads_to_a_kv_head_will_do(group_size: int, topk: int) -> None:
    batch = make_batch([9000, 100], [3] * 2, kv_heads=2, group_size=group_size, topk=topk, device=DEVICE)
    expected = attend_decode(*batch.pages, rounds_products=rounds_products())
    assert relative_l2(attend(batch), expected) < limit(torch.float32)


def test_the_same_inputs_give_the_same_bits() -> None:
    batch = make_batch([30_000] * 4, [2] * 4, device=DEVICE)
    first = attend(batch)
    for _ in range(20):
        assert torch.equal(attend(batch), first)


@pytest.mark.parametrize(
    ("seq_lens", "query_lens", "kv_heads"),
    [([1000], [1000], 1), ([LONGEST], [700], 1), ([50_000, 1, 300, 5001], [129, 1, 300, 77], 4)],
)
def test_prefill_equals_its_twin(seq_lens: list[int], query_lens: list[int], kv_heads: int) -> None:
    for dtype in DTYPES:
        batch = make_batch(seq_lens, query_lens, kv_heads=kv_heads, device=DEVICE, dtype=dtype)
        expected = attend_prefill(*batch.pages, batch.query_start_loc, rounds_products=rounds_products())
        out = torch.full(batch.query.shape, float("nan"), dtype=dtype, device=DEVICE)
        sparse_attention_prefill(*batch.pages, batch.query_start_loc, max_query_len=max(query_lens), out=out)
        assert relative_l2(out, expected) < limit(dtype)


def test_a_token_gets_the_same_bits_from_prefill_and_from_decode() -> None:
    batch = make_batch([5000, 300], [8, 8], device=DEVICE)
    out = torch.empty_like(batch.query)
    sparse_attention_prefill(*batch.pages, batch.query_start_loc, max_query_len=8, out=out)
    assert torch.equal(out, attend(batch, splits=1))


@pytest.mark.parametrize("rows", [1, 8])
def test_a_captured_graph_of_score_selection_and_attention_follows_lengths_that_change(rows: int) -> None:
    lengths = [LONGEST // 4, 3000, 700]
    batch = make_batch(lengths, [rows] * 3, device=DEVICE, dtype=torch.bfloat16)
    index_query = torch.randn(3 * rows, 1, 128, device=DEVICE).bfloat16()
    index_pool = random_pool(batch.pool.shape[0], 1, DEVICE, seed=9)
    out = torch.empty_like(batch.query)

    def step() -> torch.Tensor:
        scores = score_decode(index_query, index_pool, 0, batch.block_table, batch.seq_lens, lets_next_start=True)
        chosen = select_decode(scores, batch.seq_lens, topk_blocks=16, local_blocks=1, follows_score=True)
        batch.chosen = chosen
        sparse_attention_decode(*batch.pages, follows_selection=True, out=out)
        return chosen

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for shorter in (0, 1, 650, 10**6):
        lens = [max(length - shorter, 0) for length in lengths]
        batch.seq_lens.copy_(torch.tensor(lens, dtype=torch.int32))
        out.fill_(float("nan"))
        for _ in range(3):
            graph.replay()
        batch.chosen = captured
        expected = attend_decode(*batch.pages, rounds_products=rounds_products())
        is_real = (expected != 0).flatten(1).any(1)
        assert out.isfinite().all()
        assert relative_l2(out[is_real], expected[is_real]) < limit(torch.bfloat16)
