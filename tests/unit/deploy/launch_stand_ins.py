"""Runs the real launcher over stand-in processes, as a process of its own that tests can signal and kill.

Usage: launch_stand_ins.py STATE_DIR ROLE=BEHAVIOUR,BEHAVIOUR ... [--set KEY=VALUE ...]
"""

import argparse
import asyncio
import os
import random
import sys
import time
from pathlib import Path

from deploy.console import Console
from deploy.expand import expand
from deploy.local import Launcher, LaunchFailed
from deploy.spec_file import DEFAULT_SPEC, load_spec

STAND_IN = (sys.executable, str(Path(__file__).with_name("stand_in.py")))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("state_dir")
    parser.add_argument("behaviours", nargs="*")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    options = parser.parse_args()
    fixed = [f"state_dir={options.state_dir}", "model=/no/checkpoint/needed", "router.port=auto"]
    spec = load_spec(DEFAULT_SPEC, [*fixed, *options.overrides])
    behaviours = dict(item.split("=") for item in options.behaviours)
    commands = {
        role: (*STAND_IN, *behaviours.get(role, "normal").split(",")) for role in ("router", "prefill", "decode")
    }
    plan = expand(spec, os.environ, random.Random(), commands)
    try:
        return asyncio.run(_launch(Launcher(plan, Console(sys.stdout, time.monotonic), os.environ)))
    except LaunchFailed as failure:
        print(failure)
        return failure.exit_code


async def _launch(launcher: Launcher) -> int:
    return await launcher.run()


if __name__ == "__main__":
    sys.exit(main())
