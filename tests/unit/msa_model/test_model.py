"""The model at its full size, with shapes and no memory: the checkpoint that is expected fills it, and no more."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config

from msa_model.checkpoint_tensors import ExpectedTensor, expected_tensors
from msa_model.hf_config import MiniMaxM31FlashConfig
from msa_model.model import MiniMaxM31FlashForCausalLM
from msa_model.published import published_quantization, published_values
from msa_model.quant import MSAQuantConfig

pytestmark = pytest.mark.usefixtures("one_rank")

TORCH = {"U8": torch.uint8, "F8_E4M3": torch.float8_e4m3fn, "BF16": torch.bfloat16, "F32": torch.float32}


def shapes_of(config: Any) -> MiniMaxM31FlashForCausalLM:
    """The model that vLLM would build, on the device that has no memory."""
    vllm_config = VllmConfig()
    vllm_config.model_config = SimpleNamespace(
        hf_text_config=config, dtype=torch.bfloat16, head_dtype=None, max_model_len=524_288
    )
    vllm_config.quant_config = MSAQuantConfig.from_config(config.quantization_config)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with set_current_vllm_config(vllm_config), torch.device("meta"):
            return MiniMaxM31FlashForCausalLM(vllm_config=vllm_config)
    finally:
        torch.set_default_dtype(default)


def weights_of(expected: dict[str, ExpectedTensor]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in expected.items():
        yield name, torch.empty(tensor.shape, dtype=TORCH[tensor.dtypes[0]], device="meta")


def num_bytes(module: torch.nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


@pytest.mark.parametrize("is_m3_pattern", [False, True], ids=["M3.1", "M3's pattern"])
def test_the_published_model_is_filled_by_the_checkpoint_that_is_expected(is_m3_pattern: bool) -> None:
    """Facts M1 and M6: 60 layers, 250.1 GB within 1%."""
    sparse = published_values()["sparse_attention_config"]
    # Fewer experts where it is not their number that is asked about.
    num_experts = 8 if is_m3_pattern else 128
    if is_m3_pattern:
        sparse |= {"sparse_attention_freq": [0] * 3 + [1] * 57}
    config = MiniMaxM31FlashConfig(
        num_local_experts=num_experts,
        sparse_attention_config=sparse,
        quantization_config=published_quantization(),
    )
    model, expected = shapes_of(config), expected_tensors(config)
    model.load_weights(weights_of(expected))
    expected_bytes = sum(tensor.num_bytes for tensor in expected.values())
    assert num_bytes(model) == expected_bytes
    layers = model.model.layers
    assert len(layers) == 60
    assert [layer.is_sparse_moe for layer in layers] == [False] * 3 + [True] * 57
    assert [layer.self_attn.has_index for layer in layers] == [not is_m3_pattern] * 3 + [True] * 57
    assert model.model.index_pool.num_slots == 60 - 3 * is_m3_pattern
    assert model.model.kv_pool.num_slots == 60 * 2 * 4
    if not is_m3_pattern:
        assert expected_bytes == pytest.approx(250.1e9, rel=0.01)
