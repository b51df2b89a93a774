"""Routed experts: the batched method equals a loop over tokens and experts."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from msa_model.moe import TorchModelOptNvFp4MoEMethod, route, swiglu_oai
from msa_model.reference.nvfp4 import dequantize, quantize

EXPERTS, TOP_K, HIDDEN, SIZE, FACTOR = 6, 2, 32, 48, 2.0


def packed(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return quantize(torch.randn(*shape))


def make_layer() -> Any:
    w13, w13_scale = packed(EXPERTS, 2 * SIZE, HIDDEN)
    w2, w2_scale = packed(EXPERTS, HIDDEN, SIZE)
    return SimpleNamespace(
        expert_map=None,
        w13_weight=w13,
        w13_weight_scale=w13_scale,
        w13_weight_scale_2=torch.rand(EXPERTS, 2) / 4 + 0.1,
        w2_weight=w2,
        w2_weight_scale=w2_scale,
        w2_weight_scale_2=torch.rand(EXPERTS) / 4 + 0.1,
        e_score_correction_bias=torch.randn(EXPERTS) * 0.3,
        top_k=TOP_K,
        routed_scaling_factor=FACTOR,
        swiglu_limit=7.0,
        swiglu_alpha=1.702,
        swiglu_beta=1.0,
    )


def run_one_by_one(layer: Any, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    w13, w2 = dequantize(layer.w13_weight, layer.w13_weight_scale), dequantize(layer.w2_weight, layer.w2_weight_scale)
    for token in range(x.shape[0]):
        score = [1 / (1 + math.exp(-value)) for value in logits[token].tolist()]
        ranked = sorted(range(EXPERTS), key=lambda e: -(score[e] + float(layer.e_score_correction_bias[e])))[:TOP_K]
        for expert in ranked:
            gate = w13[expert, :SIZE] * layer.w13_weight_scale_2[expert, 0] @ x[token]
            up = w13[expert, SIZE:] * layer.w13_weight_scale_2[expert, 1] @ x[token]
            gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
            hidden = gate / (1 + (-1.702 * gate).exp()) * (up + 1)
            weight = FACTOR * score[expert] / sum(score[e] for e in ranked)
            out[token] += weight * (w2[expert] * layer.w2_weight_scale_2[expert] @ hidden)
    return out


def run(layer: Any, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    method = object.__new__(TorchModelOptNvFp4MoEMethod)
    method.moe = SimpleNamespace(in_dtype=torch.float32, dp_size=1)
    method.process_weights_after_loading(layer)
    return method.apply_monolithic(layer, x, logits)


def test_the_method_equals_a_loop_over_tokens_and_experts() -> None:
    torch.manual_seed(0)
    layer = make_layer()
    x, logits = torch.randn(11, HIDDEN) * 3, torch.randn(11, EXPERTS)
    out = run(layer, x, logits)
    assert torch.allclose(out, run_one_by_one(layer, x, logits), rtol=1e-4, atol=1e-3)


def test_the_bias_moves_the_choice_but_not_the_weight() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    gates = route(logits, torch.tensor([0.0, -5.0, 0.0]), top_k=2, scaling_factor=2.0)
    a, b = 1 / (1 + math.exp(-2.0)), 0.5
    assert torch.allclose(gates, torch.tensor([[2 * a / (a + b), 0.0, 2 * b / (a + b)]]))


def test_equal_scores_go_to_the_lower_expert() -> None:
    gates = route(torch.zeros(1, 5), None, top_k=2, scaling_factor=1.0)
    assert gates.tolist() == [[0.5, 0.5, 0.0, 0.0, 0.0]]


def test_swiglu_clamps_the_gate_from_above_and_the_up_part_on_both_sides() -> None:
    gate, up = torch.tensor([100.0, -100.0, 1.0]), torch.tensor([100.0, 0.0, -100.0])
    out = swiglu_oai(gate, up, limit=7.0, alpha=1.702, beta=1.0)
    assert math.isclose(out[0].item(), 7.0 / (1 + math.exp(-1.702 * 7.0)) * 8.0, rel_tol=1e-6)
    assert abs(out[1].item()) < 1e-6
    assert math.isclose(out[2].item(), -6.0 / (1 + math.exp(-1.702)), rel_tol=1e-6)


@pytest.mark.parametrize("owner", [[0, 0, 0, 1, 1, 1], [0, 1, 0, 1, 0, 1], [1, 0, 1, 1, 0, 1]])
def test_ranks_with_whole_experts_sum_up_to_one_rank_with_all(owner: list[int]) -> None:
    """Blocks, round robin, and uneven numbers: each rank routes among all, and computes its own."""
    torch.manual_seed(1)
    layer = make_layer()
    x, logits = torch.randn(40, HIDDEN), torch.randn(40, EXPERTS)
    whole = run(layer, x, logits)
    parts = []
    for rank in range(2):
        mine = [expert for expert in range(EXPERTS) if owner[expert] == rank]
        part = SimpleNamespace(**vars(layer))
        for name in ("w13_weight", "w13_weight_scale", "w13_weight_scale_2", "w2_weight", "w2_weight_scale"):
            setattr(part, name, getattr(layer, name)[mine])
        part.w2_weight_scale_2 = layer.w2_weight_scale_2[mine]
        places = torch.full((EXPERTS,), -1, dtype=torch.int32)
        places[mine] = torch.arange(len(mine), dtype=torch.int32)
        part.expert_map = places
        parts.append(run(part, x, logits))
    assert parts[0].abs().max() > 0
    assert parts[1].abs().max() > 0
    torch.testing.assert_close(parts[0] + parts[1], whole)
