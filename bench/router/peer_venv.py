"""The peers' own virtual environment: pinned versions, never the project's."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PINS = {"vllm-router": "0.1.17", "smg": "1.13.0"}
_VERSION = "from importlib import metadata; import sys; print(metadata.version(sys.argv[1]))"


def ensure(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Install those peers where they are missing; returns versions as installed.

    ``PIP_ARGS`` of the environment goes to pip, as in the Makefile.

    Raises:
        RuntimeError: pip could not install a peer; holds pip's words.
    """
    python = folder / "bin" / "python"
    if names and not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    for name in names:
        if _installed(python, name) != PINS[name]:
            _install(python, name)
    return {name: PINS[name] for name in names}


def _installed(python: Path, name: str) -> str | None:
    ended = subprocess.run([python, "-c", _VERSION, name], capture_output=True, text=True, check=False)
    return ended.stdout.strip() if ended.returncode == 0 else None


def _install(python: Path, name: str) -> None:
    options = ["--disable-pip-version-check", "--quiet", *shlex.split(os.environ.get("PIP_ARGS", ""))]
    command = [str(python), "-m", "pip", "install", *options, f"{name}=={PINS[name]}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"{name}=={PINS[name]} can't be installed: {ended.stderr.strip()}")
