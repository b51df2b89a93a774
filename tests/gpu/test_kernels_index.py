"""The index kernels on a GPU do what their twins do, up to 512K tokens, in pages as far apart as real rows."""

import pytest
import torch

from msa_model.ops.index_score import operand_type, score_decode, score_prefill, score_tiling
from msa_model.ops.nvfp4 import e4m3_products, pack, unpack
from msa_model.ops.select import select_decode, select_prefill
from msa_model.ops.target import target_of
from msa_model.pages import SlotPages
from msa_model.reference import index_score as twin
from msa_model.reference.selection import select_blocks
from msa_model.reference.tolerances import relative_l2, tolerance

pytestmark = pytest.mark.one_gpu

DEVICE = torch.device("cuda", 0)
ROW_BYTES = 1_822_720
TOPK, LOCAL = 16, 1
# (requests, query rows, index heads, blocks of the table)
SIZES = [
    (1, 1, 1, 4096),
    (3, 2, 1, 700),
    (64, 1, 1, 40),
    (5, 8, 1, 1023),
    (2, 3, 4, 300),
    (7, 5, 2, 33),
    (4, 8, 4, 100),
]


def make_pool(num_blocks: int, row_bytes: int = 2 * 9216) -> torch.Tensor:
    """Two slots a block, of random values and of scales that are never NaN."""
    memory = torch.randint(256, (num_blocks, 2 * 9216), dtype=torch.uint8, device=DEVICE)
    pool = torch.empty(num_blocks * row_bytes, dtype=torch.uint8, device=DEVICE)
    rows = pool.as_strided((num_blocks, 2 * 9216), (row_bytes, 1))
    for first in range(0, num_blocks, 1024):  # one copy of widely strided rows can outgrow 32-bit offsets
        rows[first : first + 1024] = memory[first : first + 1024]
    view = pool.as_strided((num_blocks, 2, 128, 72), (row_bytes, 9216, 72, 1))
    SlotPages(view).scale.remainder_(64)
    return view


def make_batch(requests: int, query_rows: int, heads: int, blocks: int, num_blocks: int) -> tuple[torch.Tensor, ...]:
    """Index queries, block table and lengths: one full, one of the query alone, others random and mostly odd."""
    table = torch.randint(num_blocks, (requests, blocks), dtype=torch.int32, device=DEVICE)
    lens = torch.randint(query_rows, blocks * 128 + 1, (requests,), dtype=torch.int32, device=DEVICE)
    lens[0], lens[-1] = query_rows, blocks * 128
    query = torch.randn(requests * query_rows, heads, 128, device=DEVICE).bfloat16()
    return query, table, lens


def score_limit(query_rows: int, heads: int) -> float:
    target = target_of(DEVICE)
    tiling = score_tiling(target, query_rows * heads, 1, 1)
    is_fp8 = operand_type(target, tiling.applies_per_result).is_fp8()
    return tolerance("index_score", "float8_e4m3fn" if is_fp8 else "float16")


@pytest.fixture(scope="module")
def pool() -> torch.Tensor:
    torch.manual_seed(5)
    return make_pool(4500)


