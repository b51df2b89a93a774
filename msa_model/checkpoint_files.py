"""What the safetensors files of a checkpoint folder say that they hold; no weight is read. Pure.

A file is 8 bytes with the length of a header, the header in JSON, and the data that it describes.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from msa_model.refusals import is_whole, printable, shown

METADATA = "__metadata__"
INDEX = "model.safetensors.index.json"
# What reading JSON of unknown origin, and taking it for what it should be, can raise.
UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
# What safetensors itself allows for a header; no other JSON of a checkpoint comes near it.
MAX_HEADER_BYTES = 100_000_000
# Far beyond any tensor; a product of more and larger numbers would be computed for hours.
MAX_DIMS, MAX_SIZE = 16, 1 << 48
# Bits of a value; fractions of a byte are padded nowhere, so a tensor's data ends on a byte.
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
    "C64": 64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FoundTensor:
    """One entry of a header."""

    file: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int


@dataclass(slots=True)
class Headers:
    """All that the files of a folder say."""

    tensors: dict[str, FoundTensor] = field(default_factory=dict)
    num_files: int = 0
    num_bytes: int = 0
    """Of the files."""
    damaged: dict[str, str] = field(default_factory=dict)
    """File -> why nothing in it can be trusted; or tensor -> why it can't be found."""


def read_text(path: Path) -> str:
    """A whole file in UTF-8. Raises OSError; ValueError: no regular file (a pipe would wait), too large, no UTF-8."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path.name} is no regular file")
    if path.stat().st_size > MAX_HEADER_BYTES:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes, more than {MAX_HEADER_BYTES}")
    return path.read_text(encoding="utf-8")


def read_headers(folder: Path) -> Headers:
    """Read the header of each file that the index names, or of each ``*.safetensors`` where there is no index.

    What is wrong with a file is written down, not raised: a report names all of it at once.
    """
    headers = Headers()
    index = _read_index(folder, headers)
    files = sorted(set(index.values())) if index else sorted(path.name for path in folder.glob("*.safetensors"))
    if not files:
        headers.damaged[folder.name] = "the folder has no .safetensors file"
    for name in files:
        for tensor, found in _entries(folder / name, headers):
            if tensor in headers.tensors:
                headers.damaged[tensor] = f"it is in {headers.tensors[tensor].file} and in {name}"
            headers.tensors[tensor] = found
    for tensor, file in index.items():
        if tensor in headers.tensors and headers.tensors[tensor].file != file:
            headers.damaged[tensor] = f"the index says that it is in {file}, but {headers.tensors[tensor].file} has it"
    return headers


def _read_index(folder: Path, headers: Headers) -> dict[str, str]:
    path = folder / INDEX
    if not path.exists():
        return {}
    try:
        weight_map = json.loads(read_text(path))["weight_map"]
        named = dict(weight_map.items())
        odd = [file for file in named.values() if not _is_beside(file)]
    except UNREADABLE as error:
        headers.damaged[INDEX] = f"it has no weight_map that can be read ({type(error).__name__})"
        return {}
    if not named or odd:
        headers.damaged[INDEX] = (
            f"it names {shown(odd[0])}, no .safetensors file beside it" if odd else "it names no tensor"
        )
        return {}
    return named


def _is_beside(file: object) -> bool:
    """Whether vLLM would find it: it looks at this folder's own files alone."""
    return isinstance(file, str) and file.endswith(".safetensors") and "/" not in file


def _entries(path: Path, headers: Headers) -> Iterator[tuple[str, FoundTensor]]:
    try:
        header, num_data_bytes = _read_header(path)
        entries = {name: _checked(path.name, name, entry) for name, entry in header.items() if name != METADATA}
        end = _end_of(entries)
    except FileNotFoundError:
        headers.damaged[path.name] = "the index names it, but it is not there"
        return
    except UNREADABLE as error:
        headers.damaged[path.name] = f"its header can't be read: {error}"
        return
    headers.num_files += 1
    headers.num_bytes += path.stat().st_size
    if end != num_data_bytes:
        headers.damaged[path.name] = f"it has {num_data_bytes} bytes of data, its header describes {end}"
    for name, (found, _) in entries.items():
        yield name, found


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header, and how many bytes of data follow it."""
    num_bytes = path.stat().st_size
    if not path.is_file():
        raise ValueError("it is no regular file")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if num_bytes < 8 or length > min(num_bytes - 8, MAX_HEADER_BYTES):
            raise ValueError(f"the file has {num_bytes} bytes, its header would have {length}")
        header = json.loads(file.read(length).decode())
    if not isinstance(header, dict):
        raise ValueError("it is no JSON object")
    notes = header.get(METADATA, {})
    if not isinstance(notes, dict) or not all(isinstance(note, str) for note in notes.values()):
        raise ValueError(f"{METADATA} holds something else than texts, over which safetensors refuses a file")
    return header, num_bytes - 8 - length


def _checked(file: str, name: str, entry: dict[str, Any]) -> tuple[FoundTensor, int]:
    """A header's entry, and where its data begins. Raises ValueError if what it says doesn't fit together."""
    shape, dtype, (start, end) = entry["shape"], entry["dtype"], entry["data_offsets"]
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or not isinstance(dtype, str):
        raise ValueError(f"{printable(name)} has no shape and dtype of a tensor")
    if not all(is_whole(number) and 0 <= number <= MAX_SIZE for number in (*shape, start, end)):
        raise ValueError(f"{printable(name)} has a size or place that is no whole number from 0 to {MAX_SIZE}")
    bits = prod(shape) * BITS[dtype] if dtype in BITS else 8 * (end - start)
    if start > end or bits != 8 * (end - start):
        raise ValueError(f"{printable(name)}: {end - start} bytes for {dtype}{shape}")
    return FoundTensor(file, tuple(shape), dtype, end - start), start


def _end_of(entries: dict[str, tuple[FoundTensor, int]]) -> int:
    """Where the data ends. Raises ValueError for overlaps and gaps, over which safetensors refuses a file."""
    end = 0
    for start, num_bytes, name in sorted((start, found.num_bytes, name) for name, (found, start) in entries.items()):
        if start != end:
            raise ValueError(f"{printable(name)} begins at {start}, where {end} bytes lie before it")
        end += num_bytes
    return end
