"""The kernels of MXFP8 rows write the twin's bytes and read them back exactly, whatever the values are."""

import importlib
import sys

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.layernorm import GemmaRMSNorm

from msa_model.ops import mxfp8, mxfp8_launch
from msa_model.ops.mxfp8 import add_rms_norm_encode, decode_rows, encode_rows, row_bytes
from msa_model.reference import mxfp8 as twin
from msa_model.reference.tolerances import relative_l2, tolerance

# What NumPy says of results beyond a format and of NaN; they become what they become on a GPU.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EPS = 1e-6


@pytest.fixture
def on_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors go to the kernels, in Triton's interpreter."""
    monkeypatch.setattr(mxfp8, "_runner", lambda device: mxfp8_launch)


def twin_rows(x: torch.Tensor) -> torch.Tensor:
    values, scale = twin.quantize(x)
    return torch.cat([values.view(torch.uint8), scale], dim=1)


def random_rows(num_rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Values of all sizes that ``dtype`` has, zeros of both signs, and small ones that vanish beside their group."""
    torch.manual_seed(num_rows + width)
    sizes = torch.logspace(*((-4, 4) if dtype == torch.float16 else (-30, 30)), num_rows)[:, None]
    x = torch.randn(num_rows, width) * sizes
    x[:, 1::7] *= 1e-3
    x[:, 2::11], x[:, 3::11] = 0.0, -0.0
    x[0] = 0.0
    return x.to(dtype)


@pytest.mark.parametrize(("num_rows", "width"), [(1, 32), (131, 96), (7, 2048), (3, 6144)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_rows_are_the_twins(on_kernels: None, num_rows: int, width: int, dtype: torch.dtype) -> None:
    x = random_rows(num_rows, width, dtype)
    assert torch.equal(encode_rows(x), twin_rows(x))


def test_every_half_is_packed_as_the_twin_does_it(on_kernels: None) -> None:
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16).view(32, 2048)
    assert torch.equal(encode_rows(x), twin_rows(x))


def test_scales_change_where_the_twins_do(on_kernels: None) -> None:
    """Next to 448 times every power of two, below and above, down to subnormal numbers."""
    edges = (1.75 * 2.0 ** torch.arange(-149, 128)).float().view(torch.int32)
    x = torch.zeros(len(edges), 4 * 32)
    x[:, ::32] = (edges[:, None] + torch.arange(-1, 3, dtype=torch.int32)).clamp(min=0).view(torch.float32)
    x[:, 1::32] = -x[:, ::32] * 0.037
    assert torch.equal(encode_rows(x), twin_rows(x))


@pytest.mark.parametrize("is_twin", [True, False])
@pytest.mark.parametrize("lost", [float("nan"), -float("nan"), float("inf"), -float("inf")])
def test_a_group_that_is_no_number_is_nan_as_a_whole_and_no_other(
    monkeypatch: pytest.MonkeyPatch, is_twin: bool, lost: float
) -> None:
    if not is_twin:
        monkeypatch.setattr(mxfp8, "_runner", lambda device: mxfp8_launch)
    x = torch.randn(3, 96)
    expected = decode_rows(encode_rows(x), torch.float32)
    x[1, 40] = lost
    rows = encode_rows(x)
    assert rows[1, 96:].tolist()[1] == 255
    assert rows[1, 32:64].tolist() == [0x7F] * 32
    expected[1, 32:64] = float("nan")
    assert torch.equal(decode_rows(rows, torch.float32).nan_to_num(7.0), expected.nan_to_num(7.0))


def test_rows_may_lie_apart_and_between_other_bytes(on_kernels: None) -> None:
    wide = torch.randn(9, 200).bfloat16()
    x, buffer = wide[::2, 3:99], torch.full((5, 130), 77, dtype=torch.uint8)
    rows = encode_rows(x, out=buffer[:, 5 : 5 + row_bytes(96)])
    assert torch.equal(rows, twin_rows(x))
    assert (buffer[:, :5] == 77).all()
    assert (buffer[:, 5 + row_bytes(96) :] == 77).all()
    out = torch.zeros(5, 2 * 96)
    decode_rows(rows, torch.float32, out=out[:, 96:])
    assert torch.equal(out[:, 96:], twin.dequantize(*twin.quantize(x)))
    assert not out[:, :96].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_byte_under_every_scale_is_decoded_as_the_twin_does_it(on_kernels: None, dtype: torch.dtype) -> None:
    values = torch.arange(256).to(torch.uint8).expand(256, 256)
    scale = torch.arange(256).to(torch.uint8)[:, None].expand(256, 8)
    if dtype == torch.bfloat16:  # whose subnormal numbers the interpreter gets wrong
        values, scale = values[20:], scale[20:]
    expected = twin.dequantize(values.contiguous().view(torch.float8_e4m3fn), scale.contiguous()).to(dtype)
    found = decode_rows(torch.cat([values, scale], dim=1), dtype)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("width", [32, 96, 2048, 6144])
@pytest.mark.parametrize("dtype", DTYPES)
def test_add_norm_and_packing_at_once_are_the_three_in_turn(on_kernels: None, width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(width)
    residual, delta = (torch.randn(5, width).to(dtype) for _ in range(2))
    residual[3], delta[3] = 0.0, 0.0
    weight = (torch.randn(width) * 0.3).to(dtype)
    state, rows, normed = residual.clone(), torch.empty(5, row_bytes(width), dtype=torch.uint8), torch.empty_like(delta)
    expected = torch.empty_like(delta)
    twin.add_rms_norm_encode(residual, delta, weight, EPS, rows.clone(), expected)
    assert add_rms_norm_encode(state, delta, weight, EPS, out=rows, normed=normed) is rows
    assert torch.equal(state, residual)
    assert relative_l2(normed, expected) <= tolerance("rms_norm", str(dtype).removeprefix("torch."))
    assert torch.equal(rows, twin_rows(normed))


def test_without_a_delta_the_residual_stays_and_no_norm_is_written(on_kernels: None) -> None:
    wide = torch.randn(6, 200)
    before = wide.clone()
    rows = add_rms_norm_encode(wide[::2, 8:136], None, torch.zeros(128), EPS)
    assert torch.equal(wide, before)
    normed = torch.empty(3, 128)
    assert torch.equal(add_rms_norm_encode(wide[::2, 8:136], None, torch.zeros(128), EPS, normed=normed), rows)
    assert torch.equal(rows, twin_rows(normed))


@pytest.mark.parametrize("dtype", DTYPES)
def test_on_a_cpu_the_norm_is_the_models_bit_for_bit(dtype: torch.dtype) -> None:
    with set_current_vllm_config(VllmConfig()):
        norm = GemmaRMSNorm(96, eps=EPS)
    norm.weight.data = (torch.randn(96) * 0.3).to(dtype)
    hidden, delta = torch.randn(50, 96).to(dtype), torch.randn(50, 96).to(dtype)
    total, normed = hidden + delta, torch.empty_like(hidden)
    rows = add_rms_norm_encode(hidden, delta, norm.weight.data, EPS, normed=normed)
    assert torch.equal(hidden, total)
    assert torch.equal(normed, norm.forward_native(total))
    assert torch.equal(rows, twin_rows(normed))


def test_a_cpu_needs_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("triton", "msa_model.ops.mxfp8_launch", "msa_model.ops.kernels.mxfp8"):
        monkeypatch.setitem(sys.modules, name, None)  # an import of it would fail
    importlib.reload(mxfp8)
    x = torch.randn(3, 64)
    rows = mxfp8.encode_rows(x)
    assert torch.equal(rows, twin_rows(x))
    assert torch.equal(mxfp8.decode_rows(rows, torch.float32), twin.dequantize(*twin.quantize(x)))


def test_no_rows_are_no_work(on_kernels: None) -> None:
    x = torch.empty(0, 64)
    assert encode_rows(x).shape == (0, 66)
    assert decode_rows(encode_rows(x), torch.float16).shape == (0, 64)
    assert add_rms_norm_encode(x, x, torch.zeros(64), EPS).shape == (0, 66)


def test_what_does_not_fit_is_refused() -> None:
    x, rows = torch.randn(4, 64), torch.zeros(4, 66, dtype=torch.uint8)
    with pytest.raises(ValueError, match="multiples of 32"):
        encode_rows(torch.randn(4, 48))
    with pytest.raises(ValueError, match="contiguous rows"):
        encode_rows(torch.randn(64, 4).T)
    with pytest.raises(ValueError, match="x must be"):
        encode_rows(x.double())
    with pytest.raises(ValueError, match="out must be"):
        encode_rows(x, out=rows[:3])
    with pytest.raises(ValueError, match="rows must be"):
        decode_rows(rows[:, :65], torch.float32)
    with pytest.raises(ValueError, match="out must be"):
        decode_rows(rows, torch.float32, out=x.half())
    with pytest.raises(ValueError, match="delta must be"):
        add_rms_norm_encode(x, x.half(), torch.zeros(64), EPS)
    with pytest.raises(ValueError, match="weight must be"):
        add_rms_norm_encode(x, x, torch.zeros(32), EPS)
