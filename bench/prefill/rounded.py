"""What a layer gives when it rounds what split ranks exchange, and nothing else: what they are held to."""

import torch

from msa_model.model import DecoderLayer
from msa_model.reference import mxfp8


def rounded_layer(layer: DecoderLayer, positions: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """The output of a plain ``layer``, with what is exchanged rounded to MXFP8; the router sees it before.

    ``positions`` int [T], ``hidden`` [T, hidden_size] -> [T, hidden_size].
    """
    attention = layer.self_attn
    attended = rounded(attention.heads(positions, rounded(layer.input_layernorm(hidden))))
    hidden = hidden + attention.o_proj(attended)[0]
    normed = layer.post_attention_layernorm(hidden)
    if not layer.is_sparse_moe:
        return hidden + layer.mlp(rounded(normed))
    moe = layer.block_sparse_moe
    return hidden + moe.experts(hidden_states=rounded(normed), router_logits=moe.scores(normed))


def rounded(x: torch.Tensor) -> torch.Tensor:
    """``x`` [T, D] as it is after MXFP8, in its dtype."""
    return mxfp8.dequantize(*mxfp8.quantize(x)).to(x.dtype)
