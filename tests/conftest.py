"""What every test session needs."""

import gc
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import settings

# A busy machine is no failure, and every run tries the same examples.
settings.register_profile("tandem", deadline=None, derandomize=True)
settings.load_profile("tandem")


def interpret_kernels() -> None:
    """Have kernels run in Triton's interpreter.

    Decided when Triton and what uses it are imported, so it must come before any other conftest (hooks come later).
    Not left in the environment, which the engines that tests start would inherit.
    """
    os.environ["TRITON_INTERPRET"] = "1"
    with suppress(ImportError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from triton import knobs

        knobs.propagate_env = False
        knobs.runtime.interpret = True
    del os.environ["TRITON_INTERPRET"]


if "gpu" not in sys.argv:  # -m gpu
    interpret_kernels()


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
