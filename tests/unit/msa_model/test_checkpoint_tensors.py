"""What a checkpoint must hold follows from its configuration, and the published one has the published size."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from msa_model.checkpoint_sizes import TOTAL, describe_sizes, sizes_of
from msa_model.checkpoint_tensors import ExpectedTensor, expected_tensors
from msa_model.config import check_model_config
from msa_model.nano.checkpoint import build_checkpoint
from msa_model.nano.config import Form, model_config
from msa_model.published import published_quantization, published_values, with_defaults

DTYPES = {"uint8": "U8", "float8_e4m3fn": "F8_E4M3", "float32": "F32", "bfloat16": "BF16"}
# For what does not depend on their number.
FEW = {"num_local_experts": 4}
FORMS = [Form(), Form(projections="mxfp8"), Form(projections="mxfp8", dense_layers=2)]


@cache
def published() -> dict[str, ExpectedTensor]:
    return tensors_of()


def tensors_of(**changes: Any) -> dict[str, ExpectedTensor]:
    config = with_defaults({"quantization_config": published_quantization()} | changes)
    check_model_config(config)
    return expected_tensors(config)


@pytest.mark.parametrize(("form", "dtype"), [*((form, "float32") for form in FORMS), (Form(), "bfloat16")], ids=str)
def test_the_nano_checkpoint_holds_exactly_what_is_expected(tmp_path: Path, form: Form, dtype: str) -> None:
    build_checkpoint(tmp_path / "nano", dtype=dtype, form=form)
    expected = expected_tensors(with_defaults(model_config(dtype, 512, form)))
    with safe_open(tmp_path / "nano" / "model.safetensors", "pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {
        name: tensor.shape for name, tensor in expected.items()
    }
    for name, tensor in found.items():
        assert DTYPES[str(tensor.dtype).removeprefix("torch.")] == expected[name].dtypes[0], name


def test_the_published_checkpoint_has_its_published_size() -> None:
    """Facts M1 and M6: 250.1 GB."""
    sizes = sizes_of(published())
    assert sizes[TOTAL]["num_bytes"] == pytest.approx(250.1e9, rel=0.01)
    assert sizes[TOTAL]["num_parameters"] == pytest.approx(426e9, rel=0.01)
    assert sizes["routed experts"]["num_tensors"] == 57 * 128 * 3 * 4
    assert sizes["routed experts"]["num_bytes"] > 0.9 * sizes[TOTAL]["num_bytes"]


def test_experts_are_packed_in_two_to_a_byte_and_a_scale_for_sixteen() -> None:
    name = "model.layers.3.block_sparse_moe.experts.127.w2"
    tensors = published()
    shapes = {suffix: tensors[f"{name}.{suffix}"].shape for suffix in ("weight", "weight_scale", "weight_scale_2")}
    assert shapes == {"weight": (6144, 1536), "weight_scale": (6144, 192), "weight_scale_2": ()}
    assert tensors[f"{name}.input_scale"].dtypes == ("F32",)


def test_projections_have_a_power_of_two_for_thirty_two_values() -> None:
    tensors = published()
    scale = tensors["model.layers.59.self_attn.index_q_proj.weight_scale"]
    assert (scale.shape, scale.dtypes) == ((512, 192), ("U8", "F8_E8M0"))
    assert tensors["model.layers.0.mlp.down_proj.weight"].shape == (6144, 12_288)


def test_a_dense_layer_has_no_index_branch() -> None:
    sparse = published_values()["sparse_attention_config"] | {"sparse_attention_freq": [0] * 3 + [1] * 57}
    index = [name for name in tensors_of(sparse_attention_config=sparse, **FEW) if ".index_" in name]
    assert not any(name.startswith(f"model.layers.{layer}.") for name in index for layer in range(3))
    assert len(index) == 57 * (2 * 2 + 2)


def test_a_model_without_shared_experts_expects_none() -> None:
    assert not any("shared_experts" in name for name in tensors_of(n_shared_experts=0, **FEW))


def test_sizes_are_told_by_kind_of_module() -> None:
    text = describe_sizes(sizes_of(published()))
    assert [line.split("  ")[0] for line in text.splitlines()[1:]] == [
        *("embedding", "head", "norms", "routers", "attention", "dense MLP", "shared experts", "routed experts"),
        TOTAL,
    ]
