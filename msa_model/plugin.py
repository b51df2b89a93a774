"""The plugin's entry point: what every vLLM process runs before it builds anything.

Registers names only. It imports no model code, touches no device and may run any number of times in one process.
"""

from msa_model.published import ARCHITECTURE


def register() -> None:
    """Teach transformers the config type and vLLM the architecture and its quantization; idempotent."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from vllm import ModelRegistry

    from msa_model.hf_config import MiniMaxM31FlashConfig
    from msa_model.quant import register_quantization

    if MiniMaxM31FlashConfig.model_type not in CONFIG_MAPPING:
        AutoConfig.register(MiniMaxM31FlashConfig.model_type, MiniMaxM31FlashConfig)
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        # A string, so that the model module is imported where it is used and not in the API server.
        ModelRegistry.register_model(ARCHITECTURE, f"msa_model.model:{ARCHITECTURE}")
    register_quantization()
