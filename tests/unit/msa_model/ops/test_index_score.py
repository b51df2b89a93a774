"""Block scores of the kernels are the twin's, for ragged batches in Triton's interpreter."""

import dataclasses

import pytest
import torch

from msa_model.ops.index_score import score_decode, score_prefill, score_tiling
from msa_model.ops.target import OTHER_TARGET, Target, target_of
from msa_model.pages import SlotPages
from msa_model.reference import index_score as twin
from msa_model.reference.tolerances import relative_l2, tolerance

CPU = torch.device("cpu")
SLOT = 1


def random_pool(num_blocks: int) -> torch.Tensor:
    """Two slots a block, far enough apart that a row is more than its pages; scales are never NaN."""
    row = torch.randint(256, (num_blocks, 3 * 9216), dtype=torch.uint8)
    pool = row[:, : 2 * 9216].view(num_blocks, 2, 128, 72)
    SlotPages(pool).scale.remainder_(64)
    return pool


def batch(query_rows: int, heads: int, lens: list[int], blocks: int) -> tuple[torch.Tensor, ...]:
    """Index queries, pool, block table whose entries behind a context lie far outside of the pool, and lengths."""
    seq_lens = torch.tensor(lens, dtype=torch.int32)
    pool = random_pool(len(lens) * blocks + 1)
    table = torch.randperm(len(lens) * blocks).view(len(lens), blocks).int()
    query = torch.randn(len(lens) * query_rows, heads, 128) * 3
    return query, pool, table, seq_lens


def poison_tails(table: torch.Tensor, seq_lens: torch.Tensor) -> torch.Tensor:
    """Entries behind each context made negative and huge: reading such a block would crash."""
    is_behind = torch.arange(table.shape[1]) >= (seq_lens[:, None] + 127) // 128
    return table.masked_fill(is_behind, -(1 << 30))


def assert_close(found: torch.Tensor, expected: torch.Tensor, number_format: str) -> None:
    """Where a query sees a block; elsewhere the output is left as it was, which is -inf here."""
    is_seen = expected.isfinite()
    assert is_seen.any()
    assert torch.equal(found.isfinite(), is_seen)
    assert relative_l2(found[is_seen], expected[is_seen]) <= tolerance("index_score", number_format)


@pytest.mark.parametrize(
    ("query_rows", "heads", "lens", "blocks"),
    [
        (1, 1, [1, 128, 129, 4000], 32),
        (1, 4, [300, 77], 3),
        (2, 1, [2, 640, 501], 6),
        (3, 1, [3, 700], 6),
        (8, 1, [8, 1025], 9),
        (8, 4, [9, 333], 3),  # 32 rows: scales are applied to values
        (1, 1, [100, 7] * 16, 1),
    ],
)
def test_decode_scores_are_the_twins(query_rows: int, heads: int, lens: list[int], blocks: int) -> None:
    torch.manual_seed(1)
    query, pool, table, seq_lens = batch(query_rows, heads, lens, blocks)
    expected = twin.score_decode(query, pool, SLOT, table, seq_lens)
    out = torch.full_like(expected, float("-inf"))
    score_decode(query, pool, SLOT, poison_tails(table, seq_lens), seq_lens, out=out)
    assert_close(out, expected, "float16")


@pytest.mark.parametrize(("tile", "blocks", "steps"), [(128, 1, 3), (128, 2, 2), (64, 1, 1), (64, 4, 1), (128, 4, 2)])
@pytest.mark.parametrize("heads", [1, 16])
def test_any_tiling_gives_the_same_scores(tile: int, blocks: int, steps: int, heads: int) -> None:
    torch.manual_seed(2)
    query, pool, table, seq_lens = batch(1, heads, [1100, 513], 9)
    tiling = dataclasses.replace(
        score_tiling(target_of(CPU), heads, 2, 9), tile=tile, blocks=blocks, steps=steps, stages=1
    )
    assert tiling.applies_per_result == (heads == 1)
    expected = twin.score_decode(query, pool, SLOT, table, seq_lens)
    out = torch.full_like(expected, float("-inf"))
    score_decode(query, pool, SLOT, poison_tails(table, seq_lens), seq_lens, tiling=tiling, out=out)
    assert_close(out, expected, "float16")


