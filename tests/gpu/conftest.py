"""What needs CUDA devices: run by `make gpu-check` only."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def enough_gpus(request: pytest.FixtureRequest) -> None:
    """Fails, rather than skips: a check that did not run is no check. Tests marked ``one_gpu`` need one, others two."""
    import torch

    needed = 1 if request.node.get_closest_marker("one_gpu") else 2
    assert torch.cuda.device_count() >= needed, f"{needed} CUDA devices are needed"
