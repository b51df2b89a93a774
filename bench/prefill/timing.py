"""Times of calls that take turns, so that a change of the machine's clocks meets all of them."""

import time
from collections.abc import Callable, Mapping

import torch

Call = Callable[[], object]


def clocked_ms(call: Call, repeats: int, device: torch.device, meet: Call) -> float:
    """Milliseconds of one of ``repeats`` calls in a row; ``meet`` returns when every rank is there."""
    if device.type != "cuda":
        meet()
        start_s = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start_s) * 1e3 / repeats
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    meet()
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize(device)
    return float(start.elapsed_time(end)) / repeats


def rounds_ms(
    calls: Mapping[str, Call], *, rounds: int, repeats: int, device: torch.device, meet: Call
) -> dict[str, list[float]]:
    """Of each call a time for each round; rounds begin with another call each."""
    names, times = list(calls), {name: list[float]() for name in calls}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(clocked_ms(calls[name], repeats, device, meet))
    return times
