"""Distances are relative, notice NaN, and have one table of limits."""

import math

import pytest
import torch

from msa_model.reference.tolerances import relative_l2, tolerance


def test_a_distance_is_relative_to_what_was_expected() -> None:
    expected = torch.tensor([3.0, 4.0])
    assert relative_l2(expected + torch.tensor([0.0, 0.5]), expected) == pytest.approx(0.1)
    assert relative_l2(expected * 1e-20 * 1.1, expected * 1e-20) == pytest.approx(0.1)


def test_a_missing_number_is_within_no_tolerance() -> None:
    distance = relative_l2(torch.tensor([math.nan, 1.0]), torch.ones(2))
    assert not distance <= tolerance("index_score", "float8_e4m3fn")


def test_an_op_without_a_row_has_no_tolerance() -> None:
    with pytest.raises(KeyError):
        tolerance("index_score", "int4")
