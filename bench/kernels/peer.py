"""Upstream's Triton ops for MiniMax-M3, which ours are held against: from an installed vLLM, or from its two files.

The files run alone beside four stubbed vllm modules, so a peer run needs no vLLM on the machine (findings of this
project, section 7). Nothing of upstream is kept in this repository.
"""

import functools
import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

UPSTREAM_PACKAGE = "vllm.models.minimax_m3.common.ops"


@functools.lru_cache
def upstream(name: str, folder: str) -> Any | None:
    """Upstream's module ``index_topk`` or ``sparse_attn``: from ``folder`` if one is named, else from vLLM, else None.

    Raises FileNotFoundError if the folder lacks it.
    """
    if not folder:
        try:
            return importlib.import_module(f"{UPSTREAM_PACKAGE}.{name}")
        except ModuleNotFoundError:
            return None
    path = Path(folder) / f"{name}.py"
    if not path.is_file():
        raise FileNotFoundError(path)
    _stub_vllm()
    spec = importlib.util.spec_from_file_location(f"upstream_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Platform:
    """What the two files ask of vLLM's platform, for an NVIDIA GPU."""

    def is_cuda(self) -> bool:
        return True

    def is_rocm(self) -> bool:
        return False

    def is_arch_support_pdl(self) -> bool:
        return torch.cuda.get_device_capability()[0] >= 9

    def is_device_capability(self, capability: tuple[int, int] | int) -> bool:
        major, minor = torch.cuda.get_device_capability()
        return capability in ((major, minor), 10 * major + minor)

    def is_device_capability_family(self, capability: int) -> bool:
        return torch.cuda.get_device_capability()[0] == capability // 10


def _stub_vllm() -> None:
    names = ("vllm", "vllm.platforms", "vllm.triton_utils", "vllm.utils", "vllm.utils.math_utils")
    modules = {name: types.ModuleType(name) for name in names}
    contents: dict[str, dict[str, Any]] = {
        "vllm.platforms": {"current_platform": _Platform()},
        "vllm.triton_utils": {"tl": tl, "triton": triton},
        "vllm.utils.math_utils": {
            "round_up": lambda number, step: -(-number // step) * step,
            "cdiv": lambda number, step: -(-number // step),
        },
    }
    for name, content in contents.items():
        vars(modules[name]).update(content)
    for name, module in modules.items():
        sys.modules.setdefault(name, module)
