"""``python -m tests.unit.msa_model.split_ranks OUT``: the nano model with its tokens split in every way, over gloo.

vLLM is imported once; the ranks of each number of them are forks. Writes, for each number of ranks and way, what its
ranks made in order.
"""

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.forward_context import set_forward_context

from bench.prefill.rank_model import batch_of, bind_cache, default_dtype, engine_config, finish_loading, join
from bench.prefill.rounded import rounded_layer
from msa_model.checkpoint_tensors import expected_tensors
from msa_model.config import BLOCK_SIZE
from msa_model.hf_config import MiniMaxM31FlashConfig
from msa_model.metadata import MSAMetadataBuilder
from msa_model.model import MiniMaxM31FlashForCausalLM
from msa_model.nano.config import Form, model_config
from msa_model.reference import mxfp8, nvfp4
from wire.token_split import TokenSplit

PLAIN, ROUNDED = "plain", "plain, rounded where MXFP8 is exchanged"
WAYS: dict[str, TokenSplit] = {
    PLAIN: TokenSplit(),
    "DBO": TokenSplit(enable_dbo=True, dbo_min_tokens=2),
    "SP exact": TokenSplit(enable_sp=True, sp_exchange="exact"),
    "SP + DBO exact": TokenSplit(enable_sp=True, enable_dbo=True, sp_exchange="exact", dbo_min_tokens=2),
    "SP": TokenSplit(enable_sp=True),
    "SP + DBO": TokenSplit(enable_sp=True, enable_dbo=True, dbo_min_tokens=2),
}
# Ways that are run on each number of ranks; the first is what the others are compared with.
RANKS: dict[int, tuple[str, ...]] = {2: tuple(WAYS), 4: (PLAIN, "SP + DBO exact", "SP + DBO")}
# Of each request's context when a step begins, and new ones in it. The first three steps are one prompt in chunks
# beside others; 1, 3 and 281 tokens are no multiples of the ranks; in the last a prefix is in the cache.
STEPS: list[list[tuple[int, int]]] = [
    [(0, 140), (0, 141)],
    [(140, 389), (141, 1)],
    [(529, 3)],
    [(532, 1)],
    [(128, 300)],
]
MAX_BLOCKS = 16
MAX_TOKENS = MAX_BLOCKS * BLOCK_SIZE
# True widths (fact M1) with few, narrow experts and two layers: what these send depends on none.
NUM_COUNTED = 64
COUNTED_WAYS = ("DBO", "SP + DBO")
TRUE_WIDTHS = {
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "num_hidden_layers": 2,
    "moe_layer_freq": [0, 1],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}


def nano() -> MiniMaxM31FlashConfig:
    return MiniMaxM31FlashConfig(**model_config("float32", 512, Form(projections="mxfp8")))


def true_widths() -> MiniMaxM31FlashConfig:
    values = model_config("bfloat16", 512, Form()) | TRUE_WIDTHS
    sparse = values["sparse_attention_config"]
    for key in ("sparse_attention_freq", "sparse_disable_index_value"):
        if key in sparse:
            sparse[key] = sparse[key][:2]
    return MiniMaxM31FlashConfig(**values)


def weights(config: MiniMaxM31FlashConfig) -> dict[str, torch.Tensor]:
    """Random ones, as a checkpoint stores them."""
    generator, made = torch.Generator().manual_seed(11), dict[str, torch.Tensor]()
    for name, tensor in expected_tensors(config).items():
        if name in made:
            continue
        if tensor.dtypes == ("U8",) or tensor.dtypes == ("F8_E4M3",):
            inputs = tensor.shape[1] * (2 if tensor.dtypes == ("U8",) else 1)
            plain = torch.randn(tensor.shape[0], inputs, generator=generator) * inputs**-0.5
            quantize = nvfp4.quantize if tensor.dtypes == ("U8",) else mxfp8.quantize
            made[name], made[f"{name}_scale"] = quantize(plain)
        else:
            made[name] = torch.randn(tensor.shape, generator=generator) * 0.1 + (0.02 if not tensor.shape else 0)
    return made


def build(vllm_config: VllmConfig, checkpoint: dict[str, torch.Tensor] | None) -> MiniMaxM31FlashForCausalLM:
    """The rank's model, filled (None: with zeros), with an empty cache; under vLLM's current configuration."""
    model = MiniMaxM31FlashForCausalLM(vllm_config=vllm_config)
    if checkpoint is not None:
        model.load_weights(checkpoint.items())
    else:
        for parameter in model.parameters():
            parameter.zero_()
    finish_loading(model)
    bind_cache(model.model, 1 + 2 * MAX_BLOCKS)
    return model


