"""What is measured: ways to run a step, prompts and the steps they are cut into, and the model's sizes. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from msa_model.nano.config import Form, model_config
from msa_model.published import published_quantization, published_values
from wire.token_split import TokenSplit

PLAIN, DBO, SP, SP_DBO = "plain", "DBO", "SP", "SP + DBO"
# Threshold 2: every step is cut, also those that a served worker would leave whole.
WAYS: dict[str, TokenSplit] = {
    PLAIN: TokenSplit(),
    DBO: TokenSplit(enable_dbo=True, dbo_min_tokens=2),
    SP: TokenSplit(enable_sp=True),
    SP_DBO: TokenSplit(enable_sp=True, enable_dbo=True, dbo_min_tokens=2),
}
K = 1024
PROMPTS, CHUNK = (4 * K, 8 * K, 16 * K, 32 * K, 64 * K), 16 * K
SMALL_PROMPTS, SMALL_CHUNK = (48, 120), 48
LAYERS = (1, 8)
# Rows of the embedding, which no way touches.
VOCAB = 512


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt of ``num_tokens`` through the first ``num_layers`` layers, at most ``step_tokens`` of it in a step."""

    num_layers: int
    num_tokens: int
    step_tokens: int

    @property
    def name(self) -> str:
        layers = "1 layer" if self.num_layers == 1 else f"{self.num_layers} layers"
        steps = "one step" if self.step_tokens == self.num_tokens else f"steps of {tokens_text(self.step_tokens)}"
        return f"{layers}, {tokens_text(self.num_tokens)}, {steps}"

    def steps(self) -> list[tuple[int, int]]:
        """Of each step the context when it begins, and its new tokens."""
        starts = range(0, self.num_tokens, self.step_tokens)
        return [(start, min(self.step_tokens, self.num_tokens - start)) for start in starts]


def tokens_text(num_tokens: int) -> str:
    return f"{num_tokens // K}K" if num_tokens % K == 0 else str(num_tokens)


def as_worst(error: float) -> float:
    """For comparisons: NaN is worse than any number."""
    return error if error == error else float("inf")


def cases(layers: Iterable[int], prompts: Iterable[int], chunk: int) -> Iterator[Case]:
    """Each prompt in one step, and longer ones also in steps of ``chunk``; short prompts first."""
    counts = tuple(layers)
    for num_tokens in sorted(set(prompts)):
        for step_tokens in [num_tokens] + ([chunk] if num_tokens > chunk else []):
            yield from (Case(num_layers, num_tokens, step_tokens) for num_layers in counts)


def config_values(num_layers: int, *, is_small: bool) -> dict[str, Any]:
    """config.json of ``num_layers`` MoE layers with an index branch: true sizes (facts M1), or the nano model's."""
    if is_small:
        values = model_config("bfloat16", VOCAB, Form(projections="mxfp8"))
        values["quantization_config"] = published_quantization()
    else:
        values = published_values() | {"quantization_config": published_quantization(), "vocab_size": VOCAB}
    values |= {"num_hidden_layers": num_layers, "moe_layer_freq": [1] * num_layers}
    every = dict.fromkeys(("sparse_attention_freq", "sparse_disable_index_value"), [1] * num_layers)
    values["sparse_attention_config"] = values["sparse_attention_config"] | every
    return values
