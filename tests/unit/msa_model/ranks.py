"""``python -m tests.unit.msa_model.ranks OUT``: one feed-forward layer on several numbers of ranks, over gloo on CPU.

vLLM is imported once; the ranks of each case are forks. Writes {name of case: what its ranks made, in order} to OUT.
"""

import multiprocessing
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn
from vllm.config import ParallelConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.forward_context import set_forward_context

from msa_model.checkpoint_tensors import expected_tensors
from msa_model.hf_config import MiniMaxM31FlashConfig
from msa_model.loading import load_weights
from msa_model.model import SparseMoE
from msa_model.nano.config import Form, model_config
from msa_model.quant import MSAQuantConfig
from msa_model.reference import mxfp8, nvfp4

PREFIX = "model.layers.1.block_sparse_moe."
# Of each replica; unlike numbers, as requests come to replicas unevenly.
TOKENS = (5, 3)


@dataclass(frozen=True)
class Case:
    """Ranks that share the layer, replicas of it, and whether experts stay whole."""

    tp_size: int = 1
    dp_size: int = 1
    enable_ep: bool = False

    @property
    def name(self) -> str:
        return f"TP{self.tp_size} DP{self.dp_size}{' EP' if self.enable_ep else ''}"


CASES = [
    Case(),
    Case(tp_size=2),
    Case(tp_size=2, enable_ep=True),
    Case(dp_size=2),
    Case(dp_size=2, enable_ep=True),
    Case(tp_size=2, dp_size=2, enable_ep=True),
]


def weights(config: MiniMaxM31FlashConfig) -> list[tuple[str, torch.Tensor]]:
    """Random ones of layer 1, as a checkpoint stores them."""
    generator, made = torch.Generator().manual_seed(11), {}
    for name, tensor in expected_tensors(config).items():
        if not name.startswith(PREFIX) or name in made:
            continue
        if not name.endswith(".weight") or name == f"{PREFIX}gate.weight":
            made[name] = torch.randn(tensor.shape, generator=generator) * 0.1 + (0.02 if not tensor.shape else 0)
            continue
        inputs = tensor.shape[1] * (2 if tensor.dtypes == ("U8",) else 1)
        plain = torch.randn(tensor.shape[0], inputs, generator=generator) * inputs**-0.5
        quantize = nvfp4.quantize if tensor.dtypes == ("U8",) else mxfp8.quantize
        made[name], made[f"{name}_scale"] = quantize(plain)
    return [(f"layer.{name.removeprefix('model.layers.1.')}", value) for name, value in made.items()]


def run_rank(case: Case, rank: int, meeting: str, out: Path) -> None:
    """One rank's output for its replica's tokens."""
    torch.set_num_threads(1)
    # What an external launcher (see below) and vLLM's shared memory on CPU go by.
    os.environ |= {"RANK": str(rank), "VLLM_DIST_IDENT": meeting.replace("/", "-")}
    dp_rank, tp_rank = divmod(rank, case.tp_size)
    vllm_config = VllmConfig()
    vllm_config.parallel_config = ParallelConfig(
        tensor_parallel_size=case.tp_size,
        data_parallel_size=case.dp_size,
        data_parallel_rank=dp_rank,
        enable_expert_parallel=case.enable_ep,
        # Else vLLM would let replicas meet at an address of its own choice.
        distributed_executor_backend="external_launcher",
    )
    config = MiniMaxM31FlashConfig(**model_config("float32", 512, Form(projections="mxfp8")))
    x = torch.randn(sum(TOKENS), config.hidden_size, generator=torch.Generator().manual_seed(12))
    start = sum(TOKENS[:dp_rank])
    mine = x[start : start + TOKENS[dp_rank]] if case.dp_size > 1 else x
    counts = torch.tensor(TOKENS) if case.dp_size > 1 else None
    with set_current_vllm_config(vllm_config):
        size = case.tp_size * case.dp_size
        parallel_state.init_distributed_environment(size, rank, f"file://{meeting}", tp_rank, "gloo")
        parallel_state.initialize_model_parallel(case.tp_size)
        vllm_config.model_config = SimpleNamespace(dtype=torch.float32)
        layer = nn.Module()
        quantization = MSAQuantConfig.from_config(config.quantization_config)
        layer.layer = nn.Module()
        moe = layer.layer.block_sparse_moe = SparseMoE(config, quantization, PREFIX.removesuffix("."))
        load_weights(layer, config.num_local_experts, weights(config))
        for module in moe.modules():
            method = getattr(module, "quant_method", None)
            if method is not None:
                method.process_weights_after_loading(module)
        with set_forward_context(None, vllm_config, num_tokens=len(mine), num_tokens_across_dp=counts):
            output = moe(mine)
    experts = moe.experts.routed_experts.w13_weight.shape[0]
    torch.save({"output": output, "num_experts": experts}, out)


def main(out: Path) -> None:
    context, results = multiprocessing.get_context("fork"), {}
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(CASES):
            outs = [Path(folder) / f"{number}-{rank}.pt" for rank in range(case.tp_size * case.dp_size)]
            meeting = f"{folder}/meeting-{number}"
            ranks = [
                context.Process(target=run_rank, args=(case, rank, meeting, path)) for rank, path in enumerate(outs)
            ]
            for process in ranks:
                process.start()
            for process in ranks:
                process.join(60)
                process.kill()
            results[case.name] = [torch.load(path) for path in outs if path.exists()]
    torch.save(results, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
