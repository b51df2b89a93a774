"""A batch falls into rows of one same, small length, which come first, and the rest."""

import pytest

from msa_model.batch_rows import split_rows
from tests.unit.msa_model.test_metadata import make_common


@pytest.mark.parametrize("length", [1, 4, 8])
def test_a_batch_of_one_small_length_is_uniform(length: int) -> None:
    uniform, varied = split_rows(make_common([length] * 3, [900, 77, 8]), 8)
    assert varied is None
    assert uniform is not None
    assert (uniform.query_len, uniform.num_tokens, uniform.seq_lens.tolist()) == (length, 3 * length, [900, 77, 8])


def test_the_rows_behind_the_uniform_ones_count_their_tokens_from_zero() -> None:
    uniform, varied = split_rows(make_common([2, 2, 1, 300], [64, 65, 66, 400]), 2)
    assert uniform is not None
    assert varied is not None
    assert uniform.seq_lens.tolist() == [64, 65]
    assert (varied.first_token, varied.num_tokens, varied.max_query_len) == (4, 301, 300)
    assert varied.query_start_loc.tolist() == [0, 1, 301]
    assert varied.seq_lens.tolist() == [66, 400]
    assert varied.positions.tolist() == [65, *range(100, 400)]


def test_longer_queries_than_the_engine_decodes_with_are_not_uniform() -> None:
    uniform, varied = split_rows(make_common([5, 5], [5, 5]), 1)
    assert uniform is None
    assert varied is not None
    assert varied.query_start_loc.tolist() == [0, 5, 10]


def test_padding_rows_without_tokens_are_left_out() -> None:
    uniform, varied = split_rows(make_common([2, 2, 0, 0], [64, 65, 0, 0]), 2)
    assert varied is None
    assert uniform is not None
    assert (uniform.seq_lens.tolist(), uniform.num_tokens) == ([64, 65], 4)


def test_padding_rows_that_have_tokens_stay() -> None:
    """Full graphs are captured with as many rows as tokens; a row of no context is padding."""
    uniform, varied = split_rows(make_common([1, 1, 1], [64, 0, 0]), 1)
    assert varied is None
    assert uniform is not None
    assert uniform.seq_lens.tolist() == [64, 0, 0]


def test_pieces_of_a_batch_see_the_contexts_as_they_are_at_their_ends() -> None:
    _, varied = split_rows(make_common([10, 4, 6], [30, 4, 106]), 1)
    assert varied is not None
    first, second, third = varied.pieces(8)
    assert [(piece.first_token, piece.num_tokens) for piece in (first, second, third)] == [(0, 8), (8, 8), (16, 4)]
    assert [piece.query_start_loc.tolist() for piece in (first, second, third)] == [
        [0, 8, 8, 8],
        [0, 2, 6, 8],
        [0, 0, 0, 4],
    ]
    assert first.seq_lens.tolist() == [28, 0, 100]
    assert second.seq_lens.tolist() == [30, 4, 102]
    assert third.seq_lens.tolist() == [30, 4, 106]
    assert [*first.positions, *second.positions, *third.positions] == [*varied.positions]
    # The query tokens of a piece are the last of its contexts.
    for piece in (first, second, third):
        ends = piece.query_start_loc[1:]
        for row in range(3):
            span = piece.positions[piece.query_start_loc[row] : ends[row]]
            assert len(span) == 0 or span[-1] == piece.seq_lens[row] - 1
