"""What one rank does in one run: build the model for every way, compare the ways, time them, trace them."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed import get_tp_group

from bench.prefill import lone_rank
from bench.prefill.case import PLAIN, WAYS, Case, K, config_values
from bench.prefill.rank_model import RankModel, Step, join, leave
from bench.prefill.timing import rounds_ms
from bench.prefill.trace import longest, overlap_of, reduced
from msa_model.reference.tolerances import relative_l2

# Tokens times layers of a sample on a GPU, at least: the host's start of a step counts little in a whole model.
SAMPLE_WORK = 64 * K
WARM_ROUNDS = 2


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run, alike for all of its ranks."""

    tp_size: int
    is_alone: bool
    """There is one process, which computes what rank 0 would; nothing is sent or compared."""
    cases: tuple[Case, ...]
    is_small: bool
    device: str
    rounds: int
    budget_ms: float
    """Of one case; at least three rounds are taken."""
    traced: tuple[Case, ...]
    """Cases of which a reduced trace is kept."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A way's model and its steps of one case, with their hidden states [T, hidden_size]."""

    model: RankModel
    steps: Sequence[Step]
    inputs: Sequence[torch.Tensor]

    def run(self) -> None:
        self.each(self.model.run, self.inputs)

    def each(
        self, call: Callable[[Step, torch.Tensor], torch.Tensor], states: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """What ``call`` makes of each step and its states."""
        return [call(step, hidden) for step, hidden in zip(self.steps, states, strict=True)]


def run_rank(job: Job, rank: int, meeting: str) -> list[dict[str, Any]]:
    """Figures of each case, as this rank has them."""
    torch.set_grad_enabled(False)
    device = torch.device(job.device, rank) if job.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    join(1 if job.is_alone else job.tp_size, rank, meeting, device)
    if job.is_alone:
        lone_rank.pretend(job.tp_size)
    models = {name: _model(job, name, device) for name in WAYS}
    measured = []
    for case in job.cases:
        measured.append(_measure(job, case, models, device))
        if rank == 0:
            _say(_progress(case, measured[-1]))
    leave()
    return measured


def _model(job: Job, way: str, device: torch.device) -> RankModel:
    num_layers = max(case.num_layers for case in job.cases)
    model = RankModel(
        config_values(num_layers, is_small=job.is_small),
        WAYS[way],
        tp_size=job.tp_size,
        max_tokens=max(case.num_tokens for case in job.cases),
        device=device,
    )
    if job.is_alone and model.model.split_forward is not None:
        lone_rank.silence(model.model.split_forward.exchange, job.tp_size)
    return model


def _measure(job: Job, case: Case, models: dict[str, RankModel], device: torch.device) -> dict[str, Any]:
    prepared = {name: _prepare(case, model, device) for name, model in models.items()}
    calls = {name: one.run for name, one in prepared.items()}
    found: dict[str, Any] = asdict(case) | {"tp_size": job.tp_size}
    if not job.is_alone:
        found |= _errors(case, prepared)
    repeats = -(-SAMPLE_WORK // (case.num_layers * case.num_tokens)) if device.type == "cuda" else 1
    effort: dict[str, Any] = {"repeats": repeats, "device": device, "meet": _meet}
    warm = rounds_ms(calls, rounds=WARM_ROUNDS, **effort)
    found["ms"] = rounds_ms(calls, rounds=_num_rounds(job, warm, repeats), **effort)
    if device.type == "cuda":
        found |= _traces(calls, is_kept=case in job.traced)
    return found


def _prepare(case: Case, model: RankModel, device: torch.device) -> Prepared:
    model.use_layers(case.num_layers)
    generator = torch.Generator(device).manual_seed(case.num_tokens)
    hidden = torch.empty(case.num_tokens, model.hidden_size, dtype=torch.bfloat16, device=device)
    hidden.normal_(generator=generator)
    steps = [model.step(context, num_tokens) for context, num_tokens in case.steps()]
    return Prepared(model, steps, hidden.split([num_tokens for _, num_tokens in case.steps()]))


def _errors(case: Case, prepared: dict[str, Prepared]) -> dict[str, dict[str, list[float]]]:
    """Of each other way and layer, how far what it adds to the states lies from what it should, relative.

    ``errors``: from the plain layer, with SP the one that rounds where SP does; ``from_plain``: from the plain one.
    Each layer gets what plain has made of the one before, else what is rounded in one would hide the next. A layer sees
    all steps before the next layer sees any, so that it finds its own keys of earlier steps in the cache.
    """
    plain, ways = prepared[PLAIN], [name for name in prepared if name != PLAIN]
    found = {kind: {name: list[float]() for name in ways} for kind in ("errors", "from_plain")}
    states = [given.clone() for given in plain.inputs]
    for layer in range(case.num_layers):
        for hidden in states:
            dist.broadcast(hidden, 0, group=get_tp_group().device_group)
        rounded = plain.each(partial(plain.model.run_layer_rounded, layer), states)
        wanted = plain.each(partial(plain.model.run_layer, layer), states)
        for name in ways:
            made = prepared[name].each(partial(prepared[name].model.run_layer, layer), states)
            expected = rounded if WAYS[name].enable_sp else wanted
            found["errors"][name].append(_distance(made, expected, states))
            found["from_plain"][name].append(_distance(made, wanted, states))
        states = wanted
    return found


def _distance(made: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], states: Sequence[torch.Tensor]) -> float:
    """Relative, of what was added to ``states`` in all steps together; NaN if any is."""
    before = torch.cat(list(states)).float()
    return relative_l2(torch.cat(list(made)).float() - before, torch.cat(list(expected)).float() - before)


def _num_rounds(job: Job, warm: dict[str, list[float]], repeats: int) -> int:
    """As many as the slowest rank's last round lets into the budget."""
    round_ms = torch.tensor(sum(times[-1] for times in warm.values()) * repeats)
    if not job.is_alone:
        dist.all_reduce(round_ms, dist.ReduceOp.MAX, group=get_tp_group().cpu_group)
    return max(3, min(job.rounds, int(job.budget_ms / float(round_ms))))


def _traces(calls: dict[str, Callable[[], None]], *, is_kept: bool) -> dict[str, Any]:
    from bench.prefill.profiling import kernels_of

    overlaps, kept = {}, {}
    for name, call in calls.items():
        _meet()
        kernels = kernels_of(call)
        overlaps[name] = overlap_of(kernels).as_dict()
        if is_kept:
            kept[name] = {"spans": reduced(kernels), "longest": longest(kernels)}
    return {"overlap": overlaps} | ({"trace": kept} if is_kept else {})


def _meet() -> None:
    if get_tp_group().cpu_group.size() > 1:
        dist.barrier(group=get_tp_group().cpu_group)


def _progress(case: Case, figures: dict[str, Any]) -> str:
    """A line for whoever waits, which is left where a later case fails."""
    words = [f"{name} {min(times):.2f} ms" for name, times in figures["ms"].items()]
    for name, overlap in figures.get("overlap", {}).items():
        words.append(f"{name} exposes {overlap['exposed_us'] / 1e3:.2f} of {overlap['communication_us'] / 1e3:.2f} ms")
    for name, errors in figures.get("errors", {}).items():
        words.append(f"{name} errs by {max(errors):.1e}")
    return f"{case.name}: {', '.join(words)}"


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
