"""An independent model to compare engines with: one full-sequence float32 forward pass, no cache, no paging.

Written from the facts (M1-M4) and the checkpoint alone; it imports neither vLLM nor the product. Quantisation is a
search for the nearest point, masks are built from sets of chosen blocks.

Greedy tokens may differ from an engine's only where the two best are closer than ``noise_floor``: NVFP4 rounding and
block selection are discontinuous, so another order of summation can move a logit that much.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
# The code that wins when a value lies in the middle of two: the even one.
EVEN_FIRST = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
QUERY_CHUNK = 256
NUM_NOISE_DRAWS = 4


def round_to_nvfp4(x: torch.Tensor) -> torch.Tensor:
    """The NVFP4 numbers nearest to ``x`` [..., D], one E4M3 scale per 16 values; float32 [..., D]."""
    groups = x.unflatten(-1, (-1, 16))
    six = torch.full(groups.shape[:-1], 6.0)
    scale = (groups.abs().amax(-1) / six).clamp(max=448.0).to(torch.float8_e4m3fn).float().unsqueeze(-1)
    scaled = torch.where(scale > 0, groups / scale, torch.zeros(()))
    grid = E2M1[EVEN_FIRST]
    # argmin takes the first of equal distances, so even codes come first.
    nearest = torch.stack([(scaled.abs() - point).abs() for point in grid]).argmin(0)
    return (grid[nearest] * scaled.sign() * scale).flatten(-2)


def round_to_fp8(x: torch.Tensor) -> torch.Tensor:
    """The E4M3 numbers nearest to ``x``, whose magnitude is below 448: what queries are stored as (fact M4)."""
    return x.to(torch.float8_e4m3fn).float()


def decode_weight(packed: torch.Tensor, scale: torch.Tensor, tensor_scale: torch.Tensor) -> torch.Tensor:
    """float32 [O, I] of a ModelOpt NVFP4 weight: uint8 [O, I/2], E4M3 [O, I/16], float32 scalar."""
    code = torch.stack([packed % 16, packed // 16], dim=-1).flatten(-2).long()
    value = torch.where(code >= 8, -E2M1[code % 8], E2M1[code % 8])
    return value * scale.float().repeat_interleave(16, dim=-1) * tensor_scale


def decode_mxfp8(values: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """float32 [O, I] of an MXFP8 weight: E4M3 [O, I], and uint8 [O, I/32] of which b means 2 ** (b - 127)."""
    return values.float() * (2.0 ** (exponent.float() - 127)).repeat_interleave(32, dim=-1)


class ReferenceModel:
    """The model of a checkpoint folder. ``is_dense`` attends to every block, to show what selection changes."""

    def __init__(self, path: str | Path, *, is_dense: bool = False) -> None:
        folder = Path(path)
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.is_dense = is_dense
        stored = load_file(folder / "model.safetensors")
        self.weights: dict[str, torch.Tensor] = {}
        for name, tensor in stored.items():
            if f"{name}_scale" in stored and f"{name}_scale_2" not in stored:
                self.weights[name] = decode_mxfp8(tensor, stored[f"{name}_scale"])
            elif f"{name}_scale" in stored:
                self.weights[name] = decode_weight(tensor, stored[f"{name}_scale"], stored[f"{name}_scale_2"])
            elif not name.endswith("_scale") and not name.endswith("_scale_2"):
                self.weights[name] = tensor.float()

    @torch.inference_mode()
    def logprobs(self, ids: list[int], last: int = 1, input_noise: float = 0.0, seed: int = 3) -> torch.Tensor:
        """Log probabilities float32 [last, vocab] of the token after each of the ``last`` positions of ``ids``.

        ``input_noise`` multiplies the embeddings by 1 + that much Gaussian noise, always the same for a ``seed``.
        """
        x = self.weights["model.embed_tokens.weight"][torch.tensor(ids)]
        if input_noise:
            x = x * (1 + input_noise * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)))
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            x = x + self._attention(self._norm(x, f"{prefix}input_layernorm"), layer)
            x = x + self._feed_forward(self._norm(x, f"{prefix}post_attention_layernorm"), layer)
        hidden = self._norm(x[-last:], "model.norm")
        return self._linear(hidden, "lm_head").log_softmax(-1)

    def noise_floor(self, ids: list[int], eps: float = 3e-7, last: int = 16) -> float:
        """How far ``eps`` relative noise on the input moves any log probability of the ``last`` positions.

        The most of NUM_NOISE_DRAWS: a query or a key on the edge between two numbers, or two blocks as good as each
        other, are met by some of them only.
        """
        exact = self.logprobs(ids, last)
        noisy = (self.logprobs(ids, last, input_noise=eps, seed=seed) for seed in range(NUM_NOISE_DRAWS))
        return max(float((exact - one).abs().max()) for one in noisy)

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self.weights[f"{name}.weight"].T

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        eps = self.config.get("rms_norm_eps", 1e-6)
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * (1 + self.weights[f"{name}.weight"])

    def _rope(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate the first ``rotary_dim`` values of each head of ``x`` [S, heads, D]: first half with second half."""
        dims = self.config["rotary_dim"]
        # Angles in float32, as the model was defined with.
        frequency = 1.0 / self.config["rope_theta"] ** (torch.arange(0, dims, 2).float() / dims)
        angle = torch.outer(torch.arange(x.shape[0]).float(), frequency)[:, None]
        first, second, rest = x[..., : dims // 2], x[..., dims // 2 : dims], x[..., dims:]
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)

    def _attention(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        num_tokens, dim = x.shape[0], self.config["head_dim"]
        prefix = f"model.layers.{layer}.self_attn."

        def heads(name: str, *, is_normed: bool) -> torch.Tensor:
            projected = self._linear(x, f"{prefix}{name}_proj").view(num_tokens, -1, dim)
            return self._rope(self._norm(projected, f"{prefix}{name}_norm")) if is_normed else projected

        query, key = round_to_fp8(heads("q", is_normed=True)), round_to_nvfp4(heads("k", is_normed=True))
        has_index = bool(self.config["sparse_attention_config"]["sparse_attention_freq"][layer])
        index_query = round_to_fp8(heads("index_q", is_normed=True)) if has_index else query[:, : key.shape[1]]
        index_key = round_to_nvfp4(heads("index_k", is_normed=True)) if has_index else key
        value = round_to_nvfp4(heads("v", is_normed=False))
        groups = key.shape[1]
        chunks = []
        for start in range(0, num_tokens, QUERY_CHUNK):
            span = torch.arange(start, min(start + QUERY_CHUNK, num_tokens))
            seen = self._seen(index_query[span], index_key[:, 0], span, is_dense=self.is_dense or not has_index)
            grouped = query[span].unflatten(1, (groups, -1))
            logits = torch.einsum("tgnd,sgd->gnts", grouped, key) * dim**-0.5
            weights = logits.masked_fill(~seen.transpose(0, 1)[:, None], float("-inf")).softmax(-1)
            chunks.append(torch.einsum("gnts,sgd->tgnd", weights, value).flatten(1))
        return self._linear(torch.cat(chunks), f"{prefix}o_proj")

    def _seen(
        self, index_query: torch.Tensor, index_key: torch.Tensor, positions: torch.Tensor, *, is_dense: bool
    ) -> torch.Tensor:
        """bool [T, G, S]: keys at or before the query, in the blocks that its group chose."""
        sparse = self.config["sparse_attention_config"]
        size, count = sparse["sparse_block_size"], sparse["sparse_topk_blocks"]
        num_tokens, groups, num_keys = len(positions), index_query.shape[1], index_key.shape[0]
        past = (torch.arange(num_keys) <= positions[:, None])[:, None].expand(-1, groups, -1)
        if is_dense:
            return past
        scores = (index_query.flatten(0, 1) @ index_key.T).view(num_tokens, groups, num_keys)
        scores = scores.masked_fill(~past, float("-inf"))
        best = torch.stack([block.amax(-1) for block in scores.split(size, dim=-1)], dim=-1)
        best[torch.arange(num_tokens), :, positions // size] = float("inf")
        # A block is chosen if fewer than `count` blocks come before it: better ones, and equal ones of lower number.
        mine, other = best[..., :, None], best[..., None, :]
        is_lower = torch.ones(best.shape[-1], best.shape[-1], dtype=torch.bool).tril(-1)
        before = ((other > mine) | ((other == mine) & is_lower)).sum(-1)
        return (before < count).repeat_interleave(size, dim=-1)[..., :num_keys] & past

    def _feed_forward(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        prefix = f"model.layers.{layer}."
        if not self.config["moe_layer_freq"][layer]:
            return self._mlp(x, f"{prefix}mlp.", ("gate_proj", "up_proj", "down_proj"))
        prefix += "block_sparse_moe."
        out = self._mlp(x, f"{prefix}shared_experts.", ("gate_proj", "up_proj", "down_proj"))
        score = self._linear(x, f"{prefix}gate").sigmoid()
        order = (score + self.weights[f"{prefix}e_score_correction_bias"]).sort(dim=-1, descending=True, stable=True)
        chosen = order.indices[:, : self.config["num_experts_per_tok"]]
        weight = score.gather(1, chosen)
        weight = weight / weight.sum(-1, keepdim=True) * self.config.get("routed_scaling_factor", 2.0)
        for expert in range(score.shape[1]):
            token, place = (chosen == expert).nonzero(as_tuple=True)
            routed = self._mlp(x[token], f"{prefix}experts.{expert}.", ("w1", "w3", "w2"))
            out.index_add_(0, token, routed * weight[token, place, None])
        return out

    def _mlp(self, x: torch.Tensor, prefix: str, names: tuple[str, str, str]) -> torch.Tensor:
        limit, alpha = self.config.get("swiglu_limit", 7.0), self.config.get("swiglu_alpha", 1.702)
        gate, up = self._linear(x, prefix + names[0]), self._linear(x, prefix + names[1])
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return self._linear(gate * torch.sigmoid(alpha * gate) * (up + 1), prefix + names[2])
