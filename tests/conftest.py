"""What every test session needs."""

import gc
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A busy machine is no failure, and every run tries the same examples.
settings.register_profile("tandem", deadline=None, derandomize=True)
settings.load_profile("tandem")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Keep the garbage collector out of property tests.

    hypothesis parses source, and CPython 3.11 fails with "AST constructor recursion depth mismatch" when a collection
    runs Python code (a finalizer of what earlier tests left) inside the parser.
    """
    if item.get_closest_marker("hypothesis") is None:
        return (yield)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of earlier tests: not this one's failure
        gc.collect()
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
