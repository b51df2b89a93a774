"""The preflight names what is wrong with a checkpoint, and passes one in which nothing is."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from msa_model.checkpoint_files import INDEX, FoundTensor, Headers
from msa_model.checkpoint_tensors import expected_tensors
from msa_model.nano.config import Form
from msa_model.preflight import check_folder, compare, main
from msa_model.preflight_report import Report
from msa_model.published import published_quantization, with_defaults
from tests.unit.msa_model.checkpoints import Entry, entries_of, write_checkpoint, write_config, write_file

ROOT = Path(__file__).parents[3]
EXPERT = "model.layers.3.block_sparse_moe.experts.7.w2"
Q_PROJ = "model.layers.2.self_attn.q_proj"
Change = Callable[[dict[str, Entry]], None]


@pytest.fixture
def values(tmp_path: Path) -> dict[str, Any]:
    return write_config(tmp_path, Form(projections="mxfp8"))


def findings(folder: Path) -> dict[str, list[tuple[str, str]]]:
    return {kind: sorted(found) for kind, found in check_folder(folder).findings.items() if found}


def changed(folder: Path, values: dict[str, Any], change: Change) -> dict[str, list[tuple[str, str]]]:
    entries = entries_of(values)
    change(entries)
    write_file(folder / "model.safetensors", entries)
    return findings(folder)


@pytest.mark.parametrize("num_files", [1, 3])
@pytest.mark.parametrize("form", [Form(), Form(projections="mxfp8", dense_layers=1)], ids=str)
def test_a_checkpoint_as_it_should_be_passes(tmp_path: Path, form: Form, num_files: int) -> None:
    write_checkpoint(tmp_path, write_config(tmp_path, form), num_files)
    report = check_folder(tmp_path)
    assert report.is_good
    assert findings(tmp_path) == {}
    assert report.num_found == report.num_expected > 300
    assert report.num_files == num_files


def test_a_missing_tensor_is_named_with_what_it_should_be(tmp_path: Path, values: dict[str, Any]) -> None:
    found = changed(tmp_path, values, lambda entries: entries.pop(f"{EXPERT}.weight_scale") and None)
    assert found == {"missing": [(f"{EXPERT}.weight_scale", "F8_E4M3[256, 8]")]}


def test_an_unexpected_tensor_is_named_with_its_file(tmp_path: Path, values: dict[str, Any]) -> None:
    found = changed(tmp_path, values, lambda entries: entries.update({f"{Q_PROJ}.bias": ((4,), "F32", 16)}))
    assert found == {"unexpected": [(f"{Q_PROJ}.bias", "in model.safetensors")]}


def test_a_tensor_of_another_shape_is_named_with_both(tmp_path: Path, values: dict[str, Any]) -> None:
    found = changed(tmp_path, values, lambda e: e.update({f"{Q_PROJ}.weight": ((256, 2048), "F8_E4M3", 1 << 19)}))
    assert found == {"wrong shape": [(f"{Q_PROJ}.weight", "[256, 2048], not [2048, 256]")]}


def test_a_tensor_of_another_format_is_named_with_both(tmp_path: Path, values: dict[str, Any]) -> None:
    found = changed(tmp_path, values, lambda e: e.update({f"{Q_PROJ}.weight": ((2048, 256), "F32", 1 << 21)}))
    assert found == {"wrong dtype": [(f"{Q_PROJ}.weight", "F32, not F8_E4M3")]}


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path, values: dict[str, Any]) -> None:
    def change(entries: dict[str, Entry]) -> None:
        entries["surprise"] = entries.pop(f"{Q_PROJ}.weight")
        entries["lm_head.weight"] = ((1,), "U8", 1)

    kinds = {kind: [name for name, _ in found] for kind, found in changed(tmp_path, values, change).items()}
    assert kinds == {
        "missing": [f"{Q_PROJ}.weight"],
        "unexpected": ["surprise"],
        "wrong shape": ["lm_head.weight"],
        "wrong dtype": ["lm_head.weight"],
    }


def test_spellings_that_mean_the_same_pass(tmp_path: Path, values: dict[str, Any]) -> None:
    def change(entries: dict[str, Entry]) -> None:
        shape, _, num_bytes = entries.pop(f"{Q_PROJ}.weight_scale")
        entries[f"{Q_PROJ}.weight_scale_inv"] = (shape, "F8_E8M0", num_bytes)
        entries[f"{EXPERT}.weight_scale_2"] = ((1,), "F32", 4)
        shape, _, num_bytes = entries["model.norm.weight"]
        entries["model.norm.weight"] = (shape, "BF16", num_bytes // 2)

    assert changed(tmp_path, values, change) == {}


def test_a_drafter_and_calibrated_cache_scales_are_told_but_stop_nobody(tmp_path: Path, values: dict[str, Any]) -> None:
    extra = {"mtp.layers.0.norm.weight": ((4,), "F32", 16), "model.layers.0.self_attn.k_proj.k_scale": ((), "F32", 4)}
    assert set(changed(tmp_path, values, lambda entries: entries.update(extra))) == {"ignored"}
    report = check_folder(tmp_path)
    assert report.is_good
    assert report.as_json()["num_ignored_bytes"] == report.num_ignored_bytes == 20
    assert "ignored: 2 tensors, 20 bytes" in report.as_text(tmp_path)
    assert "mtp.layers.0.norm.weight: 16 bytes in model.safetensors" in report.as_text(tmp_path)


def test_names_that_can_not_be_printed_are_told_all_the_same(
    tmp_path: Path, values: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """Half a character, and what would clear a screen or begin a line of its own."""
    names = ("\ud800.weight", "a" * 10_000, "\x1b[2J.weight", "a\nmissing: none")
    changed(tmp_path, values, lambda entries: entries.update({name: ((4,), "F32", 16) for name in names}))
    assert main([str(tmp_path)]) == 1
    out = capfd.readouterr().out
    assert out.isascii()
    assert len(out) < 2000
    assert all(name in out for name in (r"\ud800.weight", r"\x1b[2J.weight", r"a\nmissing: none"))


def test_sizes_of_a_checkpoint_that_can_not_be_loaded_come_with_the_reason(
    tmp_path: Path, values: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "--sizes", "--json"]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["total"]["num_bytes"] > 0
    assert "the folder has no .safetensors file" in told.err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"head_dim": 64}, "head_dim=64"),
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"model_type": ["llama"] * 1000}, "...,"),
        ({"architectures": None}, "architectures=None"),
        ({"architectures": ["LlamaForCausalLM", "MiniMaxM31FlashForCausalLM"]}, "architectures=['LlamaForCausalLM'"),
        ({"moe_layer_freq": 3}, "moe_layer_freq=3"),
        ({"sparse_attention_config": {}}, "sparse_attention_config.sparse_block_size=None"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "self_attn"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}, "quant_algo='FP8'"),
        ({"quantization_config": None}, "quantization_config=None"),
    ],
)
def test_a_configuration_that_can_not_be_served_is_named_by_key(tmp_path: Path, changes: Any, words: str) -> None:
    write_config(tmp_path, **changes)
    [(name, detail)] = findings(tmp_path)["config"]
    assert name == "config.json"
    assert words in detail


@pytest.mark.parametrize("text", [None, "{", "[]", '"x"'])
def test_a_configuration_that_can_not_be_read_is_named(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert set(findings(tmp_path)) == {"config"}


def test_projections_that_are_fused_must_be_stored_alike(tmp_path: Path, values: dict[str, Any]) -> None:
    del values["quantization_config"]["quantized_layers"][f"{Q_PROJ[:-6]}k_proj"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    [(_, detail)] = findings(tmp_path)["config"]
    assert f"{Q_PROJ[:-6]}k_proj" in detail


def test_the_full_size_is_compared_from_what_headers_say() -> None:
    """As many tensors as the published checkpoint has."""
    expected = expected_tensors(with_defaults({"quantization_config": published_quantization()}))
    headers = Headers({t.name: FoundTensor("f", t.shape, t.dtypes[0], t.num_bytes) for t in expected.values()})
    gone, odd = "model.layers.59.block_sparse_moe.experts.127.w3.input_scale", "model.layers.30.self_attn.o_proj.weight"
    del headers.tensors[gone]
    headers.tensors[odd] = FoundTensor("f", (6144, 8191), "F8_E4M3", 6144 * 8191)
    report = Report()
    compare(expected, headers, report)
    assert (report.num_expected, report.num_found) == (89_109, 89_108)
    assert {kind: [name for name, _ in found] for kind, found in report.findings.items() if found} == {
        "missing": [gone],
        "wrong shape": [odd],
    }


def test_the_command_passes_and_fails_with_its_exit_code(
    tmp_path: Path, values: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path, values)
    assert main([str(tmp_path)]) == 0
    assert "can be loaded; 393 of 393 tensors" in capsys.readouterr().out
    entries = {name: entry for name, entry in entries_of(values).items() if ".layers.1." not in name}
    write_file(tmp_path / "model.safetensors", entries)
    assert main([str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "can NOT be loaded" in lines[0]
    assert lines[1].startswith("missing: 1")
    assert len(lines) == 2 + 5 + 1, "a count, the first five names, and how many more"


def test_the_command_answers_in_json(tmp_path: Path, values: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint(tmp_path, values)
    (tmp_path / "extra.safetensors").write_bytes(b"")
    assert main([str(tmp_path), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["is_good"]
    assert told["findings"]["damaged"]["count"] == 1
    assert told["findings"]["damaged"]["first"][0][0] == "extra.safetensors"


def test_the_configuration_alone_can_be_checked(tmp_path: Path, values: Any) -> None:
    assert main([str(tmp_path)]) == 1
    assert main([str(tmp_path), "--config-only"]) == 0


def test_sizes_are_printed_of_a_checkpoint_or_of_the_published_model(
    tmp_path: Path, values: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path, values)
    assert main([str(tmp_path), "--sizes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attention"]["num_parameters"] == 5_898_240
    assert main(["--sizes"]) == 0
    assert "248.369" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2


def test_neither_torch_nor_an_engine_is_imported() -> None:
    code = "import sys, msa_model.preflight; sys.exit(bool({'torch', 'vllm', 'transformers'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0


@pytest.mark.parametrize("text", ["[" * 100_000, "\udcff", '{"model_type": "minimax_m31_flash", "vocab_size": null}'])
def test_a_config_of_another_kind_is_a_finding_and_no_crash(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert check_folder(tmp_path).has("config")


def test_what_would_wait_for_ever_is_not_opened(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, write_config(tmp_path))
    os.mkfifo(tmp_path / "more.safetensors")
    assert "regular file" in check_folder(tmp_path).reason()


@pytest.mark.parametrize("text", ['{"weight_map": {}}', "[" * 100_000])
def test_an_index_that_names_nothing_is_a_finding(tmp_path: Path, text: str) -> None:
    write_checkpoint(tmp_path, write_config(tmp_path))
    (tmp_path / INDEX).write_text(text)
    assert INDEX in check_folder(tmp_path).reason()
