"""The decoder's forward pass with a step's tokens split: over ranks (SP), in two micro-batches (DBO), or both.

SP of one layer, on a rank's own tokens but where it says "all" (facts P2, P3)::

    norm -> gather -> all: qkv, attention of own heads -> swap -> o_proj of all heads -> add
    norm, router -> gather -> all: experts -> reduce-scatter -> add

Without SP each layer is as without this module, and its two all-reduces are taken apart, so that a micro-batch's
collectives run under the other's compute. Not for CUDA graphs.

Shape letters: P tokens of a part, T the same padded to a multiple of the ranks, S = T / ranks, H hidden size.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from vllm.distributed import get_tp_group
from vllm.forward_context import get_forward_context
from vllm.logger import init_logger

from msa_model.exchange import Exchange
from msa_model.micro_batch import cut
from msa_model.row_format import ExactRows, MXFP8Rows
from msa_model.steps import Steps, run_together
from wire.token_split import TokenSplit

if TYPE_CHECKING:
    from msa_model.metadata import MSAMetadata
    from msa_model.model import DecoderLayer

logger = init_logger(f"vllm.{__name__}")


@dataclass(frozen=True)
class _Part:
    """Tokens ``start`` to ``end`` of a step; ``positions`` int [T] with SP, padding included, else [P]."""

    start: int
    end: int
    positions: torch.Tensor

    @property
    def span(self) -> tuple[int, int]:
        return self.start, self.end


class SplitForward:
    """Runs the layers of one rank; holds no weights.

    Args:
        cache_layer: name of the cache layer whose metadata describes a step.
    """

    def __init__(self, settings: TokenSplit, cache_layer: str) -> None:
        self._settings, self._cache_layer = settings, cache_layer
        self.exchange = Exchange(
            get_tp_group().device_group, ExactRows() if settings.sp_exchange == "exact" else MXFP8Rows()
        )
        logger.info_once(
            "tokens are split: SP %s, DBO %s",
            f"on, exchanged as {settings.sp_exchange}" if settings.enable_sp else "off",
            f"from {settings.dbo_min_tokens} tokens on" if settings.enable_dbo else "off",
        )

    def __call__(
        self, layers: Iterable[nn.Module], norm: nn.Module, positions: torch.Tensor, hidden: torch.Tensor
    ) -> torch.Tensor:
        """Normed hidden states [num_tokens, H] of ``hidden``, on every rank alike."""
        # Where vLLM finds experts by counting calls, a second micro-batch would find those of other layers.
        get_forward_context().all_moe_layers = None
        decoder = [cast("DecoderLayer", layer) for layer in layers]
        steps = [
            self._run_part(decoder, norm, self._part(positions, start, end), hidden[start:end])
            for start, end in self._spans(hidden.shape[0])
        ]
        outputs = run_together(steps)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _spans(self, num_tokens: int) -> list[tuple[int, int]]:
        """First tokens and ends of the parts; all ranks see the same, as they have the same step."""
        middle = 0
        if self._settings.enable_dbo and num_tokens >= self._settings.dbo_min_tokens:
            middle = cut(num_tokens, num_whole=self._num_uniform_tokens())
        return [(0, middle), (middle, num_tokens)] if middle else [(0, num_tokens)]

    def _num_uniform_tokens(self) -> int:
        metadata = get_forward_context().attn_metadata
        if not isinstance(metadata, dict):  # a profiling run
            return 0
        return cast("MSAMetadata", metadata[self._cache_layer]).num_uniform_tokens

    def _part(self, positions: torch.Tensor, start: int, end: int) -> _Part:
        own = positions[start:end]
        return _Part(start, end, self.exchange.pad(own) if self._settings.enable_sp else own)

    def _run_part(
        self, layers: list["DecoderLayer"], norm: nn.Module, part: _Part, hidden_PH: torch.Tensor
    ) -> Steps[torch.Tensor]:
        if not self._settings.enable_sp:
            for layer in layers:
                hidden_PH = yield from self._layer(layer, part, hidden_PH)
            return norm(hidden_PH)
        hidden_SH = self.exchange.own_rows(hidden_PH).clone()  # as it is added to in place
        delta_SH: torch.Tensor | None = None
        for layer in layers:
            delta_SH = yield from self._layer_of_own_tokens(layer, part, hidden_SH, delta_SH)
        if delta_SH is not None:
            hidden_SH += delta_SH
        normed_TH = yield from self.exchange.gather_exact(norm(hidden_SH))
        return normed_TH[: part.end - part.start]

    def _layer(self, layer: "DecoderLayer", part: _Part, hidden_PH: torch.Tensor) -> Steps[torch.Tensor]:
        attention = layer.self_attn
        attended = attention.o_proj(attention.heads(part.positions, layer.input_layernorm(hidden_PH), part.span))[0]
        hidden_PH = hidden_PH + (yield from self.exchange.all_reduce(attended))
        normed = layer.post_attention_layernorm(hidden_PH)
        feed_forward = layer.block_sparse_moe if layer.is_sparse_moe else layer.mlp
        return hidden_PH + (yield from self.exchange.all_reduce(feed_forward(normed)))

    def _layer_of_own_tokens(
        self, layer: "DecoderLayer", part: _Part, hidden_SH: torch.Tensor, delta_SH: torch.Tensor | None
    ) -> Steps[torch.Tensor]:
        """What the experts add; ``hidden_SH`` gets ``delta_SH``, which those before added, and what attention adds."""
        exchange, attention = self.exchange, layer.self_attn
        normed_TH = yield from exchange.gather_norm(hidden_SH, delta_SH, layer.input_layernorm)
        own_tokens = yield from exchange.swap(attention.heads(part.positions, normed_TH, part.span))
        attended, norm = attention.o_proj(own_tokens)[0], layer.post_attention_layernorm
        if layer.is_sparse_moe:
            moe = layer.block_sparse_moe
            normed_TH, scores = yield from exchange.gather_routed_norm(hidden_SH, attended, norm, moe)
            partial_TH = moe.experts(hidden_states=normed_TH, router_logits=scores)
        else:
            normed_TH = yield from exchange.gather_norm(hidden_SH, attended, norm)
            partial_TH = layer.mlp(normed_TH)
        return (yield from exchange.reduce_scatter(partial_TH))
