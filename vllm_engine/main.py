"""The command line that both roles share: read the config, set the environment, then import vLLM and serve."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pydantic import ValidationError

from vllm_engine.args import vllm_env
from wire.worker import WorkerRole
from wire.worker_config import WorkerConfig

EXIT_CONFIG = 2  # the launcher does not restart a worker that can't start


def main(role: WorkerRole, role_args: Sequence[str]) -> None:
    """Run one worker of ``role``; exits with 2 and the key's name when its configuration is wrong."""
    parser = argparse.ArgumentParser(prog=f"{role.value}_worker", description=f"tandem {role.value} worker")
    parser.add_argument("--config", type=Path, required=True, help="JSON file with a WorkerConfig")
    path: Path = parser.parse_args().config
    try:
        config = WorkerConfig.model_validate_json(path.read_bytes())
        if config.role is not role:
            raise ValueError(f"role: this is the {role.value} worker, the configuration is for {config.role.value}")
    except ValidationError as e:
        lines = [f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in e.errors(include_url=False)]
        _refuse(path, "\n  ".join(lines))
    except (OSError, ValueError) as e:
        _refuse(path, str(e))
    # Before vLLM is imported: it reads its environment once. What the user set stays.
    for name, value in vllm_env(config).items():
        os.environ.setdefault(name, value)
    from vllm_engine.server import run

    run(config, role_args)


def _refuse(path: Path, reason: str) -> NoReturn:
    print(f"{path}: wrong worker configuration:\n  {reason}", file=sys.stderr)
    raise SystemExit(EXIT_CONFIG)
