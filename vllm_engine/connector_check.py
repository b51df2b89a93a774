"""Whether the engine that vLLM was told to build is one of this system: without our connector it would answer 200 to
everything, and every prompt would be computed twice.
"""

from vllm_engine.args import CONNECTOR, CONNECTOR_MODULE, KV_ROLE
from wire.worker_config import WorkerConfig


class WrongEngine(Exception):
    """vLLM can't be built from this worker's arguments, or would run without our connector."""


def check_connector(config: WorkerConfig, engine_id: str, transfer: object) -> None:
    """Compare what vLLM made of its arguments with what this worker gave it.

    Args:
        transfer: vLLM's KVTransferConfig, or None, of its finished configuration, where later arguments and vLLM
            itself may have replaced ours.

    Raises:
        WrongEngine: names each setting that differs.
    """
    needed = {
        "kv_connector": CONNECTOR,
        "kv_connector_module_path": CONNECTOR_MODULE,
        "kv_role": KV_ROLE[config.role],
        "engine_id": engine_id,
    }
    wrong = [
        f"{name} is {getattr(transfer, name, None)}, not {value}"
        for name, value in needed.items()
        if getattr(transfer, name, None) != value
    ]
    if wrong:
        # The arguments themselves are not quoted: an API key may be among them.
        raise WrongEngine(
            f"extra_vllm_args, or vLLM, replaced this worker's KV connector: {'; '.join(wrong)}; no KV would cross"
        )
