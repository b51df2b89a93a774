"""The row's geometry: pages tile it without hole or overlap, and add up to the facts' sizes."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.geometry import PROFILES
from kv_transfer.layout import Page, RowLayout, layer_row, main, pool_row

ROOT = Path(__file__).resolve().parents[3]
FLASH = PROFILES["m31-flash"]
ROW_BYTES = {8: 1_822_720, 4: 1_822_720, 2: 3_092_480, 1: 5_632_000}  # TP4: facts K2; the others follow from it

KV = Page("kv_pool", 0, 294_912, True)
INDEX = Page("index_pool", 294_912, 36_864, False)


def test_a_row_is_the_sum_of_its_pages() -> None:
    layout = RowLayout.from_pages([INDEX, KV], 331_776)
    assert layout.row_bytes == 331_776
    assert [page.name for page in layout.pages] == ["kv_pool", "index_pool"]


@pytest.mark.parametrize(
    ("pages", "stride", "reason"),
    [
        ([], 0, "at least one page"),
        ([INDEX], 331_776, "starts at byte 294912 of the row, expected 0"),
        ([KV, Page("index_pool", 294_911, 36_864, False)], 331_775, "expected 294912"),
        ([KV, INDEX], 331_777, "add up to 331776 bytes, but blocks are 331777 bytes apart"),
        ([Page("empty", 0, 0, True)], 0, "has 0 bytes"),
        ([Page("kv_pool", 0, 9, True, 2)], 9, "of 9 bytes does not hold 2 equal heads"),
        ([Page("kv_pool", 0, 9, True, 0)], 9, "does not hold 0 equal heads"),
        ([Page("index_pool", 0, 8, False, 2)], 8, "is the same on every rank, but has 2 heads"),
    ],
)
def test_what_is_no_dense_row_is_refused(pages: list[Page], stride: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        RowLayout.from_pages(pages, stride)


@given(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=40), st.randoms())
def test_any_tiling_is_accepted_in_any_order_and_no_shifted_one(sizes: list[int], random: Random) -> None:
    pages, end = [], 0
    for i, size in enumerate(sizes):
        pages.append(Page(f"layer{i}", end, size, i % 2 == 0))
        end += size
    shuffled = random.sample(pages, len(pages))
    assert RowLayout.from_pages(shuffled, end).pages == tuple(pages)
    shifted = [Page(p.name, p.offset + 1, p.page_bytes, p.is_sharded) for p in pages]
    with pytest.raises(ValueError, match="expected 0"):
        RowLayout.from_pages(shifted, end + 1)


def test_a_head_of_a_page_is_an_equal_part_of_it() -> None:
    assert Page("kv_pool", 0, 294_912, True, 4).head_bytes == 73_728
    assert INDEX.head_bytes == INDEX.page_bytes


def test_a_row_at_tp4_is_the_125_pages_of_facts_k2() -> None:
    pages = layer_row(FLASH, 4).pages
    sizes = [(page.page_bytes, page.is_sharded) for page in pages]
    assert sizes == [(128 * 144, True)] * 60 + [(128 * 72, False)] * 60 + [(128 * 256, True)] * 5
    assert len(pages) == 125


@pytest.mark.parametrize("tp_size", ROW_BYTES)
def test_a_row_has_the_same_bytes_by_layer_and_by_pool(tp_size: int) -> None:
    by_layer, by_pool = layer_row(FLASH, tp_size), pool_row(FLASH, tp_size)
    assert by_layer.row_bytes == by_pool.row_bytes == ROW_BYTES[tp_size]
    assert [page.name for page in by_pool.pages] == ["kv_pool", "index_pool", *(f"drafter.{i}" for i in range(5))]
    heads = max(1, 4 // tp_size)
    assert [page.num_heads for page in by_pool.pages] == [heads, 1, *[heads] * 5]


def test_index_pages_belong_to_the_last_layers_and_can_be_absent() -> None:
    names = [page.name for page in layer_row(PROFILES["m3"], 4).pages if not page.is_sharded]
    assert names == [f"layers.{layer}.index" for layer in range(3, 60)]
    assert [page.name for page in pool_row(replace(PROFILES["m3"], num_index_layers=0), 4).pages] == ["kv_pool"]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    main([*arguments, "--json"])
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.parametrize("tp_size", ROW_BYTES)
def test_the_command_prints_the_row_of_facts_k2_and_the_tokens_of_m5(
    tp_size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = printed(capsys, "--profile", "m31-flash", "--tp", str(tp_size))
    assert answer["pages"] == 125
    assert answer["row_bytes"] == ROW_BYTES[tp_size]
    assert answer["kv_bytes_per_token"] == 34_560  # of all heads, each once, whatever the TP


def test_the_command_knows_fp8_and_index_keys_follow(capsys: pytest.CaptureFixture[str]) -> None:
    answer = printed(capsys, "--profile", "m31-flash", "--kv-dtype", "fp8")
    assert (answer["kv_bytes_per_token"], answer["index_dtype"]) == (61_440, "fp8")  # facts M5
    assert answer["row_bytes"] == 128 * (60 * 256 + 60 * 128 + 5 * 256)
    answer = printed(capsys, "--profile", "m31-flash", "--kv-dtype", "fp8", "--index-dtype", "nvfp4")
    assert answer["row_bytes"] == 128 * (60 * 256 + 60 * 72 + 5 * 256)


@pytest.mark.parametrize(("num_layers", "num_pages"), [((), 117), (("--drafter-layers", "3"), 120)])
def test_the_command_gives_m3_the_drafter_that_it_is_asked_for(
    num_layers: tuple[str, ...], num_pages: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(capsys, "--profile", "m3", *num_layers)["pages"] == num_pages


def test_the_command_lists_pages_that_tile_the_row(capsys: pytest.CaptureFixture[str]) -> None:
    answer = printed(capsys, "--profile", "m31-flash", "--pages", "--pooled", "--tp", "2")
    assert answer["page_table"] == [
        {"name": page.name, "offset": page.offset, "bytes": page.page_bytes} for page in pool_row(FLASH, 2).pages
    ]
    main(["--profile", "m31-flash", "--pages"])
    table = capsys.readouterr().out
    assert "row_bytes              1,822,720" in table
    assert table.splitlines()[-1].split() == ["drafter.4", "1,789,952", "32,768"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--profile", "m31-flash", "--tp", "3"], "argument --tp: TP 3 neither divides 4 KV heads"),
        (["--profile", "m31-flash", "--tp", "0"], "argument --tp: TP 0"),
        (["--profile", "m31-flash", "--tp", "two"], "argument --tp: invalid int"),
        (["--profile", "m31-flash", "--drafter-layers", "-1"], "argument --drafter-layers: -1 is negative"),
        (["--profile", "m31-flash", "--kv-dtype", "int4"], "argument --kv-dtype: invalid choice"),
        (["--profile", "m2"], "argument --profile: invalid choice"),
        ([], "--profile"),
    ],
)
def test_the_command_names_the_option_that_does_not_fit(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


def test_the_module_runs_as_a_command() -> None:
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "kv_transfer.layout",
        "--profile",
        "m31-flash",
        "--tp",
        "4",
        "--json",
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout)["row_bytes"] == 1_822_720
