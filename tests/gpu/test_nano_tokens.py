"""The nano model through real vLLM on one GPU: the reference's tokens up to noise, eager and in full graphs."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.reference_model import ReferenceModel
from tests.e2e.test_tokens import NUM_TOKENS, prompts
from tests.stack import REPOSITORY, build_checkpoint

pytestmark = pytest.mark.one_gpu

ENGINES: dict[str, dict[str, Any]] = {
    "eager": {"enforce_eager": True},
    "full graphs": {"compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY"}},
    # Verified four rows at a time: one token and 3 drafts.
    "full graphs, drafts": {
        "compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY"},
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2},
    },
    "chunked prefill": {"enforce_eager": True, "max_num_batched_tokens": 192, "enable_chunked_prefill": True},
}
# Relative size of the rounding in the kernels' products (half precision) beside float32's own.
NOISE_INPUT = 1e-3
MAX_CLOSE = 8


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def answers(checkpoint: Path) -> dict[str, dict[str, list[list[int]]]]:
    with ThreadPoolExecutor() as pool:  # side by side, which one GPU has memory for
        found = pool.map(partial(run, checkpoint), ENGINES.values())
        return {name: answers for name, (_, answers) in zip(ENGINES, found, strict=True)}


def run(checkpoint: Path, settings: dict[str, Any]) -> tuple[str, dict[str, list[list[int]]]]:
    """The engine's log, and its tokens by way of asking (``nano_tokens``)."""
    command = [sys.executable, "-m", "tests.gpu.nano_tokens", str(checkpoint), json.dumps(settings)]
    ended = subprocess.run(
        command, cwd=REPOSITORY, input=json.dumps(prompts()), capture_output=True, text=True, timeout=400, check=False
    )
    assert ended.returncode == 0, ended.stderr[-6000:]
    assert "MSA attention: kernels" in ended.stderr, "the kernels did not run"
    wants_graphs = not settings.get("enforce_eager")
    assert ("Capturing CUDA graphs (FULL)" in ended.stderr) is wants_graphs, "full graphs, or none, were not captured"
    return ended.stderr, json.loads(ended.stdout)


@pytest.mark.parametrize("engine", ENGINES)
def test_tokens_are_the_references_up_to_the_noise_floor(
    engine: str, answers: dict[str, dict[str, list[list[int]]]], checkpoint: Path
) -> None:
    reference, num_close = ReferenceModel(checkpoint), 0
    for prompt, tokens in zip(prompts(), answers[engine]["alone"], strict=True):
        logprobs = reference.logprobs(prompt + tokens[:-1], last=NUM_TOKENS)
        chosen = logprobs.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
        miss = logprobs.max(-1).values - chosen
        if miss.max() > 0:
            num_close += int((miss > 0).sum())
            floor = reference.noise_floor(prompt, NOISE_INPUT)
            assert miss.max() <= floor, f"prompt of {len(prompt)}: {miss.max():.2e} below the best, floor {floor:.2e}"
    assert num_close <= MAX_CLOSE, "near-ties are rare; many misses mean a wrong model"


@pytest.mark.parametrize("way", ["alone", "together", "prefix_hits"])
@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "eager"])
def test_graphs_drafts_chunks_and_prefixes_change_few_tokens(
    engine: str, way: str, answers: dict[str, dict[str, list[list[int]]]]
) -> None:
    """Other batches sum in another order, so near-ties may fall otherwise; from there on answers may differ."""
    pairs = zip(answers["eager"]["alone"], answers[engine][way], strict=True)
    differing = [index for index, (one, other) in enumerate(pairs) if one != other]
    assert len(differing) <= 2, differing


def test_full_graphs_give_eager_tokens_exactly(answers: dict[str, dict[str, list[list[int]]]]) -> None:
    """The same kernels on the same rows."""
    assert answers["full graphs"]["alone"] == answers["eager"]["alone"]
