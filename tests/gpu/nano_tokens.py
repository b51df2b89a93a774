"""One plain engine on one GPU, in a process of its own: greedy tokens of prompts, as JSON.

python -m tests.gpu.nano_tokens CHECKPOINT ENGINE_SETTINGS_JSON < prompts.json > tokens.json
"""

import json
import os
import sys
from typing import Any

NUM_TOKENS = 16


def main() -> None:
    """Answer every prompt twice, alone and all at once, and say which attention ran."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    answers, sys.stdout = sys.stdout, sys.stderr  # vLLM writes its log there
    from vllm import LLM, SamplingParams

    checkpoint, settings = sys.argv[1], json.loads(sys.argv[2])
    prompts = [{"prompt_token_ids": prompt} for prompt in json.load(sys.stdin)]
    usual: dict[str, Any] = {"dtype": "float32", "block_size": 128, "max_model_len": 4096}
    usual |= {"kv_cache_memory_bytes": 1 << 30, "gpu_memory_utilization": 0.2}
    engine = LLM(checkpoint, **(usual | settings))
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)

    def tokens(some: list[dict[str, list[int]]]) -> list[list[int]]:
        return [list(answer.outputs[0].token_ids) for answer in engine.generate(some, params, use_tqdm=False)]

    alone = [tokens([prompt])[0] for prompt in prompts]
    engine.reset_prefix_cache()
    together = tokens(prompts)
    json.dump({"alone": alone, "together": together, "prefix_hits": tokens(prompts)}, answers)


if __name__ == "__main__":
    main()
