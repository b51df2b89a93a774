"""Checkpoint names to parameters: upstream's MiniMax-M3 names, with fused projections and routed experts."""

from collections.abc import Iterable

import torch
from torch import nn
from vllm.model_executor.layers.fused_moe import fused_moe_make_expert_params_mapping
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

# (part of the parameter's name, part of the checkpoint's name, shard); the dots keep q_proj out of index_q_proj.
FUSED: list[tuple[str, str, int | str]] = [
    (".qkv_proj.", ".q_proj.", "q"),
    (".qkv_proj.", ".k_proj.", "k"),
    (".qkv_proj.", ".v_proj.", "v"),
    (".qkv_proj.", ".index_q_proj.", "index_q"),
    (".qkv_proj.", ".index_k_proj.", "index_k"),
    (".gate_up_proj.", ".gate_proj.", 0),
    (".gate_up_proj.", ".up_proj.", 1),
]
EXPERTS = ".block_sparse_moe.experts."
# Of a drafter that this model does not have.
IGNORED = ".mtp."


def load_weights(model: nn.Module, num_experts: int, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
    """Copy ``weights`` into the parameters of ``model`` and return the names of those it filled.

    Raises ValueError for a weight that has no parameter, and for parameters that no weight filled.
    """
    parameters = dict(model.named_parameters())
    expert_mapping = fused_moe_make_expert_params_mapping(model, "w1", "w2", "w3", num_experts)
    loaded: set[str] = set()
    for name, weight in weights:
        if IGNORED in f".{name}":
            continue
        target = (
            _load_expert(parameters, expert_mapping, name, weight)
            if EXPERTS in name
            else _load_dense(parameters, name, weight)
        )
        if target is None:
            raise ValueError(f"the checkpoint's weight {name} has no place in this model")
        loaded.add(target)
    # Activations are not quantised, so a checkpoint need not say how.
    missing = sorted(name for name in parameters.keys() - loaded if not name.endswith("_input_scale"))
    if missing:
        raise ValueError(f"the checkpoint lacks {len(missing)} weights of this model, such as {missing[0]}")
    return loaded


def _load_dense(parameters: dict[str, nn.Parameter], name: str, weight: torch.Tensor) -> str | None:
    for fused, single, shard in FUSED:
        target = name.replace(single, fused)
        if target != name and target in parameters:
            parameters[target].weight_loader(parameters[target], weight, shard)
            return target
    if name not in parameters:
        return None
    parameter = parameters[name]
    getattr(parameter, "weight_loader", default_weight_loader)(parameter, weight)
    return name


def _load_expert(
    parameters: dict[str, nn.Parameter],
    mapping: list[tuple[str, str, int, str]],
    name: str,
    weight: torch.Tensor,
) -> str | None:
    for fused, single, expert, shard in mapping:
        target = name.replace(single, fused)
        if target != name and target in parameters:
            loader = parameters[target].weight_loader
            loader(parameters[target], weight, target, shard_id=shard, expert_id=expert)
            return target
    return None
