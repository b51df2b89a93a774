"""Checkpoint names find their parameters; a name without a place, or a place without a name, stops the start."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import msa_model.loading as loading
from msa_model.loading import load_weights

Record = list[tuple[str, tuple[object, ...], dict[str, object]]]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> tuple[nn.Module, Record]:
    """Parameters with vLLM's names, whose loaders write down what they were given."""
    record: Record = []

    def loader_of(name: str) -> Callable[..., None]:
        return lambda parameter, weight, *args, **kwargs: record.append((name, args, kwargs))

    tree = nn.Module()
    for name in (
        "layers.0.self_attn.qkv_proj.weight",
        "layers.0.mlp.gate_up_proj.weight",
        "layers.0.block_sparse_moe.experts.routed.w13_weight",
        "layers.0.block_sparse_moe.experts.routed.w13_input_scale",
        "norm.weight",
    ):
        *path, leaf = name.split(".")
        module = tree
        for part in path:
            if part not in dict(module.named_children()):
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        parameter = nn.Parameter(torch.zeros(1), requires_grad=False)
        parameter.weight_loader = loader_of(name)
        module.register_parameter(leaf, parameter)
    mapping = [
        ("experts.routed.w13_", f"experts.{expert}.{shard}.", expert, shard)
        for expert in range(2)
        for shard in ("w1", "w3")
    ]
    monkeypatch.setattr(loading, "fused_moe_make_expert_params_mapping", lambda *_: mapping)
    return tree, record


FUSED = [f"layers.0.self_attn.{name}_proj.weight" for name in ("q", "k", "v", "index_q", "index_k")]
MLP = [f"layers.0.mlp.{name}_proj.weight" for name in ("gate", "up")]
EXPERTS = [f"layers.0.block_sparse_moe.experts.{e}.{s}.weight" for e in range(2) for s in ("w1", "w3")]
SCALES = [f"layers.0.block_sparse_moe.experts.{e}.{s}.input_scale" for e in range(2) for s in ("w1", "w3")]
ALL = [*FUSED, *MLP, *EXPERTS, *SCALES, "norm.weight"]


def weights(names: list[str]) -> list[tuple[str, torch.Tensor]]:
    return [(name, torch.zeros(1)) for name in names]


def test_every_name_reaches_its_shard(model: tuple[nn.Module, Record]) -> None:
    tree, record = model
    load_weights(tree, 2, weights([*ALL, "mtp.layers.0.norm.weight"]))
    shards = [args[0] if args and not kwargs else kwargs for _, args, kwargs in record]
    assert shards == [
        *("q", "k", "v", "index_q", "index_k"),
        *(0, 1),
        *[{"shard_id": s, "expert_id": e} for e in range(2) for s in ("w1", "w3")] * 2,
        {},
    ]
    assert {name for name, _, _ in record[:5]} == {"layers.0.self_attn.qkv_proj.weight"}


@pytest.mark.parametrize("name", ["layers.0.self_attn.r_proj.weight", "layers.0.block_sparse_moe.experts.9.w1.weight"])
def test_a_weight_without_a_place_is_refused_by_name(model: tuple[nn.Module, Record], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        load_weights(model[0], 2, weights([*ALL, name]))


def test_scales_by_upstreams_name_and_as_exponents_reach_their_parameter_as_bytes() -> None:
    tree = nn.Module()
    tree.proj = nn.Module()
    scale = torch.tensor([[120, 130]], dtype=torch.uint8)
    tree.proj.weight_scale = nn.Parameter(torch.zeros(1, 2, dtype=torch.uint8), requires_grad=False)
    load_weights(tree, 0, [("proj.weight_scale_inv", scale.view(torch.float8_e8m0fnu))])
    assert torch.equal(tree.proj.weight_scale, scale)


def test_calibrated_cache_scales_are_left_out_and_said_to_be(
    model: tuple[nn.Module, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(loading.logger, "warning", lambda text, *args: said.append(text % args))
    load_weights(model[0], 2, weights([*ALL, "layers.0.self_attn.k_proj.k_scale"]))
    [text] = said
    assert text.startswith("1 calibrated cache scales")


def test_a_draft_module_is_left_out_and_said_to_be(
    model: tuple[nn.Module, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(loading.logger, "info", lambda text, *args: said.append(text % args))
    load_weights(model[0], 2, weights([*ALL, "mtp.0.a", "model.mtp.1.b"]))
    assert said == ["2 tensors of a draft module (mtp) are not loaded"]


def test_a_parameter_without_a_weight_is_refused_by_name(model: tuple[nn.Module, Record]) -> None:
    with pytest.raises(ValueError, match=r"lacks 1 .*norm\.weight"):
        load_weights(model[0], 2, weights(ALL[:-1]))


@pytest.mark.parametrize("left_out", [FUSED[1], MLP[0], EXPERTS[3], SCALES[0]])
def test_a_part_of_a_parameter_that_is_left_out_stops_the_start(model: tuple[nn.Module, Record], left_out: str) -> None:
    with pytest.raises(ValueError, match="lacks 1 weights of this model, or parts"):
        load_weights(model[0], 2, weights([name for name in ALL if name != left_out and "index_" not in name]))
