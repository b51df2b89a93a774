"""Checkpoint folders whose files have headers and no data: a hole in the file stands for it."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msa_model.checkpoint_tensors import ExpectedTensor, expected_tensors
from msa_model.nano.config import DEFAULT_FORM, Form, model_config
from msa_model.published import with_defaults

Entry = tuple[tuple[int, ...], str, int]
"""Shape, dtype, and bytes of one tensor."""


def entries_of(values: dict[str, Any]) -> dict[str, Entry]:
    """What a checkpoint of a config.json holds."""
    tensors = expected_tensors(with_defaults(values)).values()
    return {tensor.name: entry_of(tensor) for tensor in tensors}


def entry_of(tensor: ExpectedTensor) -> Entry:
    return tensor.shape, tensor.dtypes[0], tensor.num_bytes


def write_file(path: Path, entries: Mapping[str, Entry]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (shape, dtype, num_bytes) in entries.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + num_bytes]}
        end += num_bytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def write_config(folder: Path, form: Form = DEFAULT_FORM, **changes: Any) -> dict[str, Any]:
    """A nano config.json, with keys replaced; its values."""
    values = model_config("float32", 512, form) | changes
    (folder / "config.json").write_text(json.dumps(values))
    return values


def write_checkpoint(folder: Path, values: dict[str, Any], num_files: int = 1) -> None:
    """Files and, where there are several, their index."""
    entries = list(entries_of(values).items())
    if num_files == 1:
        write_file(folder / "model.safetensors", dict(entries))
        return
    names = [f"model-{number:05}-of-{num_files:05}.safetensors" for number in range(1, num_files + 1)]
    shares = {name: dict(entries[number::num_files]) for number, name in enumerate(names)}
    for name, share in shares.items():
        write_file(folder / name, share)
    write_index(folder, {tensor: name for name, share in shares.items() for tensor in share})


def write_index(folder: Path, weight_map: dict[str, str] | Iterable[str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
