"""Times of GPU work: CUDA graphs of many calls, replayed, medians."""

import statistics
from collections.abc import Callable, Sequence

import torch

CALLS_PER_GRAPH, REPLAYS, WARM_REPLAYS = 16, 25, 3


def median_us(calls: Sequence[Callable[[], object]], replays: int = REPLAYS) -> float:
    """Median time of one call in microseconds, the launch gaps of a graph included.

    ``calls`` are taken in turns, so that inputs which together exceed the L2 are read from memory. They run on one
    stream, must not wait for the device, and must leave their inputs as they are.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    rounds = max(1, -(-CALLS_PER_GRAPH // len(calls)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    for _ in range(WARM_REPLAYS):
        graph.replay()
    spans = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(replays)]
    for start, end in spans:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in spans) * 1e3 / (rounds * len(calls))


def read_gb_per_s(num_bytes: int = 4 << 30) -> float:
    """Rate at which a sum over ``num_bytes`` of random int64 reads device memory: the ceiling that shares refer to."""
    numbers = torch.randint(1 << 62, (num_bytes // 8,), device="cuda")
    return num_bytes / median_us([lambda: numbers.sum()], replays=9) / 1e3
