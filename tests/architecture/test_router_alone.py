"""The base installation, router and launcher, runs without torch, vLLM, NIXL or Ray."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.tree import PACKAGES, ROOT

LOCK = ROOT / "deploy" / "requirements" / "router.txt"
PIP_ARGS = shlex.split(os.environ.get("PIP_ARGS", ""))
START_LIMIT_S = 20.0
STOP_LIMIT_S = 20.0


@pytest.fixture(scope="module")
def router_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment that holds router.txt and the distribution's wheel alone."""
    folder = tmp_path_factory.mktemp("router-alone")
    venv, wheels = folder / "venv", folder / "wheels"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(copy_of_sources(folder / "tree")))
    (wheel,) = wheels.iterdir()
    python = venv / "bin" / "python"
    pip("install", "--no-deps", "--requirement", str(LOCK), str(wheel), python=python)
    return python


def copy_of_sources(target: Path) -> Path:
    """What the wheel is built from: building in the tree itself would leave files in it."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target / name)
    return target


def pip(verb: str, *arguments: str, python: Path | None = None) -> None:
    command = [sys.executable, "-m", "pip", *(("--python", str(python)) if python else ())]
    options = ["--disable-pip-version-check", "--quiet", *PIP_ARGS]
    ended = subprocess.run([*command, verb, *options, *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def run(python: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([python, "-P", *arguments], capture_output=True, text=True, cwd=python.parent, check=False)


@pytest.mark.parametrize("library", ["torch", "vllm", "nixl", "ray", "transformers", "numpy"])
def test_a_heavy_library_is_not_there(router_python: Path, library: str) -> None:
    tried = run(router_python, "-c", f"import {library}")
    assert f"No module named '{library}'" in tried.stderr


def test_every_requirement_of_the_base_distribution_is_met_by_the_lock(router_python: Path) -> None:
    program = (
        "from importlib import metadata\n"
        "import re\n"
        "for line in metadata.requires('tandem-serve'):\n"
        "    if 'extra ==' not in line:\n"
        "        name = re.match('[A-Za-z0-9._-]+', line).group()\n"
        "        print(name, metadata.version(name))\n"
    )
    listed = run(router_python, "-c", program)
    assert listed.returncode == 0, listed.stderr
    assert len(listed.stdout.splitlines()) >= 8


def test_the_launcher_checks_the_shipped_spec_there(router_python: Path) -> None:
    checked = run(router_python, "-m", "deploy", "check", "--set", "router.port=auto")
    assert checked.returncode == 0, checked.stderr
    assert "decode_worker" in checked.stdout


@pytest.fixture
def router_url(router_python: Path, tmp_path: Path) -> Iterator[str]:
    """A router in that environment; it must end with 0 on SIGTERM."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    config = tmp_path / "router.json"
    config.write_text(json.dumps({"host": "127.0.0.1", "port": port}))
    log = tmp_path / "router.log"
    with log.open("wb") as stream:
        command = [str(router_python), "-P", "-m", "router", "--config", str(config)]
        process = subprocess.Popen(command, stdout=stream, stderr=stream, cwd=tmp_path)
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", process, log)
        yield f"http://127.0.0.1:{port}"
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_LIMIT_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def wait_until_healthy(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    give_up_at = time.monotonic() + START_LIMIT_S
    while time.monotonic() < give_up_at and process.poll() is None:
        if status_of(f"{url}/health") == 200:
            return
        time.sleep(0.05)
    pytest.fail(f"the router never was healthy:\n{log.read_text()}")


def status_of(url: str) -> int | None:
    """None while nothing listens there."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except urllib.error.URLError:
        return None


def test_it_serves_there_and_is_not_ready_without_workers(router_url: str) -> None:
    assert status_of(f"{router_url}/health") == 200
    assert status_of(f"{router_url}/ready") == 503
    assert status_of(f"{router_url}/metrics") == 200