def run_steps(
    vllm_config: VllmConfig,
    model: MiniMaxM31FlashForCausalLM,
    steps: list[list[tuple[int, int]]],
    run: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> list[torch.Tensor]:
    """What ``run(ids, positions)`` makes of each step; requests' tokens are the same in every way."""
    pool, outputs = model.model.kv_pool, []
    names = [pool.layer_name, model.model.index_pool.layer_name]
    builder = MSAMetadataBuilder(pool.get_kv_cache_spec(vllm_config), names, vllm_config, torch.device("cpu"))
    tables = (torch.arange(2 * MAX_BLOCKS, dtype=torch.int32) + 1).view(2, MAX_BLOCKS)
    text = torch.randint(0, model.config.vocab_size, (2, 2048), generator=torch.Generator().manual_seed(5))
    for requests in steps:
        positions = torch.cat([torch.arange(context, context + new) for context, new in requests])
        ids = torch.cat([text[row, context : context + new] for row, (context, new) in enumerate(requests)])
        metadata: Any = dict.fromkeys(names, builder.build(0, batch_of(requests, tables[: len(requests)])))
        with set_forward_context(metadata, vllm_config, num_tokens=len(ids)):
            outputs.append(run(ids, positions))
    return outputs


class LayerByLayer:
    """The model with the same state before each layer in every way, so that each layer is compared by itself.

    Else what is rounded to four bits in one layer would hide how little its input differed.
    """

    def __init__(
        self, model: MiniMaxM31FlashForCausalLM, inputs: Iterator[torch.Tensor] | None, *, is_rounded: bool = False
    ) -> None:
        """``inputs``: of the layers in their order, as the plain way had them; None in this one."""
        self._model, self._inputs, self.seen = model.model, inputs, list[torch.Tensor]()
        self._is_rounded = is_rounded

    def __call__(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The layers' outputs [layers, T, hidden_size]."""
        hidden, outputs = self._model.embed_tokens(ids), []
        for layer in self._model.layers:
            if self._inputs is None:
                torch.distributed.broadcast(hidden, 0)  # vLLM's sums may differ between ranks in the last bit
                self.seen.append(hidden)
                hidden = layer(positions, hidden)
            elif self._is_rounded:
                hidden = rounded_layer(layer, positions, next(self._inputs))
            else:
                split, before = self._model.split_forward, next(self._inputs)
                assert split is not None
                hidden = split([layer], torch.nn.Identity(), positions, before)
            outputs.append(hidden)
        return torch.stack(outputs)


def run_rank(tp_size: int, rank: int, checkpoint: dict[str, torch.Tensor], meeting: str, out: Path) -> None:
    """All ways on one of ``tp_size`` ranks; ``checkpoint``: the nano model's."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    os.environ |= {"RANK": str(rank), "VLLM_DIST_IDENT": meeting.replace("/", "-")}
    results: dict[str, Any] = {}
    join(tp_size, rank, meeting, torch.device("cpu"))
    results["nano"] = nano_in_all_ways(tp_size, checkpoint)
    results["sent_bytes"] = {name: sent_bytes(tp_size, WAYS[name]) for name in COUNTED_WAYS}
    torch.save(results, out)


def nano_in_all_ways(tp_size: int, checkpoint: dict[str, torch.Tensor]) -> dict[str, dict[str, list[torch.Tensor]]]:
    """Hidden states after all layers, and after each layer by itself, of every step."""
    results, inputs = {}, list[torch.Tensor]()
    for name in RANKS[tp_size]:
        way = WAYS[name]
        vllm_config = engine_config(nano(), tp_size, torch.float32, way, MAX_TOKENS)
        with set_current_vllm_config(vllm_config):
            model = build(vllm_config, checkpoint)
            by_layer = LayerByLayer(model, iter(inputs) if way.is_on else None)
            layers = run_steps(vllm_config, model, STEPS, by_layer)
            if name == PLAIN:
                inputs = by_layer.seen
                rounded = LayerByLayer(model, iter(inputs), is_rounded=True)
                results[ROUNDED] = {"layers": run_steps(vllm_config, model, STEPS, rounded)}
            results[name] = {"layers": layers, "whole": run_steps(vllm_config, model, STEPS, model)}
    return results


def sent_bytes(tp_size: int, way: TokenSplit) -> dict[str, float]:
    """By kind, for a token and layer of the true widths; weights are zeros, which take no time to make."""
    vllm_config = engine_config(true_widths(), tp_size, torch.bfloat16, way, MAX_TOKENS)
    with set_current_vllm_config(vllm_config), default_dtype(torch.bfloat16):
        model = build(vllm_config, None)
        run_steps(vllm_config, model, [[(0, NUM_COUNTED)]], model)
    split, layers = model.model.split_forward, model.config.num_hidden_layers
    assert split is not None
    return {kind: count / NUM_COUNTED / layers for kind, count in split.exchange.sent_bytes.items()}


def main(out: Path) -> None:
    context, results = multiprocessing.get_context("fork"), {}
    checkpoint = weights(nano())
    with tempfile.TemporaryDirectory() as folder:
        for tp_size in RANKS:
            outs = [Path(folder) / f"{tp_size}-{rank}.pt" for rank in range(tp_size)]
            meeting = f"{folder}/meeting-{tp_size}"
            ranks = [
                context.Process(target=run_rank, args=(tp_size, rank, checkpoint, meeting, path))
                for rank, path in enumerate(outs)
            ]
            for process in ranks:
                process.start()
            for process in ranks:
                process.join(120)
                process.kill()
            results[tp_size] = [torch.load(path) for path in outs if path.exists()]
    torch.save(results, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