def test_a_padded_request_is_not_followed() -> None:
    query, pool, table, seq_lens = batch(2, 1, [0, 300], 3)
    out = torch.full((4, 1, 3), float("-inf"))
    score_decode(query, pool, SLOT, poison_tails(table, seq_lens), seq_lens, out=out)
    assert not out[:2].isfinite().any()
    assert out[2:].isfinite().all()


def test_stale_tokens_behind_the_context_do_not_count() -> None:
    query, pool, table, seq_lens = batch(1, 1, [130], 2)
    expected = twin.score_decode(query, pool, SLOT, table, seq_lens)
    pages = SlotPages(pool)
    pages.data[table[0, 1].long(), SLOT, 2:] = 0x77
    pages.scale[table[0, 1].long(), SLOT, 2:] = 0x7F  # NaN
    out = torch.full_like(expected, float("-inf"))
    score_decode(query, pool, SLOT, table, seq_lens, out=out)
    assert_close(out, expected, "float16")


def test_queries_are_rounded_to_e4m3_and_saturate() -> None:
    query, pool, table, seq_lens = batch(1, 1, [128], 1)
    rounded = query.clamp(-448, 448).to(torch.float8_e4m3fn)
    big = torch.where(query > 0, 1e6, -1e6)
    for given, same_as in ((query, rounded.float()), (rounded, rounded.float()), (big, big.clamp(-448, 448))):
        assert torch.equal(
            score_decode(given, pool, SLOT, table, seq_lens), score_decode(same_as, pool, SLOT, table, seq_lens)
        )


@pytest.mark.parametrize(
    ("heads", "lens", "query_lens", "blocks"),
    [(1, [300, 512], [37, 130], 4), (3, [1, 384, 200], [1, 20, 9], 3), (4, [1100], [70], 9)],
)
def test_prefill_scores_are_the_twins(heads: int, lens: list[int], query_lens: list[int], blocks: int) -> None:
    torch.manual_seed(3)
    _, pool, table, seq_lens = batch(1, heads, lens, blocks)
    starts = torch.tensor([0, *query_lens]).cumsum(0).int()
    query = torch.randn(sum(query_lens), heads, 128)
    expected = twin.score_prefill(query, pool, SLOT, table, seq_lens, starts)
    out = torch.full_like(expected, float("-inf"))
    tails = poison_tails(table, seq_lens)
    score_prefill(query, pool, SLOT, tails, seq_lens, starts, max_query_len=max(query_lens), out=out)
    assert_close(out, expected, "float16")


@pytest.mark.parametrize(
    ("target", "num_rows", "applies"),
    [("sm_90", 8, True), ("sm_90", 9, False), ("sm_107", 4, True), ("sm_107", 5, False), ("sm_100", 1, False)],
)
def test_scales_go_to_results_for_few_rows_where_values_stay_exact(target: str, num_rows: int, applies: bool) -> None:
    device = Target(name=target, num_sms=132, shared_memory_bytes=232_448)
    assert score_tiling(device, num_rows, 8, 4096).applies_per_result == applies


def test_programs_grow_with_the_work_of_a_multiprocessor() -> None:
    few, many = (Target(name=OTHER_TARGET, num_sms=sms, shared_memory_bytes=65_536) for sms in (400, 50))
    assert score_tiling(few, 1, 1, 1024).steps < score_tiling(many, 1, 1, 1024).steps


@pytest.mark.parametrize("break_it", ["rows", "slot", "table", "lens", "dim", "out"])
def test_what_does_not_fit_is_refused(break_it: str) -> None:
    query, pool, table, seq_lens = batch(1, 1, [5, 5], 1)
    good = {"query": query, "slot": SLOT, "table": table, "lens": seq_lens, "out": torch.empty(2, 1, 1)}
    bad = {
        "rows": {"query": query[:1]},
        "slot": {"slot": 2},
        "table": {"table": table.long()},
        "lens": {"lens": seq_lens.long()},
        "dim": {"query": query[..., :64]},
        "out": {"out": torch.empty(2, 1, 2)},
    }[break_it]
    given = good | bad
    with pytest.raises(ValueError, match=r"must be|can't|not one of"):
        score_decode(given["query"], pool, given["slot"], given["table"], given["lens"], out=given["out"])
