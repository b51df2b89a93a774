"""What must be equal on a prefill and a decode worker so that KV computed by one is right for the other.

A fingerprint is a short text for each named value, so that a refusal can say what differs. It guards against honest
mistakes (another revision, another fine-tune, another setting), not against somebody who wants two checkpoints to look
alike. Only files are read here; who compares fingerprints and when is for the handshake.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

NONE = "none"  # the file or the value isn't there
DIGEST_CHARS = 16  # 64 bits: enough against chance, short enough for a log line
MAX_PLAIN_CHARS = 64  # longer values, such as KV scales of all layers, are given as digests

# Say where a configuration comes from or how transformers answers in Python; no number of the model depends on them.
IGNORED_CONFIG = {
    "_name_or_path",
    "name_or_path",
    "_commit_hash",
    "transformers_version",
    "use_cache",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "_attn_implementation_autoset",
}
IGNORED_TOKENIZER_CONFIG = {
    "chat_template",
    "_name_or_path",
    "name_or_path",
    "_commit_hash",
    "transformers_version",
    "tokenizer_file",
    "special_tokens_map_file",
}
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "tekken.json",
    "tiktoken.model",
)

# Weights: 250 GB can't be read at each start, so each shard is sampled. All tensors of a usual fine-tune change, but a
# merged adapter may change 2 % of the bytes only (attention, in a model of experts), and 4-bit codes change here and
# there. Hence windows long enough to hold 8,192 codes, and many places: 100 shards give 1,600, of which 2 % is 32.
NUM_WINDOWS = 16
WINDOW_BYTES = 4096
# Shards of one layer each look alike, and the same places in all of them could miss a tensor in every one. So the
# windows of shard k are shifted by the fraction of k times the golden ratio, which spreads evenly for any count.
GOLDEN_RATIO = 0.6180339887498949
NUM_THREADS = 8  # a read on a network file system takes 1 ms whoever waits for it
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format


def fingerprint(checkpoint: Path, engine: Mapping[str, Any]) -> dict[str, str]:
    """Named values of a checkpoint and of the engine that serves it.

    Args:
        checkpoint: the folder with config.json, weights and tokenizer; symbolic links are followed.
        engine: whatever else has to be equal, such as block_size, kv_cache_dtype or a digest of the row's geometry:
            texts, numbers, booleans, None, or lists and mappings of them.

    Returns:
        The engine's values by name, then those of the checkpoint, each at most 64 characters; "none" where there is
        nothing. The folder's name, the order of keys in its files and of ``engine`` don't matter.

    Raises:
        FileNotFoundError: there is no such folder, or it lacks a shard that its index names.
        ValueError: a file isn't what its name says, or ``engine`` uses a name of the checkpoint's.
        TypeError: a value of ``engine`` is of no type named above.
    """
    if not checkpoint.is_dir():
        raise FileNotFoundError(f"{checkpoint} is no folder")
    config = _json(checkpoint / "config.json")
    files = {
        "architectures": render((config or {}).get("architectures")),
        "config": _config_digest(config),
        "quantization": _config_digest(_json(checkpoint / "hf_quant_config.json")),
        "weights": weights_digest(checkpoint),
        "tokenizer": _tokenizer_digest(checkpoint),
        "chat_template": _chat_template_digest(checkpoint),
    }
    if taken := sorted(files.keys() & engine.keys()):
        raise ValueError(f"{', '.join(taken)}: the checkpoint has values of these names")
    return {name: render(engine[name]) for name in sorted(engine)} | files


def differences(
    mine: Mapping[str, str], theirs: Mapping[str, str], *, my_role: str = "decode", their_role: str = "prefill"
) -> list[str]:
    """One sentence for each name whose values differ, or that only one side has; empty when the two fit."""
    sentences = []
    for name in dict.fromkeys([*mine, *theirs]):
        a, b = mine.get(name, "missing"), theirs.get(name, "missing")
        if a != b or (name in mine) != (name in theirs):
            sentences.append(f"{name} differs: {a} on {my_role}, {b} on {their_role}")
    return sentences


def render(value: Any) -> str:
    """A value as text of at most 64 characters: texts as they are, others as JSON with sorted keys, long ones hashed.

    Raises:
        TypeError: the value is no JSON.
    """
    if value is None:
        return NONE
    text = value if isinstance(value, str) else _canonical(value)
    return text if len(text) <= MAX_PLAIN_CHARS else _digest(text.encode())


def weights_digest(checkpoint: Path) -> str:
    """A digest of names, sizes, safetensors headers (names, shapes, types of tensors) and samples of all shards.

    Reads the headers and 64 KiB of each shard; a shard of up to 64 KiB of weights is read whole. A change that stays
    outside the sampled places, such as of a single expert, is not seen. Also for the weights of a drafter or adapter.

    Raises:
        FileNotFoundError: a shard that the index names is missing.
        ValueError: a .safetensors file has no valid header.
    """
    shards = _shards(checkpoint)
    if not shards:
        return NONE
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        parts = list(pool.map(_shard_digest, shards, range(len(shards))))
    return _digest(b"".join(parts))


def sample_offsets(shard: int, num_bytes: int) -> list[int]:
    """Where the windows of the ``shard``-th shard begin, in bytes from the start of its weights.

    One window lies in each sixteenth of the weights, all at the same relative place, which moves from shard to shard.
    """
    if num_bytes <= NUM_WINDOWS * WINDOW_BYTES:
        return list(range(0, num_bytes, WINDOW_BYTES))
    shift = shard * GOLDEN_RATIO % 1
    room = num_bytes - WINDOW_BYTES
    return [int((window + shift) / NUM_WINDOWS * room) for window in range(NUM_WINDOWS)]


def _shards(checkpoint: Path) -> list[Path]:
    """Files with weights, by name: those that an index names, else all of the first kind that is there."""
    for index, pattern in (
        ("model.safetensors.index.json", "*.safetensors"),
        ("pytorch_model.bin.index.json", "*.bin"),
    ):
        if (named := _json(checkpoint / index)) is not None:
            return [checkpoint / name for name in sorted(set(named.get("weight_map", {}).values()))]
        # Trainers leave files beside the weights, which vLLM passes over too.
        ignored = ("training_args.bin", "optimizer.bin", "scheduler.bin")
        if found := sorted(path for path in checkpoint.glob(pattern) if path.name not in ignored):
            return found
    return []


def _shard_digest(path: Path, shard: int) -> bytes:
    with path.open("rb") as file:
        if hasattr(os, "posix_fadvise"):
            # Else each window makes the system read ahead, by up to megabytes on network file systems.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        size = os.fstat(file.fileno()).st_size
        header = _safetensors_header(file, path.name, size) if path.suffix == ".safetensors" else b""
        digest = hashlib.sha256(f"{path.name}\0{size}\0".encode())
        digest.update(header)
        start = file.tell()
        for offset in sample_offsets(shard, size - start):
            file.seek(start + offset)
            digest.update(file.read(WINDOW_BYTES))
    return digest.digest()


def _safetensors_header(file: BinaryIO, name: str, size: int) -> bytes:
    """The JSON after the first eight bytes, which hold its length, little-endian; leaves ``file`` behind it."""
    num_bytes = int.from_bytes(file.read(8), "little")
    if size < 8 or num_bytes > min(size - 8, MAX_HEADER_BYTES):
        raise ValueError(f"{name} is no safetensors file: a header of {num_bytes} bytes in {size}")
    return file.read(num_bytes)


def _config_digest(config: Mapping[str, Any] | None) -> str:
    """Of all that counts but ``architectures``, which has a value of its own."""
    if config is None:
        return NONE
    kept = {key: value for key, value in config.items() if key != "architectures"}
    return _digest(_canonical(_without(kept, IGNORED_CONFIG)).encode())


def _tokenizer_digest(checkpoint: Path) -> str:
    digests: dict[str, str] = {}
    for name in TOKENIZER_FILES:
        if (path := checkpoint / name).is_file():
            digests[name] = _digest(path.read_bytes())
    if (config := _json(checkpoint / "tokenizer_config.json")) is not None:
        digests["config"] = _digest(_canonical(_without(config, IGNORED_TOKENIZER_CONFIG)).encode())
    return _digest(_canonical(digests).encode()) if digests else NONE


def _chat_template_digest(checkpoint: Path) -> str:
    """Of the templates by name, from whichever file has them: a template file wins, as in transformers."""
    templates: dict[str, Any] = {}
    for name in ("tokenizer_config.json", "chat_template.json"):
        template = (_json(checkpoint / name) or {}).get("chat_template")
        if isinstance(template, list):
            templates |= {each["name"]: each["template"] for each in template}
        elif template is not None:
            templates["default"] = template
    for path in [*checkpoint.glob("additional_chat_templates/*.jinja"), checkpoint / "chat_template.jinja"]:
        if path.is_file():
            name = "default" if path.parent == checkpoint else path.stem
            templates[name] = path.read_text(encoding="utf-8")
    return _digest(_canonical(templates).encode()) if templates else NONE


def _json(path: Path) -> dict[str, Any] | None:
    """The object in a file, or None without the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        value = json.loads(text)
    except ValueError as e:
        raise ValueError(f"{path.name} is no JSON: {e}") from e
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds no JSON object")
    return value


def _without(value: Any, ignored: set[str]) -> Any:
    """The value without the ignored keys, at any depth: a model of several parts has a config for each."""
    if isinstance(value, Mapping):
        return {key: _without(each, ignored) for key, each in value.items() if key not in ignored}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_without(each, ignored) for each in value]
    return value


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGEST_CHARS]
