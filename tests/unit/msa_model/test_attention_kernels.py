"""The attention by kernels equals the one in plain torch, whatever a batch is made of (Triton's interpreter)."""

import pytest
import torch

from msa_model.attention_kernels import MAX_SCORES, KernelSparseAttention, pack_step
from msa_model.batch_rows import split_rows
from msa_model.config import BLOCK_SIZE
from msa_model.metadata import MSAMetadata
from msa_model.pages import LayerPages
from msa_model.reference.sparse_attention import TorchSparseAttention
from msa_model.reference.tolerances import relative_l2, tolerance
from tests.unit.msa_model.factories import Sequence, make_metadata, make_pages, make_sequence, make_shape
from tests.unit.msa_model.test_metadata import make_common

SHAPE = make_shape(num_heads=8, num_kv_heads=2, topk_blocks=4)
LENGTHS = (1, 130, 256, 600)

World = tuple[LayerPages, list[Sequence]]


@pytest.fixture(scope="module")
def world() -> World:
    """Four requests in scattered blocks among stale bytes, stored by the kernel."""
    generator = torch.Generator().manual_seed(5)
    pages = make_pages(SHAPE, num_blocks=24)
    free = (torch.randperm(23, generator=generator) + 1).tolist()
    sequences = []
    for num_tokens in LENGTHS:
        blocks = torch.tensor([free.pop() for _ in range(-(-num_tokens // BLOCK_SIZE))])
        sequence = make_sequence(SHAPE, num_tokens, blocks, generator)
        pack_step(pages, sequence.slots(), sequence.key, sequence.value, sequence.index_key)
        sequences.append(sequence)
    return pages, sequences


def metadata_of(batch: list[tuple[Sequence, int]], max_uniform_len: int) -> MSAMetadata:
    metadata = make_metadata(batch)
    lengths, seq_lens = [n for _, n in batch], [sequence.num_tokens for sequence, _ in batch]
    common = make_common(lengths, seq_lens, block_table_tensor=metadata.block_table)
    metadata.uniform, metadata.varied = split_rows(common, max_uniform_len)
    return metadata


def attend(
    op: TorchSparseAttention | KernelSparseAttention, metadata: MSAMetadata, world: World, counts: tuple[int, ...]
) -> torch.Tensor:
    pages, sequences = world
    batch = [(sequence, n) for sequence, n in zip(sequences, counts, strict=True) if n]
    query = torch.cat([sequence.query[-n:] for sequence, n in batch])
    index_query = torch.cat([sequence.index_query[-n:] for sequence, n in batch])
    out = torch.full_like(query, float("nan"))
    op.forward(metadata, query, index_query, pages, out)
    return out


def test_a_step_is_stored_with_the_bytes_of_plain_torch(world: World) -> None:
    pages, sequences = world
    expected = make_pages(SHAPE, num_blocks=24)
    for sequence in sequences:
        expected.write(sequence.slots(), sequence.key, sequence.value, sequence.index_key)
    assert torch.equal(pages.kv.cache, expected.kv.cache)
    assert torch.equal(pages.index.cache, expected.index.cache)


@pytest.mark.parametrize(
    "counts",
    [(1, 1, 1, 1), (0, 4, 0, 4), (1, 0, 1, 9), (0, 2, 2, 5), (1, 0, 12, 5)],
    ids=["decode", "drafts", "decode and a chunk", "drafts and a chunk", "chunks"],
)
def test_every_batch_is_attended_as_in_plain_torch(world: World, counts: tuple[int, ...]) -> None:
    batch = [(sequence, n) for sequence, n in zip(world[1], counts, strict=True) if n]
    metadata = metadata_of(batch, max_uniform_len=4)
    by_torch = attend(TorchSparseAttention(SHAPE), metadata, world, counts)
    by_kernels = attend(KernelSparseAttention(SHAPE), metadata, world, counts)
    assert relative_l2(by_kernels, by_torch) < tolerance("sparse_attention", "float16")


def test_a_prefill_in_pieces_is_the_whole_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = (0, 7, 0, 9)
    metadata = metadata_of([(world[1][1], 7), (world[1][3], 9)], max_uniform_len=1)
    whole = attend(KernelSparseAttention(SHAPE), metadata, world, counts)
    scores_per_token = SHAPE.num_kv_heads * metadata.block_table.shape[1]
    assert scores_per_token * 16 < MAX_SCORES
    monkeypatch.setattr("msa_model.attention_kernels.MAX_SCORES", 6 * scores_per_token)
    assert torch.equal(attend(KernelSparseAttention(SHAPE), metadata, world, counts), whole)
