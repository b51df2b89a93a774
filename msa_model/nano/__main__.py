"""``python -m msa_model.nano OUT [--seed N] [--dtype float32]``: build the nano checkpoint, unless it is there.

``--projections mxfp8`` and ``--dense-layers N`` make other forms of it, as published (fact M6) and as M3 is made up.
"""

import argparse
import sys
from pathlib import Path

from msa_model.nano.checkpoint import DTYPES, build_checkpoint
from msa_model.nano.config import NUM_LAYERS, Form


def main(arguments: list[str] | None = None) -> int:
    """Parse, build, say what happened; 2 if the folder can't be used."""
    parser = argparse.ArgumentParser(prog="python -m msa_model.nano", description=__doc__)
    parser.add_argument("out", type=Path, help="checkpoint folder to create or refresh")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32")
    parser.add_argument("--projections", choices=["plain", "mxfp8"], default="plain", help="how these are stored")
    parser.add_argument(
        "--dense-layers", type=int, choices=range(NUM_LAYERS), default=0, help="first layers without an index branch"
    )
    options = parser.parse_args(arguments)
    form = Form(projections=options.projections, dense_layers=options.dense_layers)
    try:
        is_new = build_checkpoint(options.out, seed=options.seed, dtype=options.dtype, form=form)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{options.out}: {'built' if is_new else 'up to date'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
