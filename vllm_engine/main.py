"""The command line that both roles share: read the config, set the environment, then import vLLM and serve."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from pydantic import ValidationError

from kv_transfer.side_channel import UnsafeSideChannel, check_secrecy
from kv_transfer.transport import prepare_env
from vllm_engine.args import vllm_env
from vllm_engine.connector_check import WrongEngine
from vllm_engine.identity import RegistrationRefused, WorkerIdentity, WrongIdentity, check_with_router
from vllm_engine.model_check import WrongModel, check_checkpoint
from vllm_engine.ports import EXIT_PORT, PortUnusable, check_ports
from wire.worker import WorkerRole
from wire.worker_config import EXIT_CONFIG, EXIT_REASON_PREFIX, WorkerConfig


def main(role: WorkerRole, role_args: Sequence[str]) -> None:
    """Run one worker of ``role``; exits with 78 and the reason when it can't serve as configured, with 1 and the port's
    number when that can't be listened on.
    """
    parser = argparse.ArgumentParser(prog=f"{role.value}_worker", description=f"tandem {role.value} worker")
    parser.add_argument("--config", type=Path, required=True, help="JSON file with a WorkerConfig")
    path: Path = parser.parse_args().config
    try:
        config = WorkerConfig.model_validate_json(path.read_bytes())
        if config.role is not role:
            raise ValueError(f"role: this is the {role.value} worker, the configuration is for {config.role.value}")
    except ValidationError as e:
        lines = [f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in e.errors(include_url=False)]
        _refuse(path, "; ".join(lines))
    except (OSError, ValueError) as e:
        _refuse(path, str(e))
    try:
        identity = WorkerIdentity.create(config, os.environ)
        check_secrecy(config.kv_transfer.host, identity.token)
        check_ports([(config.host, config.port), (config.kv_transfer.host, config.kv_transfer.port)])
        check_checkpoint(config)
        check_with_router(config, identity)
        with TemporaryDirectory(prefix="tandem-ucx-") as ucx_logs:
            # Before vLLM and NIXL are imported: they read their environment once. What the user set stays.
            for name, value in vllm_env(config).items():
                os.environ.setdefault(name, value)
            prepare_env(os.environ, Path(ucx_logs))
            from vllm_engine.server import run

            run(config, identity, role_args)
    except (RegistrationRefused, UnsafeSideChannel, WrongEngine, WrongIdentity, WrongModel) as e:
        _end(str(e))
    except PortUnusable as e:
        print(f"{role.value}_worker: {e}", file=sys.stderr, flush=True)
        raise SystemExit(EXIT_PORT) from None


def _refuse(path: Path, reason: str) -> NoReturn:
    _end(f"{path}: wrong worker configuration: {reason}")


def _end(reason: str) -> NoReturn:
    print(f"{EXIT_REASON_PREFIX}{' '.join(reason.split())}", file=sys.stderr, flush=True)
    raise SystemExit(EXIT_CONFIG)
