"""Finds the compiled form of this package, which ``router.compile`` makes, if there is one of exactly these sources.

It is a copy of the package with extension modules beside the files of the hot path. What differs is the time a request
takes; without it everything works as well. One of other sources, or of another Python, is never used.
"""

import os
import sys
import sysconfig
from hashlib import blake2b
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
SWITCH = "TANDEM_COMPILED"
"""Environment variable: 0 keeps to the sources."""


def folder() -> Path:
    """Where compiled forms are kept: with the Python environment that they are for."""
    return Path(sys.prefix) / "share" / "tandem-router"


def form_of(sources: Path) -> Path:
    """Where the compiled form of these sources is, or would be."""
    digest = blake2b(str(sysconfig.get_config_var("SOABI")).encode(), digest_size=12)
    for path in sorted(sources.glob("*.py")):
        digest.update(b"\0%b\0" % path.name.encode())
        digest.update(path.read_bytes())
    return folder() / digest.hexdigest() / "router"


def use_compiled() -> None:
    """Have the package's other modules imported from its compiled form; to be called before they are."""
    if os.environ.get(SWITCH) == "0" or is_compiled():
        return
    form = form_of(SOURCES)
    if form.is_dir():
        sys.modules["router"].__path__[:] = [str(form)]
        sys.path.append(str(form.parent))  # for the one library behind all of its extension modules


def is_compiled() -> bool:
    """Whether modules are imported from a compiled form now."""
    [place, *_] = sys.modules["router"].__path__
    return any(Path(place).glob(f"*{EXTENSION_SUFFIXES[0]}"))
