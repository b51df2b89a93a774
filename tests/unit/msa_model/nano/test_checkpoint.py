"""The nano checkpoint: the same seed gives the same bytes, and a folder is replaced only when it is stale."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from msa_model.nano.__main__ import main
from msa_model.nano.checkpoint import MARKER, build_checkpoint, recipe_hash
from msa_model.nano.tokenizer import token_bytes, train_tokenizer
from msa_model.nano.weights import BIAS_CHANNEL, UNPRINTABLE_BIAS


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("checkpoint") / "nano"
    assert build_checkpoint(out)
    return out


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_seed_gives_the_same_bytes(nano: Path, tmp_path: Path) -> None:
    build_checkpoint(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(nano)


def test_another_seed_gives_other_weights(nano: Path, tmp_path: Path) -> None:
    build_checkpoint(tmp_path / "other", seed=1)
    ours, theirs = contents(nano), contents(tmp_path / "other")
    assert ours["model.safetensors"] != theirs["model.safetensors"]
    assert ours["tokenizer.json"] == theirs["tokenizer.json"]


def test_an_intact_checkpoint_is_kept(nano: Path) -> None:
    before = nano.stat().st_ino
    assert not build_checkpoint(nano)
    assert nano.stat().st_ino == before


@pytest.mark.parametrize("damage", ["truncated", "missing", "other seed", "broken marker", "no marker file list"])
def test_a_stale_or_damaged_checkpoint_is_built_anew(nano: Path, tmp_path: Path, damage: str) -> None:
    out = tmp_path / "nano"
    shutil.copytree(nano, out)
    if damage == "other seed":
        marker = json.loads((out / MARKER).read_text())
        (out / MARKER).write_text(json.dumps(marker | {"recipe": recipe_hash(2, "float32")}))
    elif damage == "truncated":
        (out / "model.safetensors").write_bytes(b"half")
    elif damage == "missing":
        (out / "tokenizer.json").unlink()
    elif damage == "broken marker":
        (out / MARKER).write_text("{")
    elif damage == "no marker file list":
        (out / MARKER).write_text("[]")
    assert build_checkpoint(out)
    assert contents(out) == contents(nano)
    assert {path.name for path in tmp_path.iterdir()} == {"nano", ".nano.lock"}, "nothing is left behind"


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert main([str(tmp_path)]) == 2
    assert "not a nano checkpoint" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_an_unknown_dtype_is_refused_by_key(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dtype='int3'"):
        build_checkpoint(tmp_path / "nano", dtype="int3")


def test_the_command_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(tmp_path / "nano"), "--seed", "3", "--dtype", "bfloat16"]
    assert main(arguments) == 0
    assert main(arguments) == 0
    assert [line.rsplit(": ")[-1] for line in capsys.readouterr().out.splitlines()] == ["built", "up to date"]
    assert json.loads((tmp_path / "nano" / "config.json").read_text())["dtype"] == "bfloat16"


def test_routed_experts_are_packed_as_modelopt_packs_them(nano: Path) -> None:
    weights = load_file(nano / "model.safetensors")
    prefix = "model.layers.1.block_sparse_moe.experts.7"
    assert weights[f"{prefix}.w1.weight"].shape == (128, 128)
    assert weights[f"{prefix}.w1.weight"].dtype == torch.uint8
    assert weights[f"{prefix}.w2.weight_scale"].shape == (256, 8)
    assert weights[f"{prefix}.w2.weight_scale"].dtype == torch.float8_e4m3fn
    assert weights[f"{prefix}.w1.weight_scale_2"] == weights[f"{prefix}.w3.weight_scale_2"]
    assert "model.layers.0.mlp.gate_proj.weight" in weights


def test_only_printable_tokens_can_be_answered(nano: Path) -> None:
    head = load_file(nano / "model.safetensors")["lm_head.weight"]
    printable = 0
    for row, text in zip(head, token_bytes(train_tokenizer()), strict=True):
        if text is not None and text.decode("latin-1").isascii() and text.decode().isprintable():
            printable += 1
            assert row.any()
        else:
            assert row[BIAS_CHANNEL] == UNPRINTABLE_BIAS
            assert row.count_nonzero() == 1
    assert printable > 300


def test_no_layer_writes_to_the_channel_that_carries_the_bias(nano: Path) -> None:
    weights = load_file(nano / "model.safetensors")
    writers = [name for name in weights if name.endswith(("o_proj.weight", "down_proj.weight", "w2.weight"))]
    assert len(writers) == 4 + 4 + 3 * 8
    assert not any(weights[name][BIAS_CHANNEL].any() for name in writers)
