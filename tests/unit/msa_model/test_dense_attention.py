"""A layer without an index branch sees its whole context, in decode and in prefill, among stale bytes."""

import pytest
import torch

from msa_model.config import BLOCK_SIZE, HEAD_DIM, MSAShape
from msa_model.dense_attention import TorchDenseAttention
from msa_model.pages import LayerPages
from msa_model.reference.nvfp4 import round_to_e4m3
from tests.unit.msa_model.factories import (
    Sequence,
    make_metadata,
    make_pages,
    make_sequence,
    make_shape,
    round_trip,
)

# Fewer than the contexts have: a sparse layer would miss most of them.
SHAPE = make_shape(topk_blocks=1)
LENGTHS = (1, 130, 777)


def by_hand(shape: MSAShape, sequence: Sequence, num_queries: int) -> torch.Tensor:
    """Causal attention to everything, head by head, from plain tensors."""
    key, value = round_trip(sequence.key), round_trip(sequence.value)
    start = sequence.num_tokens - num_queries
    is_past = torch.arange(sequence.num_tokens) <= torch.arange(start, sequence.num_tokens)[:, None]
    heads = []
    for head in range(shape.num_heads):
        group = head // (shape.num_heads // shape.num_kv_heads)
        logits = round_to_e4m3(sequence.query[start:, head]) @ key[:, group].T * HEAD_DIM**-0.5
        heads.append(logits.masked_fill(~is_past, float("-inf")).softmax(-1) @ value[:, group])
    return torch.stack(heads, dim=1)


@pytest.fixture
def world() -> tuple[LayerPages, list[Sequence]]:
    generator = torch.Generator().manual_seed(5)
    pages = make_pages(SHAPE, num_blocks=16)
    free = (torch.randperm(15, generator=generator) + 1).tolist()
    sequences = []
    for num_tokens in LENGTHS:
        blocks = torch.tensor([free.pop() for _ in range(-(-num_tokens // BLOCK_SIZE))])
        sequence = make_sequence(SHAPE, num_tokens, blocks, generator)
        # Its index keys stay stale: a dense layer has none.
        pages.write(sequence.slots(), sequence.key, sequence.value, None)
        sequences.append(sequence)
    return pages, sequences


@pytest.mark.parametrize("num_queries", [(1, 1, 1), (1, 5, 8), (1, 130, 300)], ids=["decode", "drafts", "prefill"])
def test_every_token_sees_all_tokens_before_it(
    world: tuple[LayerPages, list[Sequence]], num_queries: tuple[int, ...]
) -> None:
    pages, sequences = world
    batch = list(zip(sequences, num_queries, strict=True))
    query = torch.cat([sequence.query[-n:] for sequence, n in batch])
    out = torch.full_like(query, float("nan"))
    TorchDenseAttention(SHAPE, max_blocks=8).forward(make_metadata(batch), query, pages, out)
    for (sequence, n), attended in zip(batch, out.split(num_queries), strict=True):
        torch.testing.assert_close(attended, by_hand(SHAPE, sequence, n), rtol=1e-4, atol=1e-5)
