"""The source tree as the architecture tests see it."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "wire",
    "router",
    "prefill_worker",
    "decode_worker",
    "vllm_engine",
    "msa_model",
    "kv_transfer",
    "deploy",
    "bench",
)


def source_files() -> list[Path]:
    """Every Python file of the product, relative to the root."""
    return sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def all_test_files() -> list[Path]:
    """Every Python file of the tests, relative to the root."""
    return sorted(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py"))


def parse(path: Path) -> ast.Module:
    """The syntax tree of a file given relative to the root."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=str(path))


def imported_modules(module: ast.Module) -> set[str]:
    """Full names of the modules that a file imports, at the top or inside functions."""
    names: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
    return names
