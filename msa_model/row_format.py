"""How rows of activations are packed into bytes for a collective: as they are, or as MXFP8.

Rows of bytes may be the beginning of longer ones. Shape letters: S rows, D values of a row, B bytes of a packed row.
"""

from typing import Protocol

import torch
from torch import nn
from vllm.model_executor.layers.layernorm import GemmaRMSNorm

from msa_model.ops import mxfp8


class RowFormat(Protocol):
    """One format; holds no state."""

    def row_bytes(self, x: torch.Tensor) -> int:
        """B of ``x`` [S, D]."""

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """uint8 [S, B] of ``x`` [S, D]."""

    def encode_norm(
        self, residual: torch.Tensor, delta: torch.Tensor | None, norm: nn.Module, out: torch.Tensor
    ) -> torch.Tensor:
        """``residual += delta`` [S, D] in place, its norm packed into ``out`` uint8 [S, B]; the norm unpacked."""

    def decode(self, rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """[S, D] of the width and dtype of ``like`` from uint8 [S, B]."""


class ExactRows:
    """Rows as they are."""

    def row_bytes(self, x: torch.Tensor) -> int:
        return x.shape[1] * x.element_size()

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return as_bytes(x)

    def encode_norm(
        self, residual: torch.Tensor, delta: torch.Tensor | None, norm: nn.Module, out: torch.Tensor
    ) -> torch.Tensor:
        if delta is not None:
            residual += delta
        normed: torch.Tensor = norm(residual)
        out.copy_(as_bytes(normed))
        return normed

    def decode(self, rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return from_bytes(rows, like.dtype)


class MXFP8Rows:
    """Rows as ``ops.mxfp8`` packs them; add, norm and packing are one kernel where there are some."""

    def row_bytes(self, x: torch.Tensor) -> int:
        return mxfp8.row_bytes(x.shape[1])

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return mxfp8.encode_rows(x)

    def encode_norm(
        self, residual: torch.Tensor, delta: torch.Tensor | None, norm: nn.Module, out: torch.Tensor
    ) -> torch.Tensor:
        assert isinstance(norm, GemmaRMSNorm)
        normed = torch.empty_like(residual)
        mxfp8.add_rms_norm_encode(residual, delta, norm.weight, norm.variance_epsilon, out=out, normed=normed)
        return normed

    def decode(self, rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return mxfp8.decode_rows(rows, like.dtype)


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """uint8 [S, D * bytes of a value] of ``x`` [S, D]."""
    return x.contiguous().view(torch.uint8)


def from_bytes(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[S, D] of ``dtype`` from ``rows`` uint8 [S, D * bytes of a value]."""
    return rows.contiguous().view(dtype)
