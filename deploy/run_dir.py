"""The private folder of one running deployment: its lock, the configuration of each process, and their logs."""

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ADDRESSES = "addresses"
"""The file beside the configurations that holds the router's URLs: ``api``, and ``control`` for metrics and workers."""


class AlreadyRunning(Exception):
    """Another launcher holds this folder."""


class RunDir:
    """A folder of mode 0700 that one launcher holds at a time; a context manager that takes and frees the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_fd: int | None = None

    def __enter__(self) -> Self:
        """Create the folder and lock it; raises AlreadyRunning, or OSError where it can't be written."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)
        lock_fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(lock_fd, 32).decode() or "unknown"
            os.close(lock_fd)
            raise AlreadyRunning(f"a deployment already runs in {self.path} (process {holder})") from error
        os.ftruncate(lock_fd, 0)
        os.pwrite(lock_fd, str(os.getpid()).encode(), 0)
        self._lock_fd = lock_fd
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Free the lock; files stay for reading."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def write_config(self, name: str, content: Mapping[str, Any]) -> Path:
        """Write ``content`` as JSON readable by this user alone; returns the file."""
        path = self.path / f"{name}.json"
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)
        return path

    def new_log(self, name: str) -> Path:
        """The log file of one process, empty; that of the previous run is kept beside it as ``.log.1``."""
        path = self.path / f"{name}.log"
        if path.exists():
            path.replace(path.with_suffix(".log.1"))
        path.touch(mode=0o600)
        return path
