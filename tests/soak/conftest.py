"""Long forms: each starts deployments of its own."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.stack import build_checkpoint


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.soak)


NOTES: list[str] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the tests have measured stands in the log, also where all of them passed."""
    for line in NOTES:
        terminalreporter.write_line(line)


@pytest.fixture
def note() -> Callable[[str], None]:
    """Puts a line under the session's report."""
    return NOTES.append


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("state"))
