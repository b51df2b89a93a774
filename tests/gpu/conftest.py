"""What needs CUDA devices: run by `make gpu-check` only."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session", autouse=True)
def two_gpus() -> None:
    """Fails, rather than skips: a check that did not run is no check."""
    import torch

    assert torch.cuda.device_count() >= 2, "two CUDA devices are needed"
