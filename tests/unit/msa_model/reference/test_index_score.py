"""The twin's block scores are the largest dot products that a query sees."""

import torch

from msa_model.pages import SlotPages
from msa_model.reference.index_score import score_decode, score_prefill
from msa_model.reference.nvfp4 import dequantize, round_to_e4m3


def one_request(seq_len: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    pool = torch.randint(256, (4, 1, 128, 72), dtype=torch.uint8)
    SlotPages(pool).scale.remainder_(100)
    return pool, torch.tensor([[2, 0, 3]], dtype=torch.int32), torch.tensor([seq_len], dtype=torch.int32)


def test_a_block_scores_its_best_visible_key() -> None:
    pool, table, seq_lens = one_request(140)
    query = torch.randn(2, 1, 128)
    score = score_decode(query, pool, 0, table, seq_lens)
    pages = SlotPages(pool)
    for row, position in enumerate((138, 139)):
        for number, block in enumerate((2, 0)):
            keys = dequantize(pages.data[block, 0], pages.scale[block, 0])[: position + 1 - 128 * number]
            best = (keys @ round_to_e4m3(query[row, 0])).max()
            torch.testing.assert_close(score[row, 0, number], best)
    assert score[..., 2].tolist() == [[float("-inf")]] * 2


def test_rounded_products_change_scores_but_little() -> None:
    pool, table, seq_lens = one_request(384)
    query = torch.randn(1, 2, 128)
    exact, rounded = (score_decode(query, pool, 0, table, seq_lens, rounds_products=r) for r in (False, True))
    assert not torch.equal(exact, rounded)
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.05 * float(exact.abs().max()))


def test_prefill_rows_are_decode_rows() -> None:
    pool, table, seq_lens = one_request(300)
    query = torch.randn(5, 1, 128)
    starts = torch.tensor([0, 5], dtype=torch.int32)
    whole = score_prefill(query, pool, 0, table, seq_lens, starts)
    for row in range(5):
        alone = score_decode(query[row : row + 1], pool, 0, table, seq_lens - 4 + row)
        torch.testing.assert_close(whole[row : row + 1], alone)
