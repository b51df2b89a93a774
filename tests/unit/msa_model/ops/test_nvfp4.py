"""Packing writes the twin's bytes to the tokens' places, and unpacking reads them back."""

import pytest
import torch

from msa_model.ops.nvfp4 import e4m3_products, pack, unpack
from msa_model.pages import SlotPages
from msa_model.reference.nvfp4 import E2M1_MAGNITUDES

MIDPOINTS = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0]
HEAD_SLOTS = torch.tensor([4, 0, 3])


def difficult_values(dtype: torch.dtype) -> torch.Tensor:
    """[37, 3, 128] over all sizes: zeros, midpoints of both signs, a value that rounds to minus zero, saturation."""
    torch.manual_seed(4)
    values = torch.randn(37, 3, 128) * torch.logspace(-6, 4, 37)[:, None, None]
    values[0] = 0
    values[1, 0], values[1, 1] = torch.tensor(MIDPOINTS * 16), -torch.tensor(MIDPOINTS * 16)
    values[2, 0, 5] = -1e-9
    values[3, 2, 7] = 1e5 if dtype != torch.float16 else 6e4
    return values.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_bytes_are_the_twins(dtype: torch.dtype) -> None:
    values = difficult_values(dtype)
    pool = torch.randint(256, (5, 6, 128, 72), dtype=torch.uint8)
    expected = pool.clone()
    places = torch.randperm(512)[:37] + 128
    pack(values, pool, HEAD_SLOTS, places)
    SlotPages(expected).write(places, HEAD_SLOTS, values)
    assert torch.equal(pool, expected)


def test_padding_is_stored_nowhere() -> None:
    pool = torch.randint(256, (2, 5, 128, 72), dtype=torch.uint8)
    before = pool.clone()
    pack(torch.randn(3, 3, 128), pool, HEAD_SLOTS, torch.tensor([-1, -1, -1]))
    assert torch.equal(pool, before)


def test_strided_heads_and_int32_places_will_do() -> None:
    wide = torch.randn(4, 5, 128)
    pool, expected = (torch.zeros(1, 2, 128, 72, dtype=torch.uint8) for _ in range(2))
    places = torch.tensor([7, 0, 127, 3], dtype=torch.int32)
    pack(wide[:, 1:3], pool, torch.tensor([1, 0]), places)
    SlotPages(expected).write(places, torch.tensor([1, 0]), wide[:, 1:3])
    assert torch.equal(pool, expected)


def test_unpacked_values_are_exact_and_end_with_the_context() -> None:
    pool = torch.randint(256, (5, 6, 128, 72), dtype=torch.uint8)
    pages = SlotPages(pool)
    pages.scale.clamp_(max=126)
    blocks = torch.tensor([3, 1])
    found = unpack(pool, blocks, HEAD_SLOTS, num_tokens=200)
    assert torch.equal(found, pages.read(blocks, HEAD_SLOTS, 200))
    assert not found.flatten(1, 2)[:, 200:].any()


def test_the_table_holds_each_product_rounded_once() -> None:
    table = e4m3_products(torch.device("cpu")).view(torch.uint8).view(256, 8)
    scales = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    expected = (scales[:, None] * torch.tensor(E2M1_MAGNITUDES)).clamp(max=448).to(torch.float8_e4m3fn)
    assert torch.equal(table[:127].view(torch.float8_e4m3fn).float(), expected.float())


@pytest.mark.parametrize(
    ("shape", "places", "slots"), [((3, 3, 64), 3, 3), ((3, 3, 128), 2, 3), ((3, 3, 128), 3, 2)], ids=str
)
def test_what_does_not_fit_is_refused(shape: tuple[int, ...], places: int, slots: int) -> None:
    pool = torch.zeros(2, 5, 128, 72, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"must be|need"):
        pack(torch.zeros(shape), pool, HEAD_SLOTS[:slots], torch.zeros(places).long())
