"""Installing: what is missing is said in one sentence, and nothing is installed twice."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.install import Installer, InstallError, PipFailed

WHEEL = "tiny-1.0-py3-none-any.whl"


def build_tiny_wheel(folder: Path) -> None:
    """A package without content, for a lock that installs without any index."""
    program = (
        "import sys, zipfile\n"
        "with zipfile.ZipFile(sys.argv[1], 'w') as wheel:\n"
        "    info = 'tiny-1.0.dist-info/'\n"
        "    wheel.writestr('tiny.py', '')\n"
        "    wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n')\n"
        "    wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n"
        "    wheel.writestr(info + 'RECORD', '')\n"
    )
    subprocess.run([sys.executable, "-c", program, str(folder / WHEEL)], check=True)


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", path], check=True)
    return path


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip sees only the wheels in the returned folder."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    return wheels


def installer(venv: Path, locks: Path, wheels: Path, *pip_args: str) -> Installer:
    return Installer(venv, ["--no-index", "--find-links", str(wheels), *pip_args], locks)


def test_a_missing_cpu_build_of_torch_is_said_in_one_sentence_before_the_rest(
    venv: Path, offline: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "cpu.txt"
    lock.write_text("# comment\ntiny==1.0\ntorch==2.13.0+cpu\n")
    build_tiny_wheel(offline)
    with pytest.raises(InstallError) as caught:
        installer(venv, tmp_path, offline)._install_lock(lock)
    assert str(caught.value) == (
        "torch's CPU build (torch==2.13.0+cpu) was not found in the configured package indexes; add PyTorch's own CPU "
        'wheel index, for example: make serve PIP_ARGS="--extra-index-url <PyTorch CPU index>"'
    )
    assert "tiny" not in capfd.readouterr().out


def test_another_missing_package_is_not_blamed_on_torch(venv: Path, offline: Path, tmp_path: Path) -> None:
    lock = tmp_path / "dev.txt"
    lock.write_text("nowhere==9.9\n")
    with pytest.raises(PipFailed, match=r"the packages of dev.txt could not be installed; pip says why above"):
        installer(venv, tmp_path, offline)._install_lock(lock)


def test_a_lock_is_installed_once_and_again_only_when_it_changes(
    venv: Path, offline: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "tiny.txt"
    lock.write_text("tiny==1.0\n")
    build_tiny_wheel(offline)
    runs = []
    for content in ("tiny==1.0\n", "tiny==1.0\n", "# changed\ntiny==1.0\n"):
        lock.write_text(content)
        installer(venv, tmp_path, offline)._install_lock(lock)
        runs.append("Installing 1 packages of tiny.txt" in capfd.readouterr().out)
    assert runs == [True, False, True]


def test_a_failed_install_leaves_no_stamp(venv: Path, offline: Path, tmp_path: Path) -> None:
    lock = tmp_path / "broken.txt"
    lock.write_text("nowhere==9.9\n")
    for _ in range(2):
        with pytest.raises(PipFailed):
            installer(venv, tmp_path, offline)._install_lock(lock)


def test_pip_args_reach_pip(venv: Path, offline: Path, tmp_path: Path) -> None:
    with pytest.raises(PipFailed) as caught:
        installer(venv, tmp_path, offline, "--no-such-option")._pip(["tiny"], "failed")
    assert "no such option: --no-such-option" in caught.value.output


def test_an_environment_whose_making_was_interrupted_is_made_again(tmp_path: Path) -> None:
    broken = tmp_path / "venv"
    (broken / "bin").mkdir(parents=True)
    (broken / "bin" / "python").symlink_to("/no/such/python")
    made = Installer(broken, [])
    assert not made._has_pip()
    made._make_venv()
    assert made._has_pip()
