"""Which attention an engine runs is decided by its device, its model and one environment variable."""

import pytest
import torch

from msa_model.attention_choice import ATTENTION_ENV, AttentionChoice, choose_attention
from msa_model.ops.target import OTHER_TARGET, Target
from tests.unit.msa_model.factories import make_shape

GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def nothing_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ATTENTION_ENV, raising=False)


def choose(
    monkeypatch: pytest.MonkeyPatch, capability: int = 90, topk_blocks: int = 16, num_heads: int = 32
) -> AttentionChoice:
    """On a GPU of that capability, for a rank with two KV heads."""
    name = "sm_90" if capability == 90 else OTHER_TARGET
    target = Target(name=name, num_sms=132, shared_memory_bytes=1 << 17)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: divmod(capability, 10))
    monkeypatch.setattr("msa_model.attention_choice.target_of", lambda _: target)
    return choose_attention(make_shape(topk_blocks=topk_blocks, num_heads=num_heads), GPU)


def test_a_gpu_with_fp8_products_runs_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = choose(monkeypatch)
    assert choice.uses_kernels
    assert "sm_90" in choice.reason
    assert "plain Triton" in choose(monkeypatch, 120).reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"capability": 80}, "FP8"),
        ({"num_heads": 34}, "17 query heads"),
        ({"topk_blocks": 3}, "3 blocks"),
        ({"topk_blocks": 32}, "32 blocks"),
    ],
)
def test_plain_torch_runs_what_kernels_cannot(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], reason: str
) -> None:
    choice = choose(monkeypatch, **changes)
    assert not choice.uses_kernels
    assert reason in choice.reason
    monkeypatch.setenv(ATTENTION_ENV, "kernels")
    with pytest.raises(ValueError, match=reason):
        choose(monkeypatch, **changes)


@pytest.mark.parametrize("kind", ["cpu", "xpu"])
def test_devices_that_are_no_gpus_of_nvidia_or_amd_run_plain_torch(kind: str) -> None:
    choice = choose_attention(make_shape(topk_blocks=16), torch.device(kind))
    assert not choice.uses_kernels
    assert kind in choice.reason


def test_plain_torch_runs_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ATTENTION_ENV, "torch")
    assert not choose(monkeypatch).uses_kernels


def test_another_attention_than_the_two_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ATTENTION_ENV, "fast")
    with pytest.raises(ValueError, match=ATTENTION_ENV):
        choose(monkeypatch)
