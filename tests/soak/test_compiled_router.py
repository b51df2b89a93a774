"""The router's tests hold for its compiled form: what is compiled is what is tested."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The package must be told where its modules come from before the first of them is imported.
RUN = (
    "import sys\n"
    "from router.compiled import is_compiled, use_compiled\n"
    "use_compiled()\n"
    "assert is_compiled()\n"
    "import pytest\n"
    "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', *sys.argv[1:]]))"
)


@pytest.fixture(scope="module")
def environ() -> dict[str, str]:
    made = subprocess.run(
        [sys.executable, "-m", "router.compile"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    return os.environ | {"PYTHONPATH": str(ROOT), "TANDEM_COMPILED": "1"}


@pytest.mark.parametrize("folder", ["tests/unit/router", "tests/integration/router"])
def test_a_folder_of_tests_passes(environ: dict[str, str], folder: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", RUN, folder], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout[-4000:]
