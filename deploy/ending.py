"""How processes and the launcher itself end: exit codes, and what a person is told about an end."""

import signal

from deploy.process import ManagedProcess
from wire.worker_config import EXIT_REASON_PREFIX

# The launcher's own, as in its help. A process that can't read its configuration ends with the last one too.
EXIT_STOPPED, EXIT_FAILED, EXIT_UNUSABLE = 0, 1, 2
NUM_TAIL_LINES = 20
# The engine's processes may write a good deal between a worker's reason and its end.
NUM_SEARCHED_LINES = 1000


class LaunchFailed(Exception):
    """The deployment can't go on; the message says which process and why."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def with_tail(headline: str, process: ManagedProcess) -> str:
    """``headline`` above the last lines that this start of the process wrote."""
    tail = [f"    {line}" for line in process.log_tail(NUM_TAIL_LINES)] or ["    (it wrote nothing)"]
    return "\n".join([headline, *tail, f"  whole log: {process.log_path}"])


def exit_reason(process: ManagedProcess) -> str:
    """Why a process ended with ``wire.worker_config.EXIT_CONFIG``: the line it wrote for that, else its last one."""
    lines = [line.strip() for line in process.log_tail(NUM_SEARCHED_LINES) if line.strip()]
    for line in reversed(lines):
        # Engines put their names before the lines of their processes.
        _, prefix, reason = line.partition(EXIT_REASON_PREFIX)
        if prefix:
            return reason
    return lines[-1] if lines else "it did not say why"


def describe_exit(exit_code: int) -> str:
    """An exit code as ``child`` defines it, in words."""
    if exit_code < 0:
        return f"its supervisor was killed by {signal.Signals(-exit_code).name}"
    if exit_code > 128 and exit_code - 128 in set(signal.Signals):
        return f"killed by {signal.Signals(exit_code - 128).name}"
    return f"exit code {exit_code}"
