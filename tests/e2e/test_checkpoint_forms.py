"""A checkpoint as it is published (MXFP8 projections, NVFP4 experts), with M3's own pattern, in a real engine.

Its first layer has no index branch. The default nano checkpoint, which all other tests run, has plain projections and
an index branch on every layer.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.e2e.reference_model import ReferenceModel
from tests.e2e.test_tokens import LENGTHS, NOISE_FACTOR, NOISE_INPUT, prompts
from tests.stack import REPOSITORY, single_engine_env

NUM_TOKENS = 8
# Up to twice what a sparse layer of this model reads.
PROMPTS = [prompts()[LENGTHS.index(length)] for length in (5, 129, 1100)]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("published") / "nano"
    command = [sys.executable, "-m", "msa_model.nano", str(out), "--projections", "mxfp8", "--dense-layers", "1"]
    subprocess.run(command, check=True, cwd=REPOSITORY, timeout=120)
    return out


@pytest.fixture(scope="module")
def answers(published: Path) -> list[list[int]]:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.e2e.offline", str(published)],
        input=json.dumps({"prompts": PROMPTS, "num_tokens": NUM_TOKENS}),
        env=os.environ | single_engine_env() | {"TORCH_COMPILE_DISABLE": "1"},
        cwd=REPOSITORY,
        timeout=240,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    tokens: list[list[int]] = json.loads(ended.stdout.splitlines()[-1])
    return tokens


def test_its_tokens_are_the_references_up_to_the_noise_floor(published: Path, answers: list[list[int]]) -> None:
    reference, num_close = ReferenceModel(published), 0
    for prompt, tokens in zip(PROMPTS, answers, strict=True):
        logprobs = reference.logprobs(prompt + tokens[:-1], last=NUM_TOKENS)
        miss = (logprobs.max(-1).values - logprobs.gather(-1, torch.tensor(tokens)[:, None])[:, 0]).max().item()
        if miss > 0:
            num_close += 1
            assert miss <= reference.noise_floor(prompt, NOISE_INPUT) * NOISE_FACTOR
    assert num_close <= 1, "near-ties are rare; many misses mean a wrong model"


def test_a_first_layer_that_were_sparse_would_show(published: Path) -> None:
    """Else equality would not tell that it sees the whole context."""
    as_it_is, as_if_sparse = ReferenceModel(published), ReferenceModel(published)
    as_if_sparse.config["sparse_attention_config"]["sparse_attention_freq"][0] = 1
    weights, first, second = as_if_sparse.weights, "model.layers.0.self_attn.", "model.layers.1.self_attn."
    weights |= {name.replace(second, first): weight for name, weight in weights.items() if f"{second}index" in name}
    prompt = PROMPTS[-1][:700]
    moved = as_it_is.logprobs(prompt, last=NUM_TOKENS) - as_if_sparse.logprobs(prompt, last=NUM_TOKENS)
    assert moved.abs().max() > as_it_is.noise_floor(prompt, NOISE_INPUT) * NOISE_FACTOR
