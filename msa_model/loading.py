"""Checkpoint names to parameters: upstream's MiniMax-M3 names, with fused projections and routed experts."""

import logging
import re
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import nn
from vllm.model_executor.layers.fused_moe import fused_moe_make_expert_params_mapping
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

from msa_model.checkpoint_names import is_cache_scale, is_ignored, stored_name

logger = logging.getLogger("vllm.msa_model.loading")

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
# The part of an expert's name that vLLM's mapping goes by.
_EXPERT = re.compile(r"experts\.\d+\.\w+\.(?:base_layer\.)?")

# Part of a checkpoint's name -> (part of the parameter's name, expert, shard).
ExpertMapping = dict[str, tuple[str, int, str]]


def load_weights(model: nn.Module, num_experts: int, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
    """Copy ``weights`` into the parameters of ``model`` and return the names of those it filled.

    Raises ValueError for a weight that has no parameter, and for parameters that no weight filled.
    """
    parameters = dict(model.named_parameters())
    # By name, as a search through all experts for each of 87,552 tensors would take longer than to read some.
    experts = {
        single: (fused, expert, shard)
        for fused, single, expert, shard in fused_moe_make_expert_params_mapping(model, "w1", "w2", "w3", num_experts)
    }
    sources: dict[str, set[str]] = defaultdict(set)
    num_ignored = num_cache_scales = 0
    for checkpoint_name, weight in weights:
        name = stored_name(checkpoint_name)
        if is_ignored(name):
            num_ignored += 1
            num_cache_scales += is_cache_scale(name)
            continue
        if weight.dtype == torch.float8_e8m0fnu:
            weight = weight.view(torch.uint8)  # vLLM keeps the bytes; a copy would convert the values
        expert = _EXPERT.search(name)
        target = (
            _load_expert(parameters, experts, name, expert[0], weight)
            if expert
            else _load_dense(parameters, name, weight)
        )
        if target is None:
            raise ValueError(f"the checkpoint's weight {checkpoint_name} has no place in this model")
        sources[target].add(name)
    # A parameter of several parts is filled when each has come: what is left out would be whatever the memory held.
    missing = sorted(name for name in parameters if len(sources[name]) < _num_parts(name, parameters, experts))
    if missing:
        raise ValueError(f"the checkpoint lacks {len(missing)} weights of this model, or parts, such as {missing[0]}")
    if num_ignored > num_cache_scales:
        logger.info("%d tensors of a draft module (mtp) are not loaded", num_ignored - num_cache_scales)
    if num_cache_scales:
        logger.warning("%d calibrated cache scales are not used: this cache's scale per tensor is 1", num_cache_scales)
    return set(sources)


def _num_parts(name: str, parameters: dict[str, nn.Parameter], experts: ExpertMapping) -> int:
    """Tensors of a checkpoint that one parameter is made of, at least."""
    of_experts = sum(fused in name for fused, _, _ in experts.values())
    if of_experts:
        return of_experts
    if ".qkv_proj." in name:
        has_index = f"{name.partition('.qkv_proj.')[0]}.index_q_norm.weight" in parameters
        return 5 if has_index else 3
    return 2 if ".gate_up_proj." in name else 1


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
    parameters: dict[str, nn.Parameter], experts: ExpertMapping, name: str, single: str, weight: torch.Tensor
) -> str | None:
    """Another rank's expert counts as loaded: vLLM's loader leaves it alone."""
    if single not in experts:
        return None
    fused, expert, shard = experts[single]
    target = name.replace(single, fused)
    if target not in parameters:
        return None
    parameters[target].weight_loader(parameters[target], weight, target, shard_id=shard, expert_id=expert)
    return target
