"""Results of a run as its file holds them."""

from typing import Any

from bench.prefill.case import CHUNK, DBO, LAYERS, PLAIN, PROMPTS, SP, SP_DBO, Case, cases

# Microseconds a token and layer: of communication, of it exposed, and of the whole step.
US = {PLAIN: (0.1, 0.1, 1.0), DBO: (0.12, 0.02, 0.93), SP: (0.08, 0.08, 0.97), SP_DBO: (0.1, 0.01, 0.92)}


def figures_of(case: Case, tp_size: int = 2) -> dict[str, Any]:
    tokens = case.num_tokens * case.num_layers
    return {
        "num_layers": case.num_layers,
        "num_tokens": case.num_tokens,
        "step_tokens": case.step_tokens,
        "tp_size": tp_size,
        "rounds": 5,
        "median_ms": {way: step * tokens / 1e3 for way, (_, _, step) in US.items()},
        "errors": {way: [0.01] * case.num_layers for way in (DBO, SP, SP_DBO)},
        "from_plain": {way: [0.06] * case.num_layers for way in (DBO, SP, SP_DBO)},
        "overlap": {
            way: {
                "step_us": step * tokens,
                "communication_us": sent * tokens,
                "compute_us": (step - exposed) * tokens,
                "exposed_us": exposed * tokens,
                "idle_us": 0.0,
                "hidden": 1 - exposed / sent,
            }
            for way, (sent, exposed, step) in US.items()
        },
    }


def good_result() -> dict[str, Any]:
    return {
        "command": "python -m bench.prefill",
        "commit": "c0ffee",
        "device": "cuda",
        "hardware": "2 GPUs",
        "versions": {"torch": "2.11"},
        "settings": {},
        "tp_size": 2,
        "is_alone": False,
        "is_small": False,
        "cases": [figures_of(case) for case in cases(LAYERS, PROMPTS, CHUNK)],
    }
