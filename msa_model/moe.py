"""Routed experts in plain torch: sigmoid routing with a bias, SwiGLU-OAI, weights stored as ModelOpt NVFP4.

The twin that kernels are checked against. Shape letters: T tokens, E experts, H hidden size, I intermediate size of
this rank. Under expert parallelism a rank has whole experts, and routes among all of them.
"""

from typing import TYPE_CHECKING

import torch
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase, FusedMoEQuantConfig, RoutedExperts
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig
from vllm.model_executor.layers.quantization.modelopt import ModelOptNvFp4FusedMoE

from msa_model.reference.nvfp4 import dequantize
from msa_model.reference.selection import top_indices
from msa_model.replicas import gather, num_tokens_of_replicas, reduce

if TYPE_CHECKING:
    from vllm.model_executor.layers.quantization.modelopt import ModelOptNvFp4Config


def route(logits_TE: torch.Tensor, bias_E: torch.Tensor | None, top_k: int, scaling_factor: float) -> torch.Tensor:
    """Gate of every expert for every token, float32 [T, E]; 0 where the token is not routed.

    The bias moves the choice, never the weight. Weights of the chosen sum up to ``scaling_factor``. Equal scores go
    to the lower expert.
    """
    score_TE = logits_TE.float().sigmoid()
    chosen = top_indices(score_TE if bias_E is None else score_TE + bias_E, top_k)
    weight = score_TE.gather(-1, chosen)
    weight = weight / weight.sum(-1, keepdim=True) * scaling_factor
    return torch.zeros_like(score_TE).scatter_(-1, chosen, weight)


def swiglu_oai(gate: torch.Tensor, up: torch.Tensor, limit: float, alpha: float, beta: float) -> torch.Tensor:
    """``g * sigmoid(alpha * g) * (u + beta)`` with g clamped from above and u from both sides at ``limit``."""
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + beta)


def local_experts(expert_map: torch.Tensor | None) -> torch.Tensor | None:
    """The experts of this rank in the order of its weights, int64; None if it has all of them.

    ``expert_map``: vLLM's int [E], the place among this rank's weights or -1.
    """
    if expert_map is None:
        return None
    [mine] = (expert_map >= 0).nonzero(as_tuple=True)
    return mine[expert_map[mine].argsort()]


class TorchModelOptNvFp4MoEMethod(ModelOptNvFp4FusedMoE):
    """The parameters of vLLM's ModelOpt NVFP4 method, executed in torch on any device.

    vLLM's expert weight loader goes by "ModelOpt" in this class's name.
    """

    supports_pre_processed_weights = False

    def __init__(self, quant_config: "ModelOptNvFp4Config", moe_config: FusedMoEConfig) -> None:
        # Not the direct parent's, which looks for a GPU kernel.
        FusedMoEMethodBase.__init__(self, moe_config)
        self.quant_config = quant_config
        self.use_global_sf = False

    @property
    def is_monolithic(self) -> bool:
        return True

    @property
    def supports_internal_mk(self) -> bool:
        """In vLLM's sense: whether the method itself brings replicas' tokens together."""
        return self.moe.dp_size > 1

    @property
    def supports_eplb(self) -> bool:
        return False

    def get_fused_moe_quant_config(self, layer: RoutedExperts) -> FusedMoEQuantConfig | None:
        return None

    def process_weights_after_loading(self, layer: RoutedExperts) -> None:
        """Decode the weights once; the packed ones stay, so that they can be loaded anew."""
        dtype = self.moe.in_dtype
        w13 = dequantize(layer.w13_weight.data, layer.w13_weight_scale.data)
        shards = w13.unflatten(1, (2, -1))  # w1 (gate), w3 (up)
        shards *= layer.w13_weight_scale_2.data[:, :, None, None]
        w2 = dequantize(layer.w2_weight.data, layer.w2_weight_scale.data)
        w2 *= layer.w2_weight_scale_2.data[:, None, None]
        layer.w13_decoded, layer.w2_decoded = w13.to(dtype), w2.to(dtype)
        layer.local_experts = local_experts(layer.expert_map)

    def apply_monolithic(
        self,
        layer: RoutedExperts,
        x: torch.Tensor,
        router_logits: torch.Tensor,
        input_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Sum of the routed experts, [T, H] of ``x``'s dtype; this rank's share under tensor or expert parallelism.

        Every expert of this rank runs on every token and counts with weight 0 where it was not chosen: static shapes,
        and no wait for the device. With data-parallel replicas all ranks compute for all replicas' tokens.
        """
        if self.moe.dp_size > 1:
            sizes = num_tokens_of_replicas()
            return reduce(self._apply(layer, gather(x, sizes), gather(router_logits, sizes)), sizes)
        return self._apply(layer, x, router_logits)

    def _apply(self, layer: RoutedExperts, x: torch.Tensor, router_logits: torch.Tensor) -> torch.Tensor:
        gate_TE = route(router_logits, layer.e_score_correction_bias, layer.top_k, layer.routed_scaling_factor)
        if layer.local_experts is not None:
            gate_TE = gate_TE.index_select(-1, layer.local_experts)
        gate, up = torch.einsum("th,eih->eti", x, layer.w13_decoded).chunk(2, dim=-1)
        hidden = swiglu_oai(gate, up, layer.swiglu_limit, layer.swiglu_alpha, layer.swiglu_beta)
        weighted = hidden * gate_TE.t()[..., None].to(x.dtype)
        return torch.einsum("eti,ehi->th", weighted, layer.w2_decoded)
