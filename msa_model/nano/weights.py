"""Random weights of the nano model, scaled so that answers are printable and comparisons mean something.

NVFP4 rounding, block selection and routing are discontinuous, so the rounding noise of another summation order grows
from layer to layer. O_PROJ_GAIN and EXPERT_GAIN bound it. Measured with the reference model of the tests, seed 0, last
64 positions of random prompts of 300 to 3,000 tokens: 3e-7 relative noise on the input moves the log probabilities of
a position by 2e-4 to 9e-4 (median of each prompt) and by 1.8e-3 at worst; in
other prompts a near-tie of two blocks moved single positions by up to 2e-2. From 900 tokens on, attending to all blocks
instead of the chosen moves them by 0.04 on average and by 1.4-2.6 at worst, and changes 1-3 of 64 greedy tokens.
"""

from collections.abc import Callable

import torch

from msa_model.nano.config import (
    DENSE_SIZE,
    EXPERT_SIZE,
    HEAD_DIM,
    HIDDEN,
    MOE_LAYER_FREQ,
    NUM_EXPERTS,
    NUM_HEADS,
    NUM_KV_HEADS,
    NUM_LAYERS,
    Form,
)
from msa_model.reference import mxfp8
from msa_model.reference.nvfp4 import E2M1_MAX, E4M3_MAX, quantize

O_PROJ_GAIN = 0.1
EXPERT_GAIN = 0.3
# Queries a little longer than keys, so that attention picks rather than averages.
QUERY_NORM_EXTRA = 0.6
# Channel 0 of the residual stream is the same for every token and no layer writes to it. The head turns it into a
# bias that keeps special tokens and unprintable bytes out of any answer, sampled ones too.
BIAS_CHANNEL, BIAS_INPUT, UNPRINTABLE_BIAS = 0, 4.0, -4.0
HEAD_STD, LETTER_HEAD_STD = 0.15, 0.08


class _Maker:
    """Draws tensors from one seeded stream, in a fixed order, under their checkpoint names."""

    def __init__(self, seed: int, dtype: torch.dtype, form: Form) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype, self.form = dtype, form
        self.tensors: dict[str, torch.Tensor] = {}

    def normal(self, *shape: int, std: float) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator) * std

    def put(self, name: str, value: torch.Tensor, dtype: torch.dtype | None = None) -> None:
        self.tensors[name] = value.to(dtype or self.dtype).contiguous()

    def norm(self, name: str, size: int, extra: float = 0.0) -> None:
        self.put(f"{name}.weight", self.normal(size, std=0.1) + extra)

    def linear(self, name: str, outputs: int, inputs: int, gain: float = 1.0, *, writes_residual: bool = False) -> None:
        weight = self._matrix(outputs, inputs, gain, writes_residual)
        if self.form.projections == "plain":
            self.put(f"{name}.weight", weight)
            return
        values, scale = mxfp8.quantize(weight)
        self.put(f"{name}.weight", values, torch.float8_e4m3fn)
        self.put(f"{name}.weight_scale", scale, torch.uint8)

    def _matrix(self, outputs: int, inputs: int, gain: float, writes_residual: bool) -> torch.Tensor:
        weight = self.normal(outputs, inputs, std=gain * inputs**-0.5)
        if writes_residual:
            weight[BIAS_CHANNEL] = 0.0
        return weight

    def expert(self, name: str) -> None:
        """w1 (gate), w3 (up) and w2 (down) as ModelOpt writes them: w1 and w3 share their scale per tensor."""
        gate = self._matrix(EXPERT_SIZE, HIDDEN, 1.0, False)
        up = self._matrix(EXPERT_SIZE, HIDDEN, 1.0, False)
        down = self._matrix(HIDDEN, EXPERT_SIZE, EXPERT_GAIN, True)
        shared_max = torch.maximum(gate.abs().max(), up.abs().max())
        for part, weight, largest in (("w1", gate, shared_max), ("w3", up, shared_max), ("w2", down, down.abs().max())):
            tensor_scale = largest / (E2M1_MAX * E4M3_MAX)
            data, scale = quantize(weight / tensor_scale)
            self.put(f"{name}.{part}.weight", data, torch.uint8)
            self.put(f"{name}.{part}.weight_scale", scale, torch.float8_e4m3fn)
            self.put(f"{name}.{part}.weight_scale_2", tensor_scale, torch.float32)
            self.put(f"{name}.{part}.input_scale", torch.tensor(1.0), torch.float32)


