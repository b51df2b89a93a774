"""One running stack and one plain engine for the whole session."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests import legs
from tests.stack import (
    MODEL,
    Stack,
    build_checkpoint,
    free_port,
    openai_client,
    running_engine,
    running_stack,
    wait_until_ok,
)

# Holds the longest prompt here, and a KV space of one such context is quickly full (test_unequal_tp).
MAX_MODEL_LEN = 3200


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def other_prefill_port() -> int:
    """Side channel of a prefill worker that a test may start beside the stack; the stack's decode reads from it."""
    return free_port()


@pytest.fixture(scope="session")
def running(
    checkpoint: Path, other_prefill_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Stack, str]]:
    """The stack and the plain engine, loading at the same time: one after the other would cost another half minute."""
    logs = tmp_path_factory.mktemp("logs")
    overrides = (
        f"engine.max_model_len={MAX_MODEL_LEN}",
        f"kv_transfer.extra_peers=[127.0.0.1:{other_prefill_port}]",
    )
    with (
        running_engine(checkpoint, logs / "single.log") as (url, process),
        running_stack(checkpoint, logs / "stack.log", *overrides) as stack,
    ):
        wait_until_ok(f"{url}/health", process, logs / "single.log")
        yield stack, url


@pytest.fixture(scope="session")
def stack(running: tuple[Stack, str]) -> Stack:
    return running[0]


@pytest.fixture(scope="session")
def single(running: tuple[Stack, str]) -> Iterator[OpenAI]:
    """A client of the plain engine."""
    with openai_client(running[1]) as client:
        yield client


@pytest.fixture
def nothing_is_left(stack: Stack) -> Iterator[None]:
    """After the test each lease of the stack has been given back, not by time-out, and the next request works."""
    yield
    for role in ("prefill", "decode"):
        assert legs.no_lease_within(stack.worker(role), 2), f"a lease is left on {role}"
    prompt = [300 + number for number in range(40)]
    answer = stack.client.completions.create(model=MODEL, prompt=prompt, max_tokens=2, temperature=0)
    assert answer.choices[0].finish_reason == "length"
