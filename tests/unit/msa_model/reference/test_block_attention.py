"""The kernels' twins equal a plain softmax over the keys that a query chose and may see."""

import pytest
import torch

from msa_model.config import BLOCK_SIZE
from msa_model.pages import SlotPages
from msa_model.reference import block_attention
from msa_model.reference.block_attention import SCALE, attend_decode, attend_prefill
from msa_model.reference.nvfp4 import round_to_e4m3
from tests.unit.msa_model.ops.attention_batch import KEY_SLOT, NUM_LAYERS, AttentionBatch, make_batch


def attend_plainly(batch: AttentionBatch, rounds_products: bool) -> torch.Tensor:
    """Token by token and head by head, from the request's tokens in their order."""
    out = torch.zeros_like(batch.query)
    starts, groups = batch.query_start_loc.tolist(), batch.chosen.shape[1]
    per_group = batch.query.shape[1] // groups
    for row, seq_len in enumerate(batch.seq_lens.tolist()):
        blocks = batch.block_table[row, : -(-seq_len // BLOCK_SIZE)].long()
        slots = torch.tensor([KEY_SLOT + 2 * NUM_LAYERS * g + part for g in range(groups) for part in (0, 1)])
        tokens = SlotPages(batch.pool).read(blocks, slots, seq_len).flatten(1, 2)
        if rounds_products:
            tokens = round_to_e4m3(tokens)
        for token in range(starts[row], starts[row + 1]):
            position = seq_len - starts[row + 1] + token
            for head in range(batch.query.shape[1]):
                chosen = batch.chosen[token, head // per_group].tolist()
                seen = [p for p in range(position + 1) if p // BLOCK_SIZE in chosen]
                key, value = tokens[2 * (head // per_group)][seen], tokens[2 * (head // per_group) + 1][seen]
                out[token, head] = (key @ round_to_e4m3(batch.query[token, head]) * SCALE).softmax(0) @ value
    return out


@pytest.mark.parametrize("rounds_products", [False, True])
def test_decode_is_a_softmax_over_the_chosen_keys(rounds_products: bool) -> None:
    batch = make_batch([700, 1, 256], [1, 1, 1], kv_heads=2, group_size=3, topk=3)
    out = attend_decode(*batch.pages, rounds_products=rounds_products)
    assert torch.allclose(out, attend_plainly(batch, rounds_products), atol=2e-5)


def test_rounding_of_products_shows() -> None:
    batch = make_batch([700], [1], topk=3)
    exact, rounded = (attend_decode(*batch.pages, rounds_products=rounds) for rounds in (False, True))
    assert 1e-3 < (exact - rounded).abs().max() < 0.5


def test_prefill_is_a_softmax_over_the_chosen_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make_batch([300, 20, 700], [7, 9, 1], kv_heads=2, group_size=2, topk=2)
    # One query a piece.
    monkeypatch.setattr(block_attention, "_MAX_TEMPORARY_ELEMENTS", 1)
    out = attend_prefill(*batch.pages, batch.query_start_loc, rounds_products=False)
    assert torch.allclose(out, attend_plainly(batch, False), atol=2e-5)


def test_a_query_without_a_key_gets_zeros() -> None:
    batch = make_batch([0, 1], [2, 2], topk=1)
    out = attend_decode(*batch.pages, rounds_products=False)
    assert (out[:3] == 0).all()
    assert (out[3] != 0).any()
