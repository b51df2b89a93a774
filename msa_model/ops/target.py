"""What a kernel is compiled and launched for: the target's name and its measures, read from the device.

Owns the names that kernels branch on at compile time (``TARGET``) and what follows from one for the host side. How
each target decodes NVFP4 is in ``kernels/nvfp4_decode.py``.
"""

import functools
from dataclasses import dataclass

import torch

ROUNDING_TARGETS = frozenset({"sm_100", "sm_103", "gfx950"})
NAMED_TARGETS = ("sm_90", "sm_100", "sm_103", "sm_107", "gfx950")
# Runs plain Triton operations alone: other GPUs, and CPU under TRITON_INTERPRET=1.
OTHER_TARGET = "other"
# Of the interpreter, so that tile sizes chosen from them are small.
INTERPRETER_SMS, INTERPRETER_SHARED_BYTES = 4, 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Target:
    """One kind of device; hashable, so that tile choices can be cached by it."""

    name: str
    """One of NAMED_TARGETS or OTHER_TARGET; kernels get it as the constexpr ``TARGET``."""
    num_sms: int
    """Streaming multiprocessors or compute units; work tiles are sized by it (fact D7)."""
    shared_memory_bytes: int
    """Most shared memory that one program may have."""

    @property
    def rounds_products(self) -> bool:
        """Whether decoding rounds value x scale to E4M3, saturating (fact D2); elsewhere products are exact."""
        return self.name in ROUNDING_TARGETS

    @property
    def is_hip(self) -> bool:
        """Whether it is an AMD GPU: wavefronts of 64, other launch options."""
        return self.name.startswith("gfx")

    @property
    def has_early_start(self) -> bool:
        """Whether a kernel may be launched while the one before it still runs (programmatic dependent launch)."""
        return self.name.startswith("sm_")

    @property
    def has_wgmma(self) -> bool:
        """Whether FP8 matrix products run natively with one operand in registers (Hopper)."""
        return self.name == "sm_90"


@functools.lru_cache
def target_of(device: torch.device) -> Target:
    """The target of ``device``; CPU means Triton's interpreter.

    Waits for nothing, so it may be called while a CUDA graph is captured.
    """
    if device.type == "cpu":
        return Target(name=OTHER_TARGET, num_sms=INTERPRETER_SMS, shared_memory_bytes=INTERPRETER_SHARED_BYTES)
    properties = torch.cuda.get_device_properties(device)
    capability = f"sm_{properties.major}{properties.minor}"
    name = properties.gcnArchName.split(":")[0] if torch.version.hip else capability
    return Target(
        name=name if name in NAMED_TARGETS else OTHER_TARGET,
        num_sms=properties.multi_processor_count,
        shared_memory_bytes=getattr(properties, "shared_memory_per_block_optin", 0)
        or getattr(properties, "shared_memory_per_block", INTERPRETER_SHARED_BYTES),
    )
