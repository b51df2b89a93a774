"""``python -m router.compile``: compile the hot path with mypyc, into the Python environment that runs this.

Needs mypy and a C compiler, and takes a minute or two. The sources are compiled as they are: all of their types are
checked by mypy in any case. What is not compiled is read once (settings, the application) or derives from classes of
other libraries (uvicorn's protocol, ``logging``'s handler, enumerations), which mypyc does not compile.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import wire
from router.compiled import SOURCES, folder, form_of

HOT = (
    *("auth", "breakers", "drain", "fallback", "retries", "pings", "deadline", "key_usage"),
    *("admission", "gate", "fair_queue", "drain_rate", "token_estimate", "select", "prefix"),
    *("body", "json_members", "field_checks", "validate", "schema_bounds", "media", "plans"),
    *("plan_messages", "plan_responses", "prefill_rules", "dialects", "served"),
    *("context", "generate", "pipeline", "pass_through", "legs", "first_event", "relay", "reply", "timing"),
    *("client_watch", "token_usage", "trace_context", "tracing", "span_attributes"),
    *("answer_head", "http1_answer", "http1_client", "http1_connection", "http1_request", "worker_client"),
    *("metric_kinds", "metrics", "lifecycle_metrics", "pools", "registry", "workers", "worker_news", "release"),
)
MYPY_SETTINGS = "[mypy]\nfollow_imports = silent\nignore_missing_imports = True\n"


class CompileError(Exception):
    """The hot path could not be compiled; holds the compiler's words."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, unless that is done; 1 if it can't be."""
    argparse.ArgumentParser(prog="router.compile", description=__doc__.partition("\n")[0]).parse_args(arguments)
    form = form_of(SOURCES)
    if form.is_dir():
        print(f"already compiled: {form}")
        return 0
    try:
        _compile(form)
    except CompileError as error:
        print(f"router.compile: {error}", file=sys.stderr)
        return 1
    print(f"compiled: {form}")
    return 0


def _compile(form: Path) -> None:
    folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder(), prefix="making-") as made:
        work = Path(made)
        shutil.copytree(SOURCES, work / "router", ignore=shutil.ignore_patterns("__pycache__"))
        # For its types alone.
        shutil.copytree(Path(wire.__path__[0]), work / "wire", ignore=shutil.ignore_patterns("__pycache__"))
        (work / "mypy.ini").write_text(MYPY_SETTINGS)
        _run_mypyc(work)
        _forget_others()
        form.parent.mkdir()
        for shared in work.glob("*__mypyc.*"):
            os.replace(shared, form.parent / shared.name)
        os.replace(work / "router", form)


def _run_mypyc(work: Path) -> None:
    if find_spec("mypyc") is None:
        raise CompileError("mypy is not installed: it is one of the development requirements")
    files = [f"router/{name}.py" for name in HOT]
    environ = os.environ | {"MYPYPATH": str(work), "MYPYC_OPT_LEVEL": "3"}
    command = [sys.executable, "-m", "mypyc", "--config-file", "mypy.ini", *files]
    ended = subprocess.run(command, cwd=work, env=environ, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise CompileError((ended.stdout + ended.stderr)[-4000:])


def _forget_others() -> None:
    """Forms of sources that are no more."""
    for other in folder().iterdir():
        if not other.name.startswith("making-"):
            shutil.rmtree(other)


if __name__ == "__main__":
    raise SystemExit(main())
