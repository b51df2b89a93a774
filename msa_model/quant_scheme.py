"""Which number format each module of a checkpoint is stored in, from ModelOpt's ``quantization_config``. Pure.

One resolver for vLLM's layers, for the loader and for the preflight, so that they can't disagree.
"""

import re
from collections.abc import Iterable
from fnmatch import translate
from typing import Any, Literal

from msa_model.refusals import refuse

KEY = "quantization_config"
Format = Literal["NVFP4", "MXFP8"]
NVFP4_GROUP, MXFP8_GROUP = 16, 32
GROUP_SIZE: dict[str, int] = {"NVFP4": NVFP4_GROUP, "MXFP8": MXFP8_GROUP}
MIXED = "MIXED_PRECISION"


class QuantScheme:
    """Formats of a checkpoint's modules; ``None`` is a module that is stored as plain numbers.

    Two kinds are understood: ``NVFP4``, where all that ``ignore`` does not name is NVFP4, and ``MIXED_PRECISION``,
    where ``quantized_layers`` names modules, parents of modules, or patterns with ``*``. Raises ValueError, naming the
    key, for another method, algorithm or group size, and for a member of another kind than it should be.
    """

    def __init__(self, quantization: dict[str, Any]) -> None:
        where, settings = _settings_of(quantization)
        ignore = "ignore" if "ignore" in settings else "exclude_modules"
        self._ignored = _Names(dict.fromkeys(_names_in(f"{where}.{ignore}", settings.get(ignore))))
        self.algo = _algo_in(where, settings)
        self.cache = _cache_of(where, settings, quantization)
        """The key that gives a format for the cache, which vLLM goes by where it is told none, and the format."""
        if self.algo == MIXED:
            key, layers = f"{where}.quantized_layers", settings.get("quantized_layers")
            if not isinstance(layers, dict):
                refuse(key, layers, "an object of modules")
            self._layers = _Names({name: _format_of(f"{key}[{name!r}]", layer) for name, layer in layers.items()})
        else:
            if self.algo != "NVFP4":
                refuse(f"{where}.quant_algo", settings.get("quant_algo"), f"NVFP4 or {MIXED}")
            self._layers = _Names({"*": _format_of(where, settings)})

    @classmethod
    def of(cls, config: Any) -> "QuantScheme | None":
        """Of a model configuration; None if it has no ``quantization_config``."""
        quantization = getattr(config, "quantization_config", None)
        return None if quantization is None else cls(quantization)

    def format_of(self, module: str) -> Format | None:
        """Of a module's checkpoint name, such as ``model.layers.3.self_attn.q_proj``."""
        return None if self._ignored.find(module)[0] else self._layers.find(module)[1]


def _settings_of(quantization: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The key under which the settings lie, and the settings: ModelOpt's own files have them one level deeper."""
    if not isinstance(quantization, dict):
        refuse(KEY, quantization, "an object")
    producer = quantization.get("producer") or {}
    if not isinstance(producer, dict):
        refuse(f"{KEY}.producer", producer, "an object")
    is_nested = "quantization" in quantization
    # vLLM goes by the method's name, and gives it one where ModelOpt's own files have none.
    method = quantization.get("quant_method", "modelopt" if is_nested and producer.get("name") == "modelopt" else None)
    if not isinstance(method, str) or not method.lower().startswith("modelopt"):
        refuse(f"{KEY}.quant_method", method, "'modelopt'")
    if not is_nested:
        return KEY, quantization
    settings = quantization["quantization"]
    if not isinstance(settings, dict):
        refuse(f"{KEY}.quantization", settings, "an object")
    return f"{KEY}.quantization", settings


def _cache_of(where: str, settings: dict[str, Any], quantization: dict[str, Any]) -> tuple[str, str]:
    """In the order in which vLLM looks; a format that it doesn't know is none."""
    for name in ("kv_cache_scheme", "kv_cache_quant_algo"):
        for place, section in ((where, settings), (KEY, quantization)):
            given = section.get(name)
            if isinstance(given, dict):
                is_fp8 = (given.get("type"), given.get("num_bits"), given.get("dynamic")) == ("float", 8, False)
                given = "FP8" if is_fp8 else None
            if given:
                return f"{place}.{name}", str(given).upper()
    return "", ""


def _names_in(key: str, names: object) -> list[str]:
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        refuse(key, names, "a list of names of modules")
    return names


def _algo_in(where: str, settings: dict[str, Any]) -> str:
    algo = settings.get("quant_algo")
    if not isinstance(algo, str):
        refuse(f"{where}.quant_algo", algo, "the name of an algorithm")
    return algo.upper()


def _format_of(where: str, settings: dict[str, Any]) -> Format:
    if not isinstance(settings, dict):
        refuse(where, settings, "an object")
    algo, group = _algo_in(where, settings), settings.get("group_size")
    wanted = GROUP_SIZE.get(algo)
    if wanted is None:
        refuse(f"{where}.quant_algo", algo, f"one of {sorted(GROUP_SIZE)}")
    if group is not None and group != wanted:
        refuse(f"{where}.group_size", group, str(wanted))
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
