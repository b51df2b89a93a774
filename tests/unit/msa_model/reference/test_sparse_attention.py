"""The paged attention equals a dense masked softmax over the chosen blocks, on its short and its long path."""

import pytest
import torch

import msa_model.reference.sparse_attention as sparse_attention
from msa_model.config import BLOCK_SIZE, MSAShape
from msa_model.pages import LayerPages
from msa_model.reference.block_attention import SCALE
from msa_model.reference.nvfp4 import round_to_e4m3
from msa_model.reference.sparse_attention import TorchSparseAttention
from tests.unit.msa_model.factories import (
    Sequence,
    make_metadata,
    make_pages,
    make_sequence,
    make_shape,
    round_trip,
    store,
)


def attend_densely(shape: MSAShape, sequence: Sequence, num_queries: int) -> torch.Tensor:
    """Query by query and head by head, from plain tensors."""
    key, value, index_key = (round_trip(x) for x in (sequence.key, sequence.value, sequence.index_key))
    out = torch.zeros(num_queries, shape.num_heads, 128)
    per_group = shape.num_heads // shape.num_kv_heads
    for row in range(num_queries):
        position = sequence.num_tokens - num_queries + row
        for head in range(shape.num_heads):
            group = head // per_group
            scores = index_key[: position + 1, 0] @ round_to_e4m3(sequence.index_query[position, group])
            best = [block.max().item() for block in scores.split(BLOCK_SIZE)]
            ranked = sorted(range(len(best) - 1), key=lambda b: (-best[b], b))
            chosen = [*ranked[: shape.topk_blocks - 1], len(best) - 1]
            seen = [p for p in range(position + 1) if p // BLOCK_SIZE in chosen]
            weight = (key[seen, group] @ round_to_e4m3(sequence.query[position, head]) * SCALE).softmax(0)
            out[row, head] = weight @ value[seen, group]
    return out


def attend(
    shape: MSAShape, pages: LayerPages, batch: list[tuple[Sequence, int]], num_padding_rows: int = 0
) -> list[torch.Tensor]:
    metadata = make_metadata(batch, num_padding_rows)
    query = torch.cat([sequence.query[-n:] for sequence, n in batch])
    index_query = torch.cat([sequence.index_query[-n:] for sequence, n in batch])
    out = torch.zeros_like(query)
    TorchSparseAttention(shape).forward(metadata, query, index_query, pages, out)
    return list(out.split([n for _, n in batch]))


@pytest.fixture
def world() -> tuple[MSAShape, LayerPages, list[Sequence]]:
    """Four requests in scattered blocks among stale bytes: from one token to twice the selected context."""
    shape, generator = make_shape(), torch.Generator().manual_seed(5)
    pages = make_pages(shape, num_blocks=24)
    free = (torch.randperm(23, generator=generator) + 1).tolist()
    sequences = []
    for num_tokens in (1, 130, 384, 777):
        blocks = torch.tensor([free.pop() for _ in range(-(-num_tokens // BLOCK_SIZE))])
        sequences.append(make_sequence(shape, num_tokens, blocks, generator))
        store(pages, sequences[-1])
    return shape, pages, sequences


def test_decode_of_a_mixed_batch_equals_dense_attention(
    world: tuple[MSAShape, LayerPages, list[Sequence]],
) -> None:
    shape, pages, sequences = world
    batch = [(sequence, min(n, sequence.num_tokens)) for sequence, n in zip(sequences, (1, 1, 3, 8), strict=True)]
    for (sequence, n), out in zip(batch, attend(shape, pages, batch, num_padding_rows=2), strict=True):
        assert torch.allclose(out, attend_densely(shape, sequence, n), atol=1e-5)


def test_prefill_equals_dense_attention(world: tuple[MSAShape, LayerPages, list[Sequence]]) -> None:
    shape, pages, sequences = world
    batch = [(sequences[1], 130), (sequences[3], 60)]
    for (sequence, n), out in zip(batch, attend(shape, pages, batch), strict=True):
        assert torch.allclose(out, attend_densely(shape, sequence, n), atol=1e-5)


def test_short_requests_in_a_batch_with_a_prefill_keep_their_own_context(
    world: tuple[MSAShape, LayerPages, list[Sequence]],
) -> None:
    shape, pages, sequences = world
    batch = [(sequences[3], 2), (sequences[1], 40), (sequences[0], 1), (sequences[2], 5)]
    for (sequence, n), out in zip(batch, attend(shape, pages, batch), strict=True):
        assert torch.allclose(out, attend_densely(shape, sequence, n), atol=1e-5)


def test_a_token_gets_the_same_answer_from_decode_and_from_prefill(
    world: tuple[MSAShape, LayerPages, list[Sequence]],
) -> None:
    shape, pages, sequences = world
    (by_prefill,) = attend(shape, pages, [(sequences[3], 100)])
    (by_decode,) = attend(shape, pages, [(sequences[3], 8)])
    assert torch.allclose(by_prefill[-8:], by_decode, atol=1e-5)


def test_small_temporaries_give_the_same_answer(
    world: tuple[MSAShape, LayerPages, list[Sequence]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, pages, sequences = world
    batch = [(sequences[2], 4), (sequences[3], 50)]
    whole = attend(shape, pages, batch)
    monkeypatch.setattr(sparse_attention, "MAX_TEMPORARY_ELEMENTS", 7 * shape.num_heads * 3 * BLOCK_SIZE)
    for one, other in zip(whole, attend(shape, pages, batch), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_selection_matters_beyond_the_selected_context(
    world: tuple[MSAShape, LayerPages, list[Sequence]],
) -> None:
    _, pages, sequences = world
    (sparse,) = attend(make_shape(topk_blocks=3), pages, [(sequences[3], 20)])
    (dense,) = attend(make_shape(topk_blocks=7), pages, [(sequences[3], 20)])
    assert (sparse - dense).abs().max() > 0.01


def test_half_precision_output_is_the_rounded_float32_one(
    world: tuple[MSAShape, LayerPages, list[Sequence]],
) -> None:
    shape, pages, sequences = world
    sequence = sequences[2]
    metadata = make_metadata([(sequence, 2)])
    query, index_query = sequence.query[-2:].bfloat16(), sequence.index_query[-2:].bfloat16()
    full, half = torch.zeros(2, shape.num_heads, 128), torch.zeros(2, shape.num_heads, 128, dtype=torch.bfloat16)
    operation = TorchSparseAttention(shape)
    operation.forward(metadata, query, index_query, pages, full)
    operation.forward(metadata, query, index_query, pages, half)
    assert torch.equal(full.bfloat16(), half)
