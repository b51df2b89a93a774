"""``python -m tests.e2e.offline CHECKPOINT``: greedy tokens of prompts, stdin to stdout in JSON, without a server."""

import json
import sys


def main(checkpoint: str) -> None:
    from vllm import LLM, SamplingParams

    asked = json.load(sys.stdin)
    engine = LLM(
        model=checkpoint,
        dtype="float32",
        enforce_eager=True,
        block_size=128,
        max_model_len=3200,
        max_num_seqs=8,
        max_num_batched_tokens=512,
        kv_cache_memory_bytes=128 << 20,
    )
    sampling = SamplingParams(max_tokens=asked["num_tokens"], temperature=0, ignore_eos=True)
    prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
    answers = engine.generate(prompts, sampling, use_tqdm=False)
    # Last, as vLLM writes its log to stdout.
    print("\n" + json.dumps([list(answer.outputs[0].token_ids) for answer in answers]))


if __name__ == "__main__":
    main(sys.argv[1])
