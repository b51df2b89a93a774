"""Data-parallel replicas around routed experts: every replica's tokens come to every rank, and go back summed.

For experts that run in plain torch. vLLM does the same for its kernels, with collectives that its CPU back end lacks.
"""

import torch
from vllm.distributed import get_dp_group
from vllm.forward_context import get_forward_context


def num_tokens_of_replicas() -> list[int]:
    """Tokens of each replica in this step; host values, which vLLM has agreed on before."""
    metadata = get_forward_context().dp_metadata
    assert metadata is not None, "vLLM describes each step of replicas"
    sizes = metadata.get_chunk_sizes_across_dp_rank()
    assert sizes is not None
    return sizes


def gather(x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """All replicas' rows in their order, [sum(sizes), ...], from this one's ``x`` [sizes[own], ...]."""
    longest = max(sizes)
    padded = x.new_zeros(longest, *x.shape[1:])
    padded[: x.shape[0]] = x
    pieces = get_dp_group().all_gather(padded, dim=0).split(longest)
    return torch.cat([piece[:size] for piece, size in zip(pieces, sizes, strict=True)])


def reduce(x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """This replica's rows [sizes[own], ...] of the sum over replicas of ``x`` [sum(sizes), ...]."""
    group = get_dp_group()
    summed: torch.Tensor = group.all_reduce(x)
    return summed.split(sizes)[group.rank_in_group]
