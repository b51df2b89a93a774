"""Building the checkpoint folder: atomically, once, and again only when it is stale."""

import fcntl
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file

from msa_model.nano.config import DEFAULT_FORM, Form, model_config
from msa_model.nano.tokenizer import token_bytes, train_tokenizer, write_tokenizer
from msa_model.nano.weights import make_weights

MARKER = "nano_checkpoint.json"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def build_checkpoint(out: Path, *, seed: int = 0, dtype: str = "float32", form: Form = DEFAULT_FORM) -> bool:
    """Make ``out`` a nano checkpoint and return whether it had to be built.

    An intact checkpoint of the same recipe is kept. A stale or damaged one is replaced at once, as a whole; whoever
    reads sees the old or the new one. Several processes may build the same folder at a time: one does, the others
    wait. Raises ValueError for an unknown dtype or a folder that holds something else.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r} can't be built: it must be one of {sorted(DTYPES)}")
    out.parent.mkdir(parents=True, exist_ok=True)
    recipe = recipe_hash(seed, dtype, form)
    with _lock(out):
        if is_current(out, recipe):
            return False
        if out.exists() and not (out / MARKER).exists() and any(out.iterdir()):
            raise ValueError(f"{out} is not empty and not a nano checkpoint; it is left as it is")
        fresh = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        try:
            _write_files(fresh, seed, dtype, form)
            made = {"recipe": recipe, "seed": seed, "dtype": dtype, "form": asdict(form)}
            _write_json(fresh / MARKER, made | {"files": _hashes(fresh)})
            _open_to_readers(fresh)
            _replace(fresh, out)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return True


def recipe_hash(seed: int, dtype: str, form: Form = DEFAULT_FORM) -> str:
    """Hash of everything that the files follow from: arguments, this package's sources, library versions."""
    digest = hashlib.sha256(f"{seed} {dtype} {form} {torch.__version__} {tokenizers.__version__}".encode())
    packing = "msa_model.reference"
    for folder in ("msa_model.nano", packing):
        names = (
            ("mxfp8.py", "nvfp4.py") if folder == packing else sorted(entry.name for entry in files(folder).iterdir())
        )
        for name in names:
            if name.endswith((".py", ".txt", ".jinja")):
                digest.update(name.encode() + b"\0" + files(folder).joinpath(name).read_bytes())
    return digest.hexdigest()


def is_current(out: Path, recipe: str) -> bool:
    """Whether ``out`` was built by this recipe and its files are still what was written."""
    try:
        marker = json.loads((out / MARKER).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return False
    return isinstance(marker, dict) and marker.get("recipe") == recipe and marker.get("files") == _hashes(out)


def _write_files(folder: Path, seed: int, dtype: str, form: Form) -> None:
    tokenizer = train_tokenizer()
    write_tokenizer(folder, tokenizer)
    texts = token_bytes(tokenizer)
    config = model_config(dtype, len(texts), form)
    _write_json(folder / "config.json", config)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    _write_json(folder / "generation_config.json", ids)
    tensors = make_weights(seed, DTYPES[dtype], texts, form)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _open_to_readers(folder: Path) -> None:
    """mkdtemp and safetensors make private ones; a server may run under another user."""
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _hashes(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != MARKER
    }


def _replace(fresh: Path, out: Path) -> None:
    """Put ``fresh`` in the place of ``out``; a folder can't be renamed over another that has files."""
    if not out.exists():
        fresh.rename(out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old.", dir=out.parent))
    out.rename(old / out.name)
    fresh.rename(out)
    shutil.rmtree(old)


@contextmanager
def _lock(out: Path) -> Iterator[None]:
    path = out.parent / f".{out.name}.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
