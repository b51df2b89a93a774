"""A model, not a measurement: steps on other numbers of GPUs and on other GPUs, from one rank's compute on an H200.

    plain     = compute + all-reduces
    SP        = compute + its collectives
    DBO       = the longer of compute and collectives + the one collective at the end that has nothing above it

Compute is what the kernels of one rank of as many take when nothing is sent (``--compute-only``), without the gaps
in which a GPU waits for its host. Pure; times are in ms.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.prefill.case import DBO, PLAIN, SP, SP_DBO

HIDDEN_BYTES, ATTENTION_WIDTH, HIDDEN = 12_288, 8192, 6144
MXFP8_BYTES = 33 / 32
ROUTER_BYTES = 128 * 4
# Collectives of a layer in each way; an all-reduce that is taken apart is two.
COLLECTIVES = {PLAIN: 2, DBO: 4, SP: 4, SP_DBO: 4}
# Share of a link's stated rate that a collective reaches. Not measured here; a peer copy between two H200s reaches
# 387 of 450 GB/s (bench/results/transfer-h200x2.md), and rings lose more.
ATTAINED = 0.75
# Least tokens of a prompt that facts K3 speak of, and its speed-up.
K3_TOKENS, K3_SPEEDUP = 16 * 1024, (1.8, 2.1)


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates from data sheets. An H200 is what ``compute`` was measured on."""

    name: str
    link_gb_per_s: float
    """Out of one GPU to one peer (``is_mesh``) or to all of them together."""
    is_mesh: bool
    """Each pair has a link of its own, so fewer peers mean less."""
    matrix_speedup: float
    """Dense 16-bit matrix rate, in H200s: 989 TFLOP/s."""
    memory_speedup: float
    """Memory bandwidth, in H200s: 4.8 TB/s."""

    def send_gb_per_s(self, tp_size: int) -> float:
        """What a GPU of a group of ``tp_size`` sends at best."""
        return self.link_gb_per_s * ((tp_size - 1) if self.is_mesh else 1)


MACHINES = (
    # NVLink 4: 900 GB/s of both directions, through switches.
    Machine("H200", 450.0, is_mesh=False, matrix_speedup=1.0, memory_speedup=1.0),
    # NVLink 5: 1,800 GB/s of both directions, through switches; 2,500 TFLOP/s, 8 TB/s.
    Machine("GB300", 900.0, is_mesh=False, matrix_speedup=2.53, memory_speedup=1.67),
    # Infinity Fabric: a link of 153.6 GB/s of both directions to each of 7 peers; 2,500 TFLOP/s, 8 TB/s.
    Machine("MI355X", 76.8, is_mesh=True, matrix_speedup=2.53, memory_speedup=1.67),
)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Milliseconds of one step by way, on one machine with compute sped up by one of its two ratios."""

    machine: str
    tp_size: int
    num_tokens: int
    scaled_by: str
    ms: dict[str, float]

    def speedup(self, way: str) -> float:
        return self.ms[PLAIN] / self.ms[way]


def sent_bytes(way: str, tp_size: int) -> float:
    """Of one GPU for a token and layer (facts P3), with the router's scores that SP's second gather carries."""
    share = (tp_size - 1) / tp_size
    if way in (PLAIN, DBO):
        return 2 * 2 * share * HIDDEN_BYTES
    gathers = share * (2 * HIDDEN * MXFP8_BYTES + ROUTER_BYTES)
    swap = share * ATTENTION_WIDTH / tp_size * MXFP8_BYTES
    return gathers + swap + share * HIDDEN_BYTES


def communication_ms(machine: Machine, way: str, tp_size: int, num_tokens: int, num_layers: int) -> float:
    gb_per_s = machine.send_gb_per_s(tp_size) * ATTAINED
    return sent_bytes(way, tp_size) * num_tokens * num_layers / gb_per_s / 1e6


def step_ms(way: str, compute_ms: float, sent_ms: float, num_layers: int) -> float:
    """By the sums at this file's top."""
    if way in (PLAIN, SP):
        return compute_ms + sent_ms
    last_ms = sent_ms / (2 * COLLECTIVES[way] * num_layers)
    return max(compute_ms, sent_ms) + last_ms


def predictions(result: dict[str, Any]) -> Iterator[Prediction]:
    """Of each case of a result of ``--compute-only``; other machines come twice, by matrix rate and by bandwidth."""
    for case in result["cases"]:
        tp_size, num_tokens, num_layers = case["tp_size"], case["num_tokens"], case["num_layers"]
        compute_ms = {way: overlap["compute_us"] / 1e3 for way, overlap in case["overlap"].items()}
        for machine in MACHINES:
            ratios = {"matrix rate": machine.matrix_speedup, "bandwidth": machine.memory_speedup}
            for scaled_by, ratio in ratios.items() if machine.matrix_speedup != 1 else [("measured", 1.0)]:
                ms = {
                    way: step_ms(
                        way,
                        compute / ratio,
                        communication_ms(machine, way, tp_size, num_tokens, num_layers),
                        num_layers,
                    )
                    for way, compute in compute_ms.items()
                }
                yield Prediction(machine.name, tp_size, num_tokens, scaled_by, ms)
