"""Headers are read as safetensors wrote them; what is wrong with a file is written down by its name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from msa_model.checkpoint_files import FoundTensor, read_headers
from tests.unit.msa_model.checkpoints import write_file, write_index

A, B = {"a": ((2, 4), "F32", 32)}, {"b": ((3,), "U8", 3)}


def test_what_safetensors_writes_is_read_as_it_was_meant(tmp_path: Path) -> None:
    tensors = {
        "bytes": torch.zeros(3, 5, dtype=torch.uint8),
        "scale": torch.zeros(7, dtype=torch.float8_e4m3fn),
        "exponent": torch.zeros(2, dtype=torch.float8_e8m0fnu),
        "number": torch.tensor(1.0),
        "none": torch.zeros(0, 4, dtype=torch.bfloat16),
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    headers = read_headers(tmp_path)
    assert not headers.damaged
    assert {name: (found.shape, found.dtype) for name, found in headers.tensors.items()} == {
        "bytes": ((3, 5), "U8"),
        "scale": ((7,), "F8_E4M3"),
        "exponent": ((2,), "F8_E8M0"),
        "number": ((), "F32"),
        "none": ((0, 4), "BF16"),
    }
    assert headers.num_bytes == (tmp_path / "model.safetensors").stat().st_size


def test_without_an_index_every_file_counts_and_with_one_only_those_that_it_names(tmp_path: Path) -> None:
    write_file(tmp_path / "1.safetensors", A)
    write_file(tmp_path / "2.safetensors", B)
    assert set(read_headers(tmp_path).tensors) == {"a", "b"}
    write_index(tmp_path, {"a": "1.safetensors"})
    headers = read_headers(tmp_path)
    assert headers.tensors == {"a": FoundTensor("1.safetensors", (2, 4), "F32", 32)}
    assert (headers.num_files, headers.damaged) == (1, {})


def test_a_folder_without_weights_says_so(tmp_path: Path) -> None:
    assert read_headers(tmp_path).damaged == {tmp_path.name: "the folder has no .safetensors file"}


def test_a_file_that_the_index_names_and_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_file(tmp_path / "1.safetensors", A)
    write_index(tmp_path, {"a": "1.safetensors", "b": "2.safetensors"})
    headers = read_headers(tmp_path)
    assert headers.damaged == {"2.safetensors": "the index names it, but it is not there"}
    assert set(headers.tensors) == {"a"}


def test_a_tensor_that_lies_elsewhere_than_the_index_says_is_named(tmp_path: Path) -> None:
    write_file(tmp_path / "1.safetensors", A)
    write_file(tmp_path / "2.safetensors", B)
    write_index(tmp_path, {"a": "2.safetensors", "b": "1.safetensors"})
    assert set(read_headers(tmp_path).damaged) == {"a", "b"}


def test_a_tensor_in_two_files_is_named(tmp_path: Path) -> None:
    write_file(tmp_path / "1.safetensors", A)
    write_file(tmp_path / "2.safetensors", A)
    assert read_headers(tmp_path).damaged == {"a": "it is in 1.safetensors and in 2.safetensors"}


def test_a_file_that_was_cut_off_is_named_and_its_header_still_read(tmp_path: Path) -> None:
    path = tmp_path / "1.safetensors"
    write_file(path, A)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    headers = read_headers(tmp_path)
    assert headers.damaged == {"1.safetensors": "it has 31 bytes of data, its header describes 32"}
    assert set(headers.tensors) == {"a"}


def header_of(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version https",
        b"\xff" * 64,
        header_of(b"{"),
        header_of(b"[]"),
        header_of(b'{"a": 1}'),
        header_of(b'{"a": {"dtype": "F32", "shape": [1]}}'),
        header_of(b'{"__metadata__": {"format": 1}}'),
        header_of(b'{"__metadata__": ["pt"]}'),
        header_of(json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}).encode()) + bytes(4),
        header_of(json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}).encode()),
        header_of(json.dumps({"a": {"dtype": "F32", "shape": ["x"], "data_offsets": [0, 4]}}).encode()) + bytes(4),
    ],
)
def test_a_file_that_is_no_safetensors_is_named_and_the_others_are_read(tmp_path: Path, content: bytes) -> None:
    write_file(tmp_path / "1.safetensors", B)
    (tmp_path / "2.safetensors").write_bytes(content)
    headers = read_headers(tmp_path)
    assert set(headers.tensors) == {"b"}
    [(name, reason)] = headers.damaged.items()
    assert name == "2.safetensors"
    assert "header can't be read" in reason


@pytest.mark.parametrize(
    "entry",
    [
        {"shape": [10**30], "data_offsets": [0, 10**30]},
        {"shape": [10**4000] * 1000, "data_offsets": [0, 4]},
        {"shape": [1 << 48] * 17 + [0], "data_offsets": [0, 0]},
        {"shape": [1], "data_offsets": [10**4000, 10**4000 + 4]},
        {"shape": [-1, -1], "data_offsets": [0, 4]},
        {"shape": [1.0], "data_offsets": [0, 4]},
        {"shape": [True], "data_offsets": [0, 4]},
        {"shape": "1", "data_offsets": [0, 4]},
        {"shape": [1], "data_offsets": [0, 4], "dtype": ["F32"]},
        {"shape": [1], "data_offsets": [0, 2, 4]},
    ],
    ids=range(10),
)
def test_a_size_that_no_tensor_has_is_named_at_once_and_in_few_words(tmp_path: Path, entry: dict[str, Any]) -> None:
    text = json.dumps({"a": {"dtype": "F32"} | entry}).encode()
    (tmp_path / "1.safetensors").write_bytes(header_of(text) + bytes(4))
    [(name, reason)] = read_headers(tmp_path).damaged.items()
    assert name == "1.safetensors"
    assert "header can't be read" in reason
    assert len(reason) < 300


@pytest.mark.parametrize("offsets", [[(0, 4), (0, 4)], [(0, 4), (2, 6)], [(0, 4), (6, 8)], [(2, 4), (4, 8)]])
def test_tensors_that_share_bytes_or_leave_some_are_named(tmp_path: Path, offsets: list[tuple[int, int]]) -> None:
    """As safetensors would when the weights are loaded."""
    header = {
        name: {"dtype": "U8", "shape": [end - start], "data_offsets": [start, end]}
        for name, (start, end) in zip("ab", offsets, strict=True)
    }
    (tmp_path / "1.safetensors").write_bytes(header_of(json.dumps(header).encode()) + bytes(offsets[-1][1]))
    assert "begins at" in read_headers(tmp_path).damaged["1.safetensors"]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": null}'])
def test_an_index_that_can_not_be_read_is_named(tmp_path: Path, text: str) -> None:
    write_file(tmp_path / "1.safetensors", A)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    headers = read_headers(tmp_path)
    assert set(headers.damaged) == {"model.safetensors.index.json"}
    assert set(headers.tensors) == {"a"}


@pytest.mark.parametrize("file", ["more/1.safetensors", "../1.safetensors", "1.bin", 1, None, ["1.safetensors"]])
def test_a_file_that_the_loader_would_not_look_for_is_named(tmp_path: Path, file: Any) -> None:
    write_file(tmp_path / "1.safetensors", A)
    write_index(tmp_path, {"a": "1.safetensors", "b": file})
    [(name, reason)] = read_headers(tmp_path).damaged.items()
    assert name == "model.safetensors.index.json"
    assert f"it names {file!r}" in reason
