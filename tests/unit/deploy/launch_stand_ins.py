"""Runs ``tandem up`` over stand-in processes, as a process of its own that tests can signal and kill.

Usage: launch_stand_ins.py STATE_DIR ROLE=BEHAVIOUR,BEHAVIOUR ... [--set KEY=VALUE ...]
"""

import argparse
import functools
import sys
from pathlib import Path

import deploy.cli
from deploy.expand import expand

STAND_IN = (sys.executable, str(Path(__file__).with_name("stand_in.py")))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("state_dir")
    parser.add_argument("behaviours", nargs="*")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    options = parser.parse_args()
    behaviours = dict(item.split("=") for item in options.behaviours)
    commands = {role: (*STAND_IN, behaviours.get(role, "normal")) for role in ("router", "prefill", "decode")}
    deploy.cli.expand = functools.partial(expand, commands=commands)  # type: ignore[attr-defined]
    model = Path(options.state_dir) / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text("{}")
    overrides = [f"state_dir={options.state_dir}", f"model={model}", "router.port=auto"]
    return deploy.cli.main(["up", *(f"--set={override}" for override in [*overrides, *options.overrides])])


if __name__ == "__main__":
    sys.exit(main())
