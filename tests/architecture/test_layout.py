"""The shape of the tree: a folder is a noun of the system, files are short, package files say what the package is."""

import ast
import subprocess
from pathlib import Path

import pytest

from tests.architecture.tree import PACKAGES, ROOT, all_test_files, parse, source_files

MAX_LINES = 300
OTHER_FOLDERS = {".ci", "docs", "tests", "helm"}
ROOT_FILES = {
    ".gitignore",
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "pyproject.toml",
}
VAGUE_NAMES = {"common", "util", "utils", "helpers", "misc"}


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(line) for line in listed.splitlines()]


def test_the_tree_is_there() -> None:
    assert len(source_files()) > 50


def test_top_level_folders_are_the_known_nouns() -> None:
    folders = {path.parts[0] for path in tracked_files() if len(path.parts) > 1}
    assert folders <= {*PACKAGES, *OTHER_FOLDERS}


def test_no_stray_file_lies_at_the_top() -> None:
    assert {path.name for path in tracked_files() if len(path.parts) == 1} <= ROOT_FILES


@pytest.mark.parametrize("path", [*source_files(), *all_test_files()], ids=str)
def test_a_file_is_short_enough_to_hold_one_job(path: Path) -> None:
    assert len((ROOT / path).read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("path", source_files(), ids=str)
def test_a_file_has_a_telling_name_and_says_what_it_owns(path: Path) -> None:
    assert path.stem not in VAGUE_NAMES
    assert ast.get_docstring(parse(path))


@pytest.mark.parametrize("path", [path for path in source_files() if path.name == "__init__.py"], ids=str)
def test_a_package_file_holds_a_docstring_and_nothing_else(path: Path) -> None:
    assert len(parse(path).body) == 1


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_is_installed_with_the_distribution(package: str) -> None:
    assert (ROOT / package / "__init__.py").is_file()
