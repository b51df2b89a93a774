"""A compiled form is used for the very sources that it was made of, and for no others."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from router import compiled
from router.compile import HOT

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
ASK = (
    "import sys; sys.prefix = sys.argv[1]\n"
    "from router.compiled import is_compiled, use_compiled\n"
    "use_compiled()\n"
    "import router.body\n"
    "print(is_compiled(), router.body.__file__)"
)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "sources" / "router"
    folder.mkdir(parents=True)
    for name in ("__init__", "compiled", "body"):
        (folder / f"{name}.py").write_bytes((compiled.SOURCES / f"{name}.py").read_bytes())
    (folder / "body.py").write_text("KIND = 'source'\n")
    return folder


def make_form(sources: Path, prefix: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Something where the compiled form of ``sources`` would be."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "prefix", str(prefix))
        form = compiled.form_of(sources)
    form.mkdir(parents=True)
    for path in sources.glob("*.py"):
        (form / path.name).write_bytes(path.read_bytes())
    (form / f"body{SUFFIX}.marker").touch()
    (form / f"x{SUFFIX}").touch()
    return form


def ask(sources: Path, prefix: Path, **environ: str) -> list[str]:
    """Whether it is compiled, and where a module comes from, in a process of its own."""
    ended = subprocess.run(
        [sys.executable, "-P", "-S", "-c", ASK, str(prefix)],
        env={"PYTHONPATH": str(sources.parent)} | environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.split()


def test_modules_come_from_the_compiled_form(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form = make_form(sources, tmp_path, monkeypatch)
    assert ask(sources, tmp_path) == ["True", str(form / "body.py")]


def test_the_switch_keeps_to_the_sources(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_form(sources, tmp_path, monkeypatch)
    assert ask(sources, tmp_path, TANDEM_COMPILED="0") == ["False", str(sources / "body.py")]


@pytest.mark.parametrize("change", ["edited", "added", "removed"])
def test_a_form_of_other_sources_is_not_used(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    (sources / "other.py").write_text("")
    make_form(sources, tmp_path, monkeypatch)
    if change == "edited":
        (sources / "body.py").write_text("KIND = 'edited'\n")
    elif change == "added":
        (sources / "new.py").write_text("")
    else:
        (sources / "other.py").unlink()
    assert ask(sources, tmp_path) == ["False", str(sources / "body.py")]


def test_without_a_form_the_sources_are_used(sources: Path, tmp_path: Path) -> None:
    assert ask(sources, tmp_path) == ["False", str(sources / "body.py")]


def test_all_that_is_to_be_compiled_exists() -> None:
    assert len(set(HOT)) == len(HOT)
    assert all((compiled.SOURCES / f"{name}.py").is_file() for name in HOT)
