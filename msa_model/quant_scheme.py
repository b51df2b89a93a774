"""Which number format each module of a checkpoint is stored in, from ModelOpt's ``quantization_config``. Pure.

One resolver for vLLM's layers, for the loader and for the preflight, so that they can't disagree.
"""

import re
from collections.abc import Iterable
from fnmatch import translate
from typing import Any, Literal

Format = Literal["NVFP4", "MXFP8"]
NVFP4_GROUP, MXFP8_GROUP = 16, 32
GROUP_SIZE: dict[str, int] = {"NVFP4": NVFP4_GROUP, "MXFP8": MXFP8_GROUP}
MIXED = "MIXED_PRECISION"


class QuantScheme:
    """Formats of a checkpoint's modules; ``None`` is a module that is stored as plain numbers.

    Two kinds are understood: ``NVFP4``, where all that ``ignore`` does not name is NVFP4, and ``MIXED_PRECISION``,
    where ``quantized_layers`` names modules, parents of modules, or patterns with ``*``. Raises ValueError, naming the
    key, for another algorithm or group size.
    """

    def __init__(self, quantization: dict[str, Any]) -> None:
        settings = quantization.get("quantization", quantization)
        self.algo = str(settings.get("quant_algo") or "").upper()
        self._ignored = _Names({name: None for name in settings.get("ignore", settings.get("exclude_modules", []))})
        if self.algo == MIXED:
            layers = settings.get("quantized_layers") or {}
            self._layers = _Names({name: _format_of(name, layer) for name, layer in layers.items()})
        else:
            if self.algo != "NVFP4":
                raise ValueError(f"quantization_config.quant_algo={self.algo!r} can't be served: NVFP4 or {MIXED} can")
            _format_of("", settings)
            self._layers = _Names({"*": "NVFP4"})

    @classmethod
    def of(cls, config: Any) -> "QuantScheme | None":
        """Of a model configuration; None if it has no ``quantization_config``."""
        quantization = getattr(config, "quantization_config", None)
        return None if quantization is None else cls(quantization)

    def format_of(self, module: str) -> Format | None:
        """Of a module's checkpoint name, such as ``model.layers.3.self_attn.q_proj``."""
        return None if self._ignored.find(module)[0] else self._layers.find(module)[1]


def _format_of(name: str, settings: dict[str, Any]) -> Format:
    algo = str(settings.get("quant_algo") or "").upper()
    where = f"quantization_config{f'.quantized_layers[{name!r}]' if name else ''}"
    group = settings.get("group_size")
    wanted = GROUP_SIZE.get(algo)
    if wanted is None:
        raise ValueError(f"{where}.quant_algo={algo!r} can't be served: it must be one of {sorted(GROUP_SIZE)}")
    if group is not None and int(group) != wanted:
        raise ValueError(f"{where}.group_size={group} can't be served: it must be {wanted}")
    return "NVFP4" if algo == "NVFP4" else "MXFP8"


class _Names:
    """Module names, parents of modules, and patterns; the most exact of them counts, patterns in their order."""

    def __init__(self, entries: "dict[str, Format | None]") -> None:
        self._exact = {name: value for name, value in entries.items() if "*" not in name}
        self._patterns = [(re.compile(translate(name)), value) for name, value in entries.items() if "*" in name]

    def find(self, module: str) -> "tuple[bool, Format | None]":
        """Whether an entry fits, and its value."""
        for name in _module_and_parents(module):
            if name in self._exact:
                return True, self._exact[name]
        for pattern, value in self._patterns:
            if pattern.match(module):
                return True, value
        return False, None


def _module_and_parents(module: str) -> Iterable[str]:
    while module:
        yield module
        module = module.rpartition(".")[0]
