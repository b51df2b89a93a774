"""The kernels of MXFP8 rows on a GPU write the twin's bytes, up to 64K tokens, and read them back exactly."""

import pytest
import torch

from msa_model.ops.mxfp8 import add_rms_norm_encode, decode_rows, encode_rows, row_bytes
from msa_model.reference import mxfp8 as twin
from msa_model.reference.tolerances import relative_l2, tolerance

pytestmark = pytest.mark.one_gpu

DEVICE = torch.device("cuda", 0)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = [(1, 6144), (1003, 2048), (777, 4096), (16_384, 6144), (65_536, 2048), (65_536, 6144)]
EPS = 1e-6


def random_rows(num_rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Values of many sizes, with zeros of both signs, and small ones that vanish beside their group."""
    torch.manual_seed(num_rows + width)
    span = (-4, 3.5) if dtype == torch.float16 else (-30, 30)
    x = torch.randn(num_rows, width, device=DEVICE) * torch.logspace(*span, num_rows, device=DEVICE)[:, None]
    x[:, 1::7] *= 1e-3
    x[:, 2::11], x[:, 3::11] = 0.0, -0.0
    return x.to(dtype)


def twin_rows(x: torch.Tensor) -> torch.Tensor:
    rows = torch.empty(x.shape[0], row_bytes(x.shape[1]), dtype=torch.uint8, device=x.device)
    twin.encode(x, rows)
    return rows


@pytest.mark.parametrize(("num_rows", "width"), SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_rows_are_the_twins_and_decode_exactly(num_rows: int, width: int, dtype: torch.dtype) -> None:
    x = random_rows(num_rows, width, dtype)
    rows = encode_rows(x)
    assert torch.equal(rows, twin_rows(x))
    assert torch.equal(rows[:50].cpu(), twin_rows(x[:50].cpu())), "the twin is the same on both devices"
    found, expected = decode_rows(rows, dtype), torch.empty_like(x)
    twin.decode(rows, expected)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_half_is_packed_as_the_cpu_does_it(dtype: torch.dtype) -> None:
    """Subnormal numbers, infinities and NaN included."""
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).view(32, 2048)
    assert torch.equal(encode_rows(x.to(DEVICE)).cpu(), twin_rows(x))


def test_scales_change_where_the_cpus_do() -> None:
    edges = (1.75 * 2.0 ** torch.arange(-149, 128)).float().view(torch.int32)
    x = torch.zeros(len(edges), 4 * 32)
    x[:, ::32] = (edges[:, None] + torch.arange(-1, 3, dtype=torch.int32)).clamp(min=0).view(torch.float32)
    x[:, 1::32] = -x[:, ::32] * 0.037
    assert torch.equal(encode_rows(x.to(DEVICE)).cpu(), twin_rows(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_byte_under_every_scale_is_decoded_as_the_cpu_does_it(dtype: torch.dtype) -> None:
    values = torch.arange(256).to(torch.uint8).expand(256, 256)
    scale = torch.arange(256).to(torch.uint8)[:, None].expand(256, 8)
    rows, expected = torch.cat([values, scale], dim=1), torch.empty(256, 256, dtype=dtype)
    twin.decode(rows, expected)
    found = decode_rows(rows.to(DEVICE), dtype).cpu()
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("first_byte", [0, 5, 16])
def test_rows_may_lie_apart_and_at_any_byte(first_byte: int) -> None:
    x = torch.randn(501, 2 * 6144 + 8, device=DEVICE).bfloat16()[:, 8 : 8 + 6144]
    end = first_byte + row_bytes(6144)
    buffer = torch.full((501, end + 512), 77, dtype=torch.uint8, device=DEVICE)
    rows = encode_rows(x, out=buffer[:, first_byte:end])
    assert torch.equal(rows, twin_rows(x))
    assert bool((buffer[:, :first_byte] == 77).all())
    assert bool((buffer[:, end:] == 77).all())
    out = torch.zeros(501, 3, 6144, dtype=torch.bfloat16, device=DEVICE)
    decode_rows(rows, out.dtype, out=out[:, 1])
    assert torch.equal(out[:, 1], decode_rows(rows.contiguous(), out.dtype))
    assert not out[:, ::2].any()


@pytest.mark.parametrize(("num_rows", "width"), SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_add_norm_and_packing_at_once_are_the_three_in_turn(num_rows: int, width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(width)
    residual, delta = (torch.randn(num_rows, width, device=DEVICE).to(dtype) for _ in range(2))
    weight = (torch.randn(width, device=DEVICE) * 0.3).to(dtype)
    state, normed, expected = residual.clone(), torch.empty_like(delta), torch.empty_like(delta)
    rows = add_rms_norm_encode(state, delta, weight, EPS, normed=normed)
    twin.add_rms_norm_encode(residual, delta, weight, EPS, torch.empty_like(rows), expected)
    assert torch.equal(state, residual)
    assert relative_l2(normed, expected) <= tolerance("rms_norm", str(dtype).removeprefix("torch."))
    assert torch.equal(rows, twin_rows(normed))
    assert torch.equal(add_rms_norm_encode(state, None, weight, EPS), rows), "the norm of the sum, without a delta"
    assert torch.equal(state, residual)


def test_a_captured_graph_follows_its_inputs() -> None:
    residual, delta = (torch.randn(300, 6144, device=DEVICE).bfloat16() for _ in range(2))
    weight, out = torch.zeros(6144, device=DEVICE).bfloat16(), torch.empty_like(delta)

    def step() -> None:
        decode_rows(add_rms_norm_encode(residual, delta, weight, EPS), out.dtype, out=out)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        expected = residual + delta
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(residual, expected)
        rows = add_rms_norm_encode(expected, None, weight, EPS)
        assert torch.equal(out, decode_rows(rows, out.dtype))
