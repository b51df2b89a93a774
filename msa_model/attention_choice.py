"""Which attention an engine runs, kernels or plain torch, and why; said once when it starts."""

import logging
import os
from dataclasses import dataclass

import torch

from msa_model.config import MSAShape
from msa_model.ops.target import OTHER_TARGET, target_of

ATTENTION_ENV = "TANDEM_ATTENTION"
"""Environment variable: ``torch`` runs the twins on a GPU, to compare with."""
# FP8 matrix products, which the index kernels are made of, begin with Ada.
MIN_CAPABILITY = (8, 9)
# Query heads per KV head, and chosen blocks, that kernels have rows for.
MAX_GROUP_SIZE = 16
TOPK_BLOCKS = (1, 2, 4, 8, 16)

# Below vLLM's own, whose handler an engine process has.
logger = logging.getLogger(f"vllm.{__name__}")


@dataclass(frozen=True)
class AttentionChoice:
    """The choice, and its reason for the log."""

    uses_kernels: bool
    reason: str


def choose_attention(shape: MSAShape, device: torch.device) -> AttentionChoice:
    """For the attention of one rank on ``device``.

    Raises:
        ValueError: ``TANDEM_ATTENTION`` is something else than ``kernels`` or ``torch``, or asks for kernels that the
            device or the model has not.
    """
    wanted = os.environ.get(ATTENTION_ENV, "")
    if wanted not in ("", "kernels", "torch"):
        raise ValueError(f"{ATTENTION_ENV}={wanted!r} must be 'kernels' or 'torch'")
    if wanted == "torch":
        return AttentionChoice(False, f"{ATTENTION_ENV}=torch")
    lack = _lack(shape, device)
    if lack and wanted == "kernels":
        raise ValueError(f"{ATTENTION_ENV}=kernels can't be served: {lack}")
    if lack:
        return AttentionChoice(False, lack)
    target = target_of(device)
    kind = "plain Triton" if target.name == OTHER_TARGET else target.name
    stock = "vLLM's own M3 kernels read no NVFP4 index keys, and NVFP4 K and V only in layer-outermost pages"
    return AttentionChoice(True, f"{kind}, {target.num_sms} multiprocessors; {stock}")


def _lack(shape: MSAShape, device: torch.device) -> str:
    """What keeps kernels from running; empty: nothing."""
    if device.type != "cuda":  # which AMD's GPUs are called too
        return f"kernels need an NVIDIA or AMD GPU, not a device of type {device.type}"
    has_fp8 = (
        target_of(device).name == "gfx950"  # older AMD GPUs have FP8 numbers of another kind
        if torch.version.hip
        else torch.cuda.get_device_capability(device) >= MIN_CAPABILITY
    )
    if not has_fp8:
        return "the GPU has no FP8 matrix products"
    group_size, topk = shape.num_heads // shape.num_kv_heads, shape.topk_blocks
    if group_size > MAX_GROUP_SIZE:
        return f"{group_size} query heads share a KV head, and kernels have rows for {MAX_GROUP_SIZE}"
    if topk not in TOPK_BLOCKS:
        return f"{topk} blocks are chosen, and kernels are checked for a power of two up to 16"
    return ""


def log_choice(choice: AttentionChoice) -> None:
    """One line for each engine process."""
    logger.info("MSA attention: %s (%s)", "kernels" if choice.uses_kernels else "torch", choice.reason)
