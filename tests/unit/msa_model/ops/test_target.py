"""A target says what its decoding does to numbers; CPU is the interpreter."""

import pytest
import torch

from msa_model.ops.target import NAMED_TARGETS, OTHER_TARGET, Target, target_of


def test_the_cpu_runs_plain_operations() -> None:
    target = target_of(torch.device("cpu"))
    assert target.name == OTHER_TARGET
    assert not any((target.rounds_products, target.is_hip, target.has_early_start))
    assert target.num_sms > 0


@pytest.mark.parametrize(
    ("name", "rounds"),
    [("sm_90", False), ("sm_100", True), ("sm_103", True), ("sm_107", False), ("gfx950", True)],
)
def test_only_some_targets_round_products(name: str, rounds: bool) -> None:
    assert name in NAMED_TARGETS
    assert Target(name=name, num_sms=1, shared_memory_bytes=1).rounds_products == rounds