def make_weights(seed: int, dtype: torch.dtype, texts: list[bytes | None], form: Form) -> dict[str, torch.Tensor]:
    """All tensors of the checkpoint by name.

    ``texts``: the bytes of each token id, None for special tokens. The routed experts are NVFP4, the router and its
    bias float32, projections as ``form`` says, everything else ``dtype``.
    """
    make = _Maker(seed, dtype, form)
    embedding = make.normal(len(texts), HIDDEN, std=1.0)
    embedding[:, BIAS_CHANNEL] = BIAS_INPUT
    make.put("model.embed_tokens.weight", embedding)
    for layer in range(NUM_LAYERS):
        prefix = f"model.layers.{layer}"
        _make_attention(make, f"{prefix}.self_attn", has_index=layer >= form.dense_layers)
        if MOE_LAYER_FREQ[layer]:
            _make_moe(make, f"{prefix}.block_sparse_moe")
        else:
            _make_mlp(make, f"{prefix}.mlp", DENSE_SIZE)
        make.norm(f"{prefix}.input_layernorm", HIDDEN)
        make.norm(f"{prefix}.post_attention_layernorm", HIDDEN)
    make.norm("model.norm", HIDDEN)
    make.put("lm_head.weight", _make_head(make.normal, texts))
    return make.tensors


def _make_attention(make: _Maker, prefix: str, *, has_index: bool) -> None:
    heads = {"q": NUM_HEADS, "k": NUM_KV_HEADS, "v": NUM_KV_HEADS}
    if has_index:
        heads |= {"index_q": NUM_KV_HEADS, "index_k": 1}
    for name, count in heads.items():
        make.linear(f"{prefix}.{name}_proj", count * HEAD_DIM, HIDDEN)
    make.linear(f"{prefix}.o_proj", HIDDEN, NUM_HEADS * HEAD_DIM, O_PROJ_GAIN, writes_residual=True)
    for name in ("q_norm", "k_norm", *(("index_q_norm", "index_k_norm") if has_index else ())):
        make.norm(f"{prefix}.{name}", HEAD_DIM, QUERY_NORM_EXTRA if name in ("q_norm", "index_q_norm") else 0.0)


def _make_moe(make: _Maker, prefix: str) -> None:
    make.put(f"{prefix}.gate.weight", make.normal(NUM_EXPERTS, HIDDEN, std=HIDDEN**-0.5), torch.float32)
    make.put(f"{prefix}.e_score_correction_bias", make.normal(NUM_EXPERTS, std=0.1), torch.float32)
    for expert in range(NUM_EXPERTS):
        make.expert(f"{prefix}.experts.{expert}")
    _make_mlp(make, f"{prefix}.shared_experts", EXPERT_SIZE)


def _make_mlp(make: _Maker, prefix: str, size: int) -> None:
    make.linear(f"{prefix}.gate_proj", size, HIDDEN)
    make.linear(f"{prefix}.up_proj", size, HIDDEN)
    make.linear(f"{prefix}.down_proj", HIDDEN, size, writes_residual=True)


def _make_head(normal: Callable[..., torch.Tensor], texts: list[bytes | None]) -> torch.Tensor:
    """Rows of printable tokens random, those of longer ones larger, so that answers are made of words."""
    head = normal(len(texts), HIDDEN, std=1.0)
    for row, text in zip(head, texts, strict=True):
        if is_printable(text):
            row *= HEAD_STD if len(text or b"") > 1 else LETTER_HEAD_STD
            row[BIAS_CHANNEL] = 0.0
        else:
            row.zero_()
            row[BIAS_CHANNEL] = UNPRINTABLE_BIAS
    return head


def is_printable(text: bytes | None) -> bool:
    """Whether a token is plain ASCII that shows on a screen."""
    return text is not None and all(0x20 <= byte < 0x7F for byte in text)
