"""Which steps a prompt is cut into, and which model runs them."""

import pytest

from bench.prefill.case import Case, cases, config_values
from msa_model.config import MSAShape
from msa_model.published import with_defaults


def test_a_prompt_comes_in_one_step_and_if_longer_than_a_chunk_also_in_several() -> None:
    found = list(cases((1, 8), (4096, 32768), 16384))
    assert found == [
        Case(1, 4096, 4096),
        Case(8, 4096, 4096),
        Case(1, 32768, 32768),
        Case(8, 32768, 32768),
        Case(1, 32768, 16384),
        Case(8, 32768, 16384),
    ]


def test_each_step_begins_with_the_context_that_the_others_made() -> None:
    assert Case(1, 120, 48).steps() == [(0, 48), (48, 48), (96, 24)]
    assert Case(1, 48, 48).steps() == [(0, 48)]


@pytest.mark.parametrize(
    ("case", "name"),
    [(Case(1, 4096, 4096), "1 layer, 4K, one step"), (Case(8, 65536, 16384), "8 layers, 64K, steps of 16K")],
)
def test_a_case_is_named_by_its_sizes(case: Case, name: str) -> None:
    assert case.name == name


@pytest.mark.parametrize("is_small", [False, True])
def test_every_layer_has_experts_and_an_index_branch(is_small: bool) -> None:
    values = config_values(3, is_small=is_small)
    shape = MSAShape.from_config(with_defaults(values), 2)
    assert (shape.num_layers, shape.num_index_layers) == (3, 3)
    assert values["moe_layer_freq"] == [1, 1, 1]
    assert (values["hidden_size"] == 6144) is not is_small
