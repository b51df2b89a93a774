"""must-3: what splitting a step's tokens has to gain on two H200s, checked on a result file. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.prefill.case import CHUNK, DBO, LAYERS, PLAIN, PROMPTS, SP, SP_DBO, Case, K, as_worst, cases

TP_SIZE = 2
# A step's last collectives have nothing above them. Of one layer those are more than a fifth: the second half's last
# of eight, and the gather of its final states, which a model does once.
MIN_HIDDEN, HIDDEN_FROM_LAYERS = 0.80, 8
MAX_SLOWDOWN, SLOWDOWN_FROM = 1.02, 8 * K
MIN_OF_CEILING, CEILING_FROM = 0.5, 16 * K
# Beside the plain layer, rounded where SP exchanges: kernels sum halves in another order, and what lies on an edge of
# bfloat16, MXFP8 or NVFP4 falls to the other side. Attention to other tokens would be an error of more than 0.1.
MAX_ERRORS = {DBO: 0.02, SP: 0.08, SP_DBO: 0.08}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One demand on one case: a measured number, the limit that it is held to, and whether it keeps it."""

    demand: str
    case: str
    measured: float
    limit: float
    is_met: bool


HIDES = "SP + DBO hides of the communication that plain exposes, 8 layers"
NOT_SLOWER = "times of plain that SP + DBO takes, from 8K tokens"
GAINS = "share of the ceiling that SP + DBO gains, from 16K tokens"
SAME = "relative error of {}"


def verdicts(result: dict[str, Any]) -> list[Verdict]:
    """Every demand on every case that it speaks of.

    Raises:
        ValueError: the result is not of two GPUs and true sizes, or lacks a case or a part of it, so that something
            was not shown.
    """
    if result["device"] != "cuda" or result["is_small"] or result["is_alone"] or result["tp_size"] != TP_SIZE:
        raise ValueError("must-3 speaks of two GPUs and the model's true sizes; this result is of something else")
    measured = {(case["num_layers"], case["num_tokens"], case["step_tokens"]): case for case in result["cases"]}
    found: list[Verdict] = []
    for case in cases(LAYERS, PROMPTS, CHUNK):
        figures = measured.get((case.num_layers, case.num_tokens, case.step_tokens))
        if figures is None:
            raise ValueError(f"not measured: {case.name}")
        found.extend(_of_case(case, figures))
    return found


def ceiling(figures: dict[str, Any]) -> float:
    """Share of plain's step that a perfect overlap would save."""
    plain = figures["overlap"][PLAIN]
    return float(plain["exposed_us"] / plain["step_us"])


def gain(figures: dict[str, Any], way: str) -> float:
    """Share of plain's time that a way saves; negative if it is slower."""
    return float(1 - figures["median_ms"][way] / figures["median_ms"][PLAIN])


def hidden_of_plain(figures: dict[str, Any], way: str) -> float:
    """Share of the communication time that plain exposes which a way exposes no more; ValueError if it is none."""
    overlap = figures["overlap"]
    if not overlap[PLAIN]["exposed_us"]:
        raise ValueError("plain exposes no communication: no kernel of it was known by its name")
    return float(1 - overlap[way]["exposed_us"] / overlap[PLAIN]["exposed_us"])


def _of_case(case: Case, figures: dict[str, Any]) -> Iterator[Verdict]:
    for part in ("median_ms", "overlap", "errors"):
        lacking = {PLAIN, SP_DBO, *MAX_ERRORS} - set(figures.get(part, {})) - ({PLAIN} if part == "errors" else set())
        if lacking:
            raise ValueError(f"{case.name} lacks {part} of {', '.join(sorted(lacking))}")
    for way, limit in MAX_ERRORS.items():
        error = max(figures["errors"][way], key=as_worst)
        yield Verdict(SAME.format(way), case.name, round(error, 5), limit, error <= limit)
    if case.num_layers >= HIDDEN_FROM_LAYERS:
        hidden = hidden_of_plain(figures, SP_DBO)
        yield Verdict(HIDES, case.name, round(hidden, 4), MIN_HIDDEN, hidden >= MIN_HIDDEN)
    # Of a step's tokens, as that is what is cut.
    if case.step_tokens >= SLOWDOWN_FROM:
        ratio = 1 - gain(figures, SP_DBO)
        yield Verdict(NOT_SLOWER, case.name, round(ratio, 4), MAX_SLOWDOWN, ratio <= MAX_SLOWDOWN)
    if case.step_tokens >= CEILING_FROM:
        share = gain(figures, SP_DBO) / ceiling(figures)
        yield Verdict(GAINS, case.name, round(share, 3), MIN_OF_CEILING, share >= MIN_OF_CEILING)
