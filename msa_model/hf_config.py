"""The configuration class that transformers and vLLM make of a config.json."""

from typing import Any

from vllm.transformers_utils.configs.minimax_m3 import MiniMaxM3TextConfig

from msa_model.published import ARCHITECTURE, MODEL_TYPE, published_values


class MiniMaxM31FlashConfig(MiniMaxM3TextConfig):
    """Text backbone of MiniMax-M3.1-Flash: M3's schema; what a config.json leaves out is as published."""

    model_type = MODEL_TYPE
    architectures = [ARCHITECTURE]  # noqa: RUF012 - transformers reads a plain class attribute

    # transformers 5 gives a subclass without __init__ a generated one that skips the parent's.
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**(published_values() | kwargs))
