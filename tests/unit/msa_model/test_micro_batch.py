"""A step in two parts: where it is cut, and that attention to the parts is attention to the whole."""

import pytest
import torch

from msa_model.batch_rows import UniformRows, VariedRows
from msa_model.metadata import MSAMetadata
from msa_model.micro_batch import ROUND, cut
from msa_model.reference.sparse_attention import TorchSparseAttention
from tests.unit.msa_model.factories import Sequence, make_metadata, make_pages, make_sequence, make_shape, store

SHAPE = make_shape()


@pytest.mark.parametrize(
    ("num_tokens", "middle"), [(0, 0), (1, 0), (2, 1), (3, 2), (511, 256), (512, 256), (1000, 512)]
)
def test_a_step_is_cut_near_its_middle(num_tokens: int, middle: int) -> None:
    assert cut(num_tokens) == middle


def test_a_long_step_is_cut_between_tiles() -> None:
    assert all(cut(num_tokens) % ROUND == 0 for num_tokens in range(4 * ROUND, 8 * ROUND))


def test_tokens_that_stay_together_are_not_cut() -> None:
    assert cut(100, num_whole=50) == 50
    assert cut(100, num_whole=51) == 0


def batch(generator: torch.Generator) -> tuple[list[tuple[Sequence, int]], MSAMetadata]:
    """Two chunks of long prompts, and short queries before, between and behind them."""
    contexts, queries = [300, 700, 260, 400, 129], [1, 300, 4, 200, 1]
    numbers = torch.randperm(40, generator=generator)[: sum(-(-n // 128) for n in contexts)] + 1
    blocks = numbers.split([-(-n // 128) for n in contexts])
    requests = [
        (make_sequence(SHAPE, context, own, generator), query)
        for context, own, query in zip(contexts, blocks, queries, strict=True)
    ]
    return requests, make_metadata(requests, num_padding_rows=1)


@pytest.mark.parametrize("middle", [1, 2, 150, 301, 303, 305, 400, 505])
def test_attention_to_the_parts_is_attention_to_the_whole(middle: int) -> None:
    generator = torch.Generator().manual_seed(middle)
    requests, metadata = batch(generator)
    pages = make_pages(SHAPE, 60)
    for sequence, _ in requests:
        store(pages, sequence)
    query = torch.cat([sequence.query[-n:] for sequence, n in requests])
    index_query = torch.cat([sequence.index_query[-n:] for sequence, n in requests])
    attention = TorchSparseAttention(SHAPE)
    whole = torch.zeros_like(query)
    attention.forward(metadata, query, index_query, pages, whole)
    for start, end in ((0, middle), (middle, len(query))):
        out = torch.zeros_like(query[start:end])
        attention.forward(metadata.part(start, end), query[start:end], index_query[start:end], pages, out)
        torch.testing.assert_close(out, whole[start:end], rtol=1e-5, atol=1e-6)


def test_a_part_is_made_once_for_all_layers() -> None:
    _, metadata = batch(torch.Generator().manual_seed(0))
    assert metadata.part(0, 100) is metadata.part(0, 100)
    assert metadata.part(0, 100).slot_mapping.equal(metadata.slot_mapping[:100])


def test_padding_behind_a_step_belongs_to_no_part() -> None:
    _, metadata = batch(torch.Generator().manual_seed(0))
    assert metadata.part(300, 600).num_tokens == metadata.num_tokens - 300


def kernel_rows() -> MSAMetadata:
    """Three requests of two tokens, and two longer ones behind them, as kernels take them."""
    _, metadata = batch(torch.Generator().manual_seed(0))
    table = torch.zeros(2, 8).int()
    metadata.uniform = UniformRows(2, torch.tensor([5, 6, 7]).int(), torch.zeros(3, 8).int())
    starts, seq_lens = torch.tensor([0, 10, 30]).int(), torch.tensor([110, 20]).int()
    positions = torch.cat([torch.arange(100, 110), torch.arange(20)]).int()
    metadata.varied = VariedRows(6, 30, starts, seq_lens, table, positions, 20)
    return metadata


def test_uniform_rows_go_with_the_first_part_whole() -> None:
    metadata = kernel_rows()
    first, second = metadata.part(0, 20), metadata.part(20, 36)
    assert metadata.num_uniform_tokens == 6
    assert first.uniform is metadata.uniform
    assert second.uniform is None
    with pytest.raises(AssertionError, match="uniform rows"):
        metadata.part(3, 36)


def test_other_rows_are_cut_with_their_contexts_as_they_are_there() -> None:
    metadata = kernel_rows()
    first, second = metadata.part(0, 20).varied, metadata.part(20, 36).varied
    assert first is not None
    assert second is not None
    assert (first.first_token, first.num_tokens, second.first_token, second.num_tokens) == (6, 14, 0, 16)
    assert first.query_start_loc.tolist() == [0, 10, 14]
    assert first.seq_lens.tolist() == [110, 4]
    assert second.query_start_loc.tolist() == [0, 0, 16]
    assert second.seq_lens.tolist() == [110, 20]
    assert second.positions.tolist() == list(range(4, 20))
    assert metadata.part(0, 6).varied is None
