"""The router as a program: from the command line to a serving process, and its exit codes."""

import os
import sys
from collections.abc import Sequence

from router.command_line import parse_arguments
from router.config import ConfigError, load_config
from router.logs import configure_logging
from router.memory import keep_freed_memory, search_cycles_rarely
from router.process_parent import ProcessesFailed, serve_processes
from router.serving import CannotListen, serve

EXIT_FAILED = 1
EXIT_UNUSABLE = 2


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; returns after a signal.

    Exits with 2 and the names of the bad keys when the configuration can't be used, with 1 and the port's number when
    that can't be listened on, and with 1 when its processes can't live.
    """
    arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
    file, key_prefix = arguments.pop("config"), arguments.pop("key_prefix")
    try:
        config = load_config(file=file, environ=os.environ, overrides=arguments, key_prefix=key_prefix)
        configure_logging(config.log_level)
        keep_freed_memory()
        search_cycles_rarely()
        (serve if config.processes == 1 else serve_processes)(config)
    except (ConfigError, CannotListen, ProcessesFailed) as error:
        print(f"router: {error}", file=sys.stderr)
        raise SystemExit(EXIT_UNUSABLE if isinstance(error, ConfigError) else EXIT_FAILED) from None
