"""Makes or updates the virtual environment from the lock files; run by the Makefile with the base Python.

A lock is installed again only when its content or the Python changed: a stamp in the environment remembers a hash.
Standard library alone. Extra arguments for every pip call come from the environment variable PIP_ARGS.
"""

import argparse
import hashlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
LOCKS = Path(__file__).resolve().parent / "requirements"
# As pip 23 to 26 word it when no index and no --find-links has the version.
NOT_FOUND = "No matching distribution found for torch"
TORCH_MISSING = (
    "torch's CPU build ({requirement}) was not found in the configured package indexes; add PyTorch's own CPU wheel "
    'index, for example: make serve PIP_ARGS="--extra-index-url <PyTorch CPU index>"'
)


class InstallError(Exception):
    """The environment could not be made; the message says what to do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Bring the environment up to date with the named locks and this source tree."""
    parser = argparse.ArgumentParser(description="make or update the virtual environment")
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("locks", nargs="+", help="names in deploy/requirements, without .txt")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _raise_exit)
    try:
        Installer(options.venv.absolute(), shlex.split(os.environ.get("PIP_ARGS", ""))).run(options.locks)
    except InstallError as error:
        print(f"install: {error}", file=sys.stderr)
        return 1
    return 0


class Installer:
    """Works on one virtual environment."""

    def __init__(self, venv: Path, pip_args: Sequence[str], locks_dir: Path = LOCKS) -> None:
        self._venv = venv
        self._python = venv / "bin" / "python"
        self._pip_args = tuple(pip_args)
        self._locks_dir = locks_dir

    def run(self, lock_names: Sequence[str]) -> None:
        """Raises InstallError when any step fails; what was done stays done."""
        if not self._has_pip():
            self._make_venv()
        for name in lock_names:
            self._install_lock(self._locks_dir / f"{name}.txt")
        self._install_tree()

    def _has_pip(self) -> bool:
        """False also for an environment whose making was interrupted, or whose Python has gone."""
        if not self._python.exists():
            return False
        return (
            subprocess.run([self._python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
        )

    def _make_venv(self) -> None:
        print(f"Making {self._venv}", flush=True)
        if subprocess.run([sys.executable, "-m", "venv", "--clear", self._venv], check=False).returncode != 0:
            raise InstallError(f"{sys.executable} can't make a virtual environment; is its venv module installed?")

    def _install_lock(self, lock: Path) -> None:
        stamp, digest = self._stamp(lock.stem), _digest(lock.read_bytes())
        if stamp.exists() and stamp.read_text() == digest:
            return
        requirements = [line for line in lock.read_text().splitlines() if line and not line.startswith("#")]
        print(f"Installing {len(requirements)} packages of {lock.name} (minutes on first use)", flush=True)
        # First and alone: it is the one that the usual indexes lack, and worth knowing before all the others.
        for requirement in requirements:
            if requirement.startswith("torch=="):
                self._install_torch(requirement)
        self._pip(["--no-deps", "--requirement", str(lock)], f"the packages of {lock.name} could not be installed")
        stamp.write_text(digest)

    def _install_torch(self, requirement: str) -> None:
        try:
            self._pip(["--no-deps", requirement], f"{requirement} could not be installed")
        except PipFailed as failed:
            if NOT_FOUND in failed.output:
                raise InstallError(TORCH_MISSING.format(requirement=requirement)) from failed
            raise

    def _install_tree(self) -> None:
        stamp, digest = self._stamp("tree"), _digest((ROOT / "pyproject.toml").read_bytes())
        if stamp.exists() and stamp.read_text() == digest:
            return
        print("Installing tandem itself", flush=True)
        # Built with the locked setuptools: build isolation would fetch another one.
        arguments = ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
        self._pip(arguments, "tandem itself could not be installed")
        stamp.write_text(digest)

    def _stamp(self, name: str) -> Path:
        return self._venv / f".installed-{name}"

    def _pip(self, arguments: Sequence[str], failure: str) -> None:
        """Run ``pip install``, showing what it says; raises PipFailed with that."""
        options = ["--disable-pip-version-check", "--progress-bar=off", *self._pip_args]
        command = [str(self._python), "-m", "pip", "install", *options, *arguments]
        output: list[str] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    output.append(line)
                    if not line.startswith("Requirement already satisfied"):
                        print(line, end="", flush=True)
            except BaseException:
                process.terminate()  # a stopped install must not go on in the background
                raise
        if process.returncode != 0:
            raise PipFailed(f"{failure}; pip says why above", "".join(output))


class PipFailed(InstallError):
    """pip ended with an error; ``output`` is all that it said."""

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


def _digest(content: bytes) -> str:
    return hashlib.sha256(content + sys.version.encode()).hexdigest()


def _raise_exit(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
