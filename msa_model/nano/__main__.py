"""``python -m msa_model.nano OUT [--seed N] [--dtype float32]``: build the nano checkpoint, unless it is there."""

import argparse
import sys
from pathlib import Path

from msa_model.nano.checkpoint import DTYPES, build_checkpoint


def main(arguments: list[str] | None = None) -> int:
    """Parse, build, say what happened; 2 if the folder can't be used."""
    parser = argparse.ArgumentParser(prog="python -m msa_model.nano", description=__doc__)
    parser.add_argument("out", type=Path, help="checkpoint folder to create or refresh")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32")
    options = parser.parse_args(arguments)
    try:
        is_new = build_checkpoint(options.out, seed=options.seed, dtype=options.dtype)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{options.out}: {'built' if is_new else 'up to date'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
