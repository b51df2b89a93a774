"""The result as tables for readers. Pure."""

from collections.abc import Sequence
from typing import Any

from bench.prefill.case import DBO, PLAIN, SP, SP_DBO, WAYS, Case, as_worst, tokens_text
from bench.prefill.links import ATTAINED, K3_SPEEDUP, K3_TOKENS, MACHINES, predictions
from bench.prefill.must import Verdict, ceiling, gain, hidden_of_plain


def times(result: dict[str, Any]) -> str:
    """Markdown: ms of each way, and of each split way its gain over plain."""
    others = [way for way in WAYS if way != PLAIN]
    head = ["case", *(["TP"] if result["is_alone"] else []), *(f"{way}, ms" for way in WAYS), "rounds"]
    head += [f"{way}: saves" for way in others]
    lines = _head(head)
    for case in result["cases"]:
        cells = [name_of(case), *([str(case["tp_size"])] if result["is_alone"] else [])]
        cells += [f"{case['median_ms'][way]:.2f}" for way in WAYS] + [str(case["rounds"])]
        lines.append(_row(cells + [f"{gain(case, way):.1%}" for way in others]))
    return "\n".join(lines)


def overlaps(result: dict[str, Any]) -> str:
    """Markdown: what each way communicates and exposes in one step, and the ceiling."""
    shown = [case for case in result["cases"] if "overlap" in case]
    head = ["case", "ceiling", *(f"{way}: communication / exposed / idle, ms" for way in WAYS)]
    head += [f"{way}: hides of plain's" for way in (DBO, SP, SP_DBO)]
    lines = _head(head)
    for case in shown:
        cells = [name_of(case), f"{ceiling(case):.1%}"]
        for way in WAYS:
            one = case["overlap"][way]
            cells.append(" / ".join(f"{one[key] / 1e3:.2f}" for key in ("communication_us", "exposed_us", "idle_us")))
        lines.append(_row(cells + [f"{hidden_of_plain(case, way):.0%}" for way in (DBO, SP, SP_DBO)]))
    return "\n".join(lines)


def compute(result: dict[str, Any]) -> str:
    """Markdown: of a rank alone, how long its kernels take and how long the GPU waits for its host in one step."""
    lines = _head(["case", "TP", *(f"{way}: kernels / idle, ms" for way in WAYS)])
    for case in result["cases"]:
        figures = [case["overlap"][way] for way in WAYS]
        cells = [f"{one['compute_us'] / 1e3:.2f} / {one['idle_us'] / 1e3:.2f}" for one in figures]
        lines.append(_row([name_of(case), str(case["tp_size"]), *cells]))
    return "\n".join(lines)


def errors(result: dict[str, Any]) -> str:
    """Markdown: of each way the relative errors of what each layer adds, and the worst distance from plain."""
    others = [way for way in WAYS if way != PLAIN]
    lines = _head(["case", *others, *(f"{way}: from plain" for way in others)])
    for case in result["cases"]:
        if "errors" in case:
            cells = [" ".join(f"{error:.1e}" for error in case["errors"][way]) for way in others]
            cells += [f"{max(case['from_plain'][way], key=as_worst):.1e}" for way in others]
            lines.append(_row([name_of(case), *cells]))
    return "\n".join(lines)


def model(result: dict[str, Any]) -> str:
    """Markdown: the model of other machines, with what it assumes and facts K3 beside it."""
    links = "; ".join(
        f"{machine.name} {machine.link_gb_per_s:g} GB/s out of a GPU{' to each peer' if machine.is_mesh else ''}"
        for machine in MACHINES
    )
    lines = [
        f"A model, not a measurement. Links by data sheet ({links}), {ATTAINED:.0%} of that attained. Compute is what "
        "kernels take on an H200 without gaps, on other machines divided by the ratio of 16-bit matrix rates or of "
        "memory bandwidths. With DBO all but a step's last collective is under compute as far as that is longer.",
        "",
        *_head(
            ["machine", "TP", "tokens", "compute scaled by", *(f"{way}, ms" for way in WAYS), "SP + DBO", "facts K3"]
        ),
    ]
    for one in predictions(result):
        is_k3 = (one.machine, one.tp_size) == ("MI355X", 4) and one.num_tokens >= K3_TOKENS
        published = f"{K3_SPEEDUP[0]}-{K3_SPEEDUP[1]}x, with rows for transfers" if is_k3 else ""
        cells = [one.machine, str(one.tp_size), tokens_text(one.num_tokens), one.scaled_by]
        cells += [f"{one.ms[way]:.2f}" for way in WAYS] + [f"{one.speedup(SP_DBO):.2f}x", published]
        lines.append(_row(cells))
    return "\n".join(lines)


def heading(result: dict[str, Any]) -> str:
    """The command, the commit, the machine, the versions and what the environment set."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    settings = ", ".join(f"{name}={value}" for name, value in result["settings"].items())
    return f"`{result['command']}` at {result['commit']}\n\n{result['hardware']}; {versions}" + (
        f"; {settings}" if settings else ""
    )


def text_of(result: dict[str, Any]) -> str:
    """All tables that the result has figures for."""
    parts = [heading(result), f"## Medians\n\n{times(result)}"]
    if not result["is_alone"] and any("overlap" in case for case in result["cases"]):
        parts.append(f"## One traced step, means over ranks\n\n{overlaps(result)}")
    if any("errors" in case for case in result["cases"]):
        parts.append(
            f"## Relative error of each layer beside plain, rounded to MXFP8 where SP exchanges\n\n{errors(result)}"
        )
    if result["is_alone"] and all("overlap" in case for case in result["cases"]):
        parts.append(f"## One traced step\n\n{compute(result)}")
    if result["is_alone"] and result["device"] == "cuda" and not result["is_small"]:
        parts.append(f"## Model of other groups and machines\n\n{model(result)}")
    return "\n\n".join(parts)


def judged(found: Sequence[Verdict]) -> str:
    """One line for each demand: how many cases keep it and the case that is nearest to its limit, or past it."""
    lines = []
    for demand in dict.fromkeys(verdict.demand for verdict in found):
        of_demand = [verdict for verdict in found if verdict.demand == demand]
        is_upper = demand.startswith(("times", "relative error"))
        worst = (max if is_upper else min)(of_demand, key=lambda verdict: verdict.measured)
        num_met = sum(verdict.is_met for verdict in of_demand)
        state = "pass" if num_met == len(of_demand) else "FAIL"
        bound = "at most" if is_upper else "at least"
        lines.append(
            f"{state}: {demand} {bound} {worst.limit:g}: {num_met} of {len(of_demand)} cases; "
            f"worst {worst.measured:g} ({worst.case})"
        )
    return "\n".join(lines)


def name_of(case: dict[str, Any]) -> str:
    return Case(case["num_layers"], case["num_tokens"], case["step_tokens"]).name


def _head(cells: Sequence[str]) -> list[str]:
    return [_row(cells), "|---" * len(cells) + "|"]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