@pytest.mark.parametrize(("requests", "query_rows", "heads", "blocks"), SIZES)
def test_decode_scores_and_choices_are_the_twins(
    pool: torch.Tensor, requests: int, query_rows: int, heads: int, blocks: int
) -> None:
    query, table, lens = make_batch(requests, query_rows, heads, blocks, len(pool))
    rounds = target_of(DEVICE).rounds_products
    expected = twin.score_decode(query, pool, 1, table, lens, rounds_products=rounds)
    found = score_decode(query, pool, 1, table, lens, out=torch.full_like(expected, float("-inf")))
    is_seen = expected.isfinite()
    assert torch.equal(found.isfinite(), is_seen)
    limit = score_limit(query_rows, heads)
    assert relative_l2(found[is_seen], expected[is_seen]) <= limit
    position = (lens[:, None] - query_rows + torch.arange(query_rows, device=DEVICE)).flatten()
    chosen = select_decode(found, lens, topk_blocks=TOPK, local_blocks=LOCAL)
    assert torch.equal(chosen.long(), select_blocks(found, position // 128, TOPK, LOCAL)), "exact for given scores"
    assert_same_but_for_near_ties(chosen.long(), select_blocks(expected, position // 128, TOPK, LOCAL), expected, limit)


def assert_same_but_for_near_ties(
    chosen: torch.Tensor, expected: torch.Tensor, score: torch.Tensor, limit: float
) -> None:
    """Blocks that only one side chose score as the worst chosen one does, up to the tolerance of scores."""
    size = score[score.isfinite()].square().mean().sqrt()
    is_chosen, is_expected = (
        torch.zeros_like(score, dtype=torch.bool).scatter_(-1, b, True) for b in (chosen, expected)
    )
    worst = score.masked_fill(~is_expected, float("inf")).amin(-1, keepdim=True)
    differs = is_chosen ^ is_expected
    assert bool(((score - worst).abs()[differs] <= 20 * limit * size).all())


@pytest.mark.parametrize("row_bytes", [ROW_BYTES, 331_776])
def test_pages_may_lie_as_far_apart_as_rows(row_bytes: int) -> None:
    pool = make_pool(6000, row_bytes)
    query, table, lens = make_batch(2, 1, 1, 2500, len(pool))
    expected = twin.score_decode(query, pool, 1, table, lens)
    found = score_decode(query, pool, 1, table, lens, out=torch.full_like(expected, float("-inf")))
    is_seen = expected.isfinite()
    assert relative_l2(found[is_seen], expected[is_seen]) <= score_limit(1, 1)


def test_prefill_scores_are_the_twins(pool: torch.Tensor) -> None:
    for heads, lens, query_lens in ((1, [40000, 513], [777, 130]), (4, [1, 31999, 200], [1, 300, 9])):
        seq_lens = torch.tensor(lens, dtype=torch.int32, device=DEVICE)
        starts = torch.tensor([0, *query_lens], device=DEVICE).cumsum(0).int()
        table = torch.randint(len(pool), (len(lens), 320), dtype=torch.int32, device=DEVICE)
        query = torch.randn(sum(query_lens), heads, 128, device=DEVICE).bfloat16()
        expected = twin.score_prefill(query, pool, 0, table, seq_lens, starts)
        out = torch.full_like(expected, float("-inf"))
        found = score_prefill(query, pool, 0, table, seq_lens, starts, max_query_len=max(query_lens), out=out)
        is_seen = expected.isfinite()
        assert torch.equal(found.isfinite(), is_seen)
        assert relative_l2(found[is_seen], expected[is_seen]) <= tolerance("index_score", "float16")


@pytest.mark.parametrize("blocks", [1, 7, 16, 300, 512, 513, 4096, 9000])
def test_selection_is_exact_with_many_ties(blocks: int) -> None:
    score = torch.randint(-3, 4, (37, 2, blocks), device=DEVICE).float()
    score[score == 0] *= -1.0
    position = torch.randint(blocks * 128, (37,), dtype=torch.int32, device=DEVICE)
    newest = position // 128
    is_later = torch.arange(blocks, device=DEVICE) > newest[:, None, None]
    expected = select_blocks(score.masked_fill(is_later, float("-inf")), newest, TOPK, LOCAL)
    found = select_prefill(score, position, topk_blocks=TOPK, local_blocks=LOCAL)
    assert torch.equal(found.long(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_packed_bytes_are_the_twins(dtype: torch.dtype) -> None:
    pool = torch.randint(256, (50, 6, 128, 72), dtype=torch.uint8, device=DEVICE)
    expected = pool.clone()
    size = torch.logspace(-6, 4, 3000, device=DEVICE)[:, None, None]
    values = (torch.randn(3000, 3, 128, device=DEVICE) * size).to(dtype)
    places = torch.randperm(6000, device=DEVICE)[:3000] + 128
    places[5] = -1
    head_slots = torch.tensor([4, 0, 3], device=DEVICE)
    pack(values, pool, head_slots, places)
    is_stored = places >= 0
    SlotPages(expected).write(places[is_stored], head_slots, values[is_stored])
    assert torch.equal(pool, expected)
    blocks = torch.tensor([3, 1, 9], device=DEVICE)
    for pages in (pool, expected):
        SlotPages(pages).scale.clamp_(max=126)
    assert torch.equal(
        unpack(pool, blocks, head_slots, num_tokens=300), SlotPages(expected).read(blocks, head_slots, 300)
    )


def test_a_captured_graph_follows_lengths_that_change_on_the_device(pool: torch.Tensor) -> None:
    query, table, lens = make_batch(6, 2, 1, 200, len(pool))
    score = torch.empty(12, 1, 200, device=DEVICE)
    chosen = torch.empty(12, 1, TOPK, dtype=torch.int32, device=DEVICE)
    e4m3_products(DEVICE)

    def step() -> None:
        score_decode(query, pool, 1, table, lens, lets_next_start=True, out=score)
        select_decode(score, lens, topk_blocks=TOPK, local_blocks=LOCAL, follows_score=True, out=chosen)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for shrink in (1, 3, 50):
        lens.copy_((lens // shrink).clamp(min=2))
        score.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        position = (lens[:, None] - 2 + torch.arange(2, device=DEVICE)).flatten()
        is_later = torch.arange(200, device=DEVICE) > (position // 128)[:, None, None]
        expected = select_blocks(score.masked_fill(is_later, float("-inf")), position // 128, TOPK, LOCAL)
        assert torch.equal(chosen.long(), expected)
