"""The command ``tandem``: start a deployment, look at one, check a spec."""

import argparse
import asyncio
import io
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from deploy.console import Console
from deploy.ending import EXIT_FAILED, EXIT_UNUSABLE, LaunchFailed
from deploy.expand import DeploymentPlan, check_checkpoint, expand
from deploy.local import Launcher
from deploy.ports import PortTaken
from deploy.run_dir import AlreadyRunning
from deploy.spec import DeploymentSpec
from deploy.spec_file import DEFAULT_SPEC, SpecError, load_spec
from deploy.status import StatusError, fetch_status, read_addresses

EPILOG = "Exit codes: 0 done or stopped as asked, 1 failed or not ready, 2 can't be used as written (the key is named)."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a log line must not fail on a terminal that can't show it
    options = build_parser().parse_args(argv)
    try:
        return int(options.run(options))
    except LaunchFailed as failure:
        print(f"tandem: {failure}", file=sys.stderr)
        return failure.exit_code
    except (SpecError, PortTaken) as error:
        print(f"tandem: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    except (AlreadyRunning, StatusError, OSError) as error:
        print(f"tandem: {error}", file=sys.stderr)
        return EXIT_FAILED


def build_parser() -> argparse.ArgumentParser:
    """The command line with its help."""
    parser = argparse.ArgumentParser(prog="tandem", description=__doc__, epilog=EPILOG)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="start a deployment on this machine and keep it running", epilog=EPILOG)
    _add_spec_options(up)
    up.add_argument("--verbose", action="store_true", help="also show what the processes write to their logs")
    up.set_defaults(run=_up)

    check = commands.add_parser("check", help="check a spec and show what it would start", epilog=EPILOG)
    _add_spec_options(check)
    check.set_defaults(run=_check)

    status = commands.add_parser("status", help="ask a router whether it is ready, and with which workers")
    _add_spec_options(status)
    status.add_argument(
        "--router", metavar="URL", help="default: that of the deployment that `tandem up` with this spec started here"
    )
    status.set_defaults(run=_status)
    return parser


def _add_spec_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--spec", type=Path, metavar="FILE", default=DEFAULT_SPEC, help="default: %(default)s")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override one key of the spec, for example --set decode.replicas=2; may be repeated",
    )
    parser.add_argument("--port", type=int, help="port of the router; short for --set router.port=PORT")


def _spec(options: argparse.Namespace) -> DeploymentSpec:
    overrides = list(options.overrides)
    if options.port is not None:
        overrides.append(f"router.port={options.port}")
    return load_spec(options.spec, overrides)


def _plan(options: argparse.Namespace) -> DeploymentPlan:
    spec = _spec(options)
    check_checkpoint(spec)
    return expand(spec, os.environ, random.Random())


def _up(options: argparse.Namespace) -> int:
    plan = _plan(options)
    console = Console(sys.stdout, time.monotonic)

    async def launch() -> int:
        return await Launcher(plan, console, os.environ, is_verbose=options.verbose).run()

    return asyncio.run(launch())


def _check(options: argparse.Namespace) -> int:
    plan = _plan(options)
    print(f"{options.spec} is right. It starts, with a free port for each 'auto':")
    for process in plan.processes:
        print(f"  {process.name:<12} {process.url}   {' '.join(process.command)}")
        for key, value in sorted(process.env.items()):
            print(f"  {'':<12}   {key}={value}")
    return 0


def _status(options: argparse.Namespace) -> int:
    if options.router is None:
        router_url, control_url = read_addresses(_spec(options).run_dir)
    else:
        router_url = control_url = options.router.rstrip("/")
    report, is_ready = fetch_status(router_url, control_url, os.environ)
    print(report)
    return 0 if is_ready else EXIT_FAILED
