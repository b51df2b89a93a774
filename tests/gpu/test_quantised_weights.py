"""A checkpoint as it is published, in bfloat16 on one GPU: vLLM's quantised layers and our kernels."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.reference_model import ReferenceModel
from tests.e2e.test_tokens import prompts
from tests.gpu.nano_tokens import NUM_TOKENS
from tests.gpu.test_nano_tokens import run
from tests.stack import REPOSITORY

pytestmark = pytest.mark.one_gpu

# Of bfloat16, relative; each layer rounds anew, where the reference's noise comes in once.
NOISE_INPUT = 2.0**-8
NOISE_FACTOR = 3.0
# Where a prompt is longer than a sparse layer reads, other blocks may be chosen and the floor says little.
MAX_MISS = 0.2
# Of all tokens; the others are near-ties in bfloat16.
MIN_SHARE_OF_BEST = 0.8

ENGINES: dict[str, dict[str, Any]] = {
    "eager": {"enforce_eager": True},
    "full graphs": {"compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY"}},
}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("published") / "nano"
    command = [sys.executable, "-m", "msa_model.nano", str(out), "--projections", "mxfp8", "--dtype", "bfloat16"]
    subprocess.run(command, check=True, cwd=REPOSITORY, timeout=120)
    return out


@pytest.mark.parametrize("engine", ENGINES)
def test_tokens_are_the_references_up_to_bfloat16(published: Path, engine: str) -> None:
    log, answers = run(published, {"dtype": "bfloat16"} | ENGINES[engine])
    assert "quantised weights run in vLLM's ModelOpt kernels" in log
    reference, num_best, num_tokens = ReferenceModel(published), 0, 0
    for prompt, tokens in zip(prompts(), answers["alone"], strict=True):
        logprobs = reference.logprobs(prompt + tokens[:-1], last=NUM_TOKENS)
        miss = logprobs.max(-1).values - logprobs.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
        floor = min(MAX_MISS, reference.noise_floor(prompt, NOISE_INPUT) * NOISE_FACTOR)
        print(f"{engine}: {len(prompt)} tokens: {miss.max():.2e} below the best, floor {floor:.2e}")
        assert miss.max() <= floor, f"prompt of {len(prompt)}: {miss.max():.2e} below the best, floor {floor:.2e}"
        num_best, num_tokens = num_best + int((miss == 0).sum()), num_tokens + len(tokens)
    print(f"{engine}: {num_best} of {num_tokens} tokens are the reference's")
    assert num_best >= MIN_SHARE_OF_BEST * num_tokens
