"""MXFP8 rows of a prefill chunk beside plain torch on one GPU; figures without a demand. Rows of a case are tokens.

There is no kernel of upstream's to stand beside: vLLM packs no values and scales in one buffer.
"""

import functools
from collections.abc import Callable, Iterator, Sequence

import torch

from bench.kernels.case import Bench, Call, Case, Floor, Shape, Size, num_sets
from msa_model.ops.mxfp8 import add_rms_norm_encode, decode_rows, encode_rows, row_bytes
from msa_model.reference import mxfp8 as twin

HIDDEN, TOKENS = 6144, 16 * 1024  # fact M1; a long chunk
EPS = 1e-6
VALUE_BYTES = 2  # bfloat16
Contenders = dict[str, Call]


def cases(bench: Bench) -> Iterator[Case]:
    """Encoding, decoding, and the fused norm: each reads or writes so many bfloat16 activations beside packed rows."""
    for name, num_activations, make in (("encode", 1, _encode), ("decode", 1, _decode), ("norm", 3, _norm)):
        size = Size(Shape(f"{name}, {HIDDEN} wide", 0, 0), TOKENS, 1, TOKENS)
        moved = TOKENS * (num_activations * HIDDEN * VALUE_BYTES + row_bytes(HIDDEN))
        floor = Floor(moved, 0, 0)
        yield Case("mxfp8", size, floor, functools.partial(_prepare, make, num_sets(bench, moved)))


def _prepare(make: Callable[[], Contenders], sets: int) -> dict[str, Sequence[Call]]:
    made = [make() for _ in range(sets)]
    return {name: [contenders[name] for contenders in made] for name in made[0]}


def _activations() -> torch.Tensor:
    return torch.randn(TOKENS, HIDDEN, device="cuda").bfloat16()


def _new_rows() -> torch.Tensor:
    return torch.empty(TOKENS, row_bytes(HIDDEN), dtype=torch.uint8, device="cuda")


def _encode() -> Contenders:
    x, rows = _activations(), _new_rows()
    return {"ours": lambda: encode_rows(x, out=rows), "torch": lambda: twin.encode(x, rows)}


def _decode() -> Contenders:
    rows, out = encode_rows(_activations()), _activations()
    return {"ours": lambda: decode_rows(rows, out.dtype, out=out), "torch": lambda: twin.decode(rows, out)}


def _norm() -> Contenders:
    residual, rows = _activations(), _new_rows()
    # Of zeros, so that calls leave the residual as it is.
    delta, weight = torch.zeros_like(residual), torch.randn(HIDDEN, device="cuda").bfloat16()
    return {
        "ours": lambda: add_rms_norm_encode(residual, delta, weight, EPS, out=rows),
        "torch": lambda: twin.add_rms_norm_encode(residual, delta, weight, EPS, rows, None),
    }
