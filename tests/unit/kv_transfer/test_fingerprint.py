"""A fingerprint follows the checkpoint, not its place; each change shows under exactly one name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kv_transfer.fingerprint import (
    MAX_PLAIN_CHARS,
    NUM_WINDOWS,
    WINDOW_BYTES,
    differences,
    fingerprint,
    render,
    sample_offsets,
    weights_digest,
)

ENGINE = {"max_model_len": 8192, "block_size": 128, "kv_cache_dtype": "nvfp4", "kv_scales": [1.0, 0.5], "lora": None}
SHARD_BYTES = 100_000  # more than is read of a shard
SHARDS = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
CONFIG = {
    "_name_or_path": "somewhere/else",
    "architectures": ["SomeForCausalLM"],
    "transformers_version": "5.1",
    "rope_theta": 5000000,
    "text_config": {"hidden_size": 64, "_name_or_path": "a"},
}
TOKENIZER_CONFIG = {"tokenizer_class": "Some", "chat_template": "{{ old }}", "tokenizer_file": "somewhere"}


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def edit_json(path: Path, **changes: Any) -> None:
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | changes)


def shard(name: str, data: bytes) -> bytes:
    """A safetensors file with one tensor."""
    header = json.dumps({name: {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()
    return len(header).to_bytes(8, "little") + header + data


def flip(path: Path, offset: int) -> None:
    """Change one byte, counted from the start of the weights."""
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little") if path.suffix == ".safetensors" else 0
    content[start + offset] ^= 1
    path.write_bytes(content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "checkpoint"
    made.mkdir()
    write_json(made / "config.json", CONFIG)
    for number, name in enumerate(SHARDS):
        (made / name).write_bytes(shard(f"layer.{number}", bytes([number]) * SHARD_BYTES))
    (made / "tokenizer.json").write_text('{"model": {}}', encoding="utf-8")
    write_json(made / "tokenizer_config.json", TOKENIZER_CONFIG)
    (made / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    write_json(made / "hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}})
    return made


def test_a_checkpoint_copied_elsewhere_has_the_same_fingerprint(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "another name")
    assert fingerprint(copy, ENGINE) == fingerprint(folder, ENGINE)


def test_a_checkpoint_of_symbolic_links_is_that_of_their_files(folder: Path, tmp_path: Path) -> None:
    linked = tmp_path / "snapshot"
    linked.mkdir()
    for path in folder.iterdir():
        (linked / path.name).symlink_to(path)
    assert fingerprint(linked, ENGINE) == fingerprint(folder, ENGINE)


def test_values_come_in_one_order_whatever_the_order_they_are_given_in(folder: Path) -> None:
    names = list(fingerprint(folder, ENGINE))
    assert names == list(fingerprint(folder, dict(reversed(ENGINE.items()))))
    assert names == [
        *("block_size", "kv_cache_dtype", "kv_scales", "lora", "max_model_len"),
        *("architectures", "config", "quantization", "weights", "tokenizer", "chat_template"),
    ]


CHANGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a config value": ("config", lambda f: edit_json(f / "config.json", rope_theta=10000)),
    "a nested config value": ("config", lambda f: edit_json(f / "config.json", text_config={"hidden_size": 65})),
    "a new config value": ("config", lambda f: edit_json(f / "config.json", sliding_window=None)),
    "another architecture": ("architectures", lambda f: edit_json(f / "config.json", architectures=["Other"])),
    "another quantization": ("quantization", lambda f: edit_json(f / "hf_quant_config.json", quantization={})),
    "a byte in the first window": ("weights", lambda f: flip(f / SHARDS[0], sample_offsets(0, SHARD_BYTES)[0])),
    "a byte in a middle window": ("weights", lambda f: flip(f / SHARDS[1], sample_offsets(1, SHARD_BYTES)[7] + 9)),
    "a byte in the last window": ("weights", lambda f: flip(f / SHARDS[2], sample_offsets(2, SHARD_BYTES)[-1])),
    "a renamed tensor": ("weights", lambda f: (f / SHARDS[0]).write_bytes(shard("layer.9", bytes(SHARD_BYTES)))),
    "a longer shard": ("weights", lambda f: (f / SHARDS[0]).write_bytes(shard("layer.0", bytes(SHARD_BYTES + 1)))),
    "a renamed shard": ("weights", lambda f: (f / SHARDS[2]).rename(f / "other.safetensors")),
    "a missing shard": ("weights", lambda f: (f / SHARDS[2]).unlink()),
    "another vocabulary": ("tokenizer", lambda f: (f / "tokenizer.json").write_text("{}", encoding="utf-8")),
    "another tokenizer setting": ("tokenizer", lambda f: edit_json(f / "tokenizer_config.json", add_bos_token=True)),
    "another template": ("chat_template", lambda f: (f / "chat_template.jinja").write_text("x", encoding="utf-8")),
    "no template file": ("chat_template", lambda f: (f / "chat_template.jinja").unlink()),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_shows_under_exactly_one_name(case: str, folder: Path) -> None:
    before = fingerprint(folder, ENGINE)
    name, change = CHANGES[case]
    change(folder)
    after = fingerprint(folder, ENGINE)
    assert [each for each in before if before[each] != after[each]] == [name]


def test_another_engine_value_shows_under_its_own_name(folder: Path) -> None:
    before, after = fingerprint(folder, ENGINE), fingerprint(folder, ENGINE | {"block_size": 64})
    assert [each for each in before if before[each] != after[each]] == ["block_size"]


def test_what_does_not_change_the_computation_changes_nothing(folder: Path) -> None:
    before = fingerprint(folder, ENGINE)
    config = CONFIG | {"_name_or_path": "b", "transformers_version": "6", "use_cache": False}
    config["text_config"] = {"_name_or_path": "c", "hidden_size": 64}
    write_json(folder / "config.json", dict(reversed(config.items())))
    edit_json(folder / "tokenizer_config.json", tokenizer_file="elsewhere", chat_template="{{ hidden by the file }}")
    write_json(folder / "generation_config.json", {"temperature": 0.5})
    (folder / "README.md").write_text("hello", encoding="utf-8")
    assert fingerprint(folder, ENGINE) == before


def test_a_template_counts_the_same_from_either_file(folder: Path) -> None:
    before = fingerprint(folder, ENGINE)
    text = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").unlink()
    edit_json(folder / "tokenizer_config.json", chat_template=text)
    assert fingerprint(folder, ENGINE) == before
    edit_json(folder / "tokenizer_config.json", chat_template=[{"name": "default", "template": text}])
    assert fingerprint(folder, ENGINE) == before


def test_missing_files_are_none(tmp_path: Path) -> None:
    assert set(fingerprint(tmp_path, {}).values()) == {"none"}


def test_only_shards_of_the_index_count_where_there_is_one(folder: Path) -> None:
    before = weights_digest(folder)
    write_json(folder / "model.safetensors.index.json", {"weight_map": dict(zip("abc", SHARDS, strict=True))})
    (folder / "consolidated.safetensors").write_bytes(shard("all", b"same weights again"))
    assert weights_digest(folder) == before
    (folder / SHARDS[1]).unlink()
    with pytest.raises(FileNotFoundError):
        weights_digest(folder)


def test_bin_files_are_sampled_where_there_are_no_safetensors(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(SHARD_BYTES))
    before = weights_digest(tmp_path)
    (tmp_path / "training_args.bin").write_bytes(b"anything")
    assert weights_digest(tmp_path) == before != "none"
    flip(tmp_path / "pytorch_model.bin", sample_offsets(0, SHARD_BYTES)[3])
    assert weights_digest(tmp_path) != before


@pytest.mark.parametrize("offset", [0, 1, 40_000, NUM_WINDOWS * WINDOW_BYTES - 1])
def test_a_small_shard_is_read_whole(offset: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(shard("w", bytes(NUM_WINDOWS * WINDOW_BYTES)))
    before = weights_digest(tmp_path)
    flip(path, offset)
    assert weights_digest(tmp_path) != before


@pytest.mark.parametrize("num_bytes", [0, 1, NUM_WINDOWS * WINDOW_BYTES + 1, 2_500_000_000])
def test_windows_lie_inside_the_weights_in_order(num_bytes: int) -> None:
    for number in range(100):
        offsets = sample_offsets(number, num_bytes)
        assert len(offsets) <= NUM_WINDOWS
        assert offsets == sorted(set(offsets))
        assert all(0 <= offset < num_bytes for offset in offsets)
        assert len(offsets) < NUM_WINDOWS or offsets[-1] + WINDOW_BYTES <= num_bytes


def test_shards_of_equal_layout_are_sampled_everywhere_between_them() -> None:
    size = 2_500_000_000
    places = sorted(offset for number in range(100) for offset in sample_offsets(number, size))
    widest = max(b - a for a, b in zip([0, *places], [*places, size], strict=True))
    assert widest < 0.002 * size, "a tensor of 0.2 % of each layer would be missed in all layers"


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, (10**6).to_bytes(8, "little") + b"{}"])
def test_a_file_that_is_no_safetensors_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors is no safetensors file"):
        weights_digest(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_config_that_is_no_object_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json"):
        fingerprint(tmp_path, {})


def test_a_checkpoint_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fingerprint(tmp_path / "nowhere", {})


def test_an_engine_value_can_not_hide_one_of_the_checkpoint(folder: Path) -> None:
    with pytest.raises(ValueError, match="weights"):
        fingerprint(folder, {"weights": "trust me"})


def test_values_read_as_people_write_them_and_long_ones_are_digests() -> None:
    assert [render(value) for value in (8192, "fp8", True, None, 0.5)] == ["8192", "fp8", "true", "none", "0.5"]
    assert render({"b": 1, "a": [2]}) == '{"a":[2],"b":1}'
    scales = [0.125] * 60
    assert len(render(scales)) <= MAX_PLAIN_CHARS
    assert render(scales) == render(list(scales)) != render([*scales[:-1], 0.25])
    with pytest.raises(TypeError):
        render(object())


def test_differences_name_both_sides_and_what_only_one_has() -> None:
    mine = {"block_size": "128", "max_model_len": "4096", "drafter": "eagle"}
    theirs = {"max_model_len": "8192", "block_size": "128", "geometry": "abc"}
    assert differences(mine, theirs) == [
        "max_model_len differs: 4096 on decode, 8192 on prefill",
        "drafter differs: eagle on decode, missing on prefill",
        "geometry differs: missing on decode, abc on prefill",
    ]
    assert differences(mine, dict(reversed(mine.items()))) == []
    assert differences({"a": "1"}, {}, my_role="standby", their_role="leader") == [
        "a differs: 1 on standby, missing on leader"
    ]


def test_the_word_missing_as_a_value_differs_from_no_value() -> None:
    assert differences({"a": "missing"}, {}) != []
