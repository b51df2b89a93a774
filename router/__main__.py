"""``python -m router``: the command line, the server and its signals."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from router.app import build_parts, create_app
from router.config import ConfigError, RouterConfig, load_config
from router.logs import configure_logging
from router.memory import keep_freed_memory, search_cycles_rarely


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Flags that are not given are None, so that environment and file can speak."""
    parser = argparse.ArgumentParser(prog="router", description=__doc__, allow_abbrev=False)
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML or JSON object of settings")
    parser.add_argument(
        "--key-prefix", default="", metavar="TEXT", help="put before the file's keys in messages; the launcher sets it"
    )
    for name, field in RouterConfig.model_fields.items():
        # Secrets on a command line show in the process list.
        if name not in ("cluster_token", "api_keys"):
            parser.add_argument(f"--{name.replace('_', '-')}", help=field.description)
    return parser.parse_args(argv)


def serve(config: RouterConfig) -> None:
    """Serve until SIGTERM or SIGINT; returns when streams have ended and pending releases are answered."""
    app = create_app(build_parts(config))
    settings = uvicorn.Config(
        app,
        host=config.host,
        port=config.port,
        loop="uvloop",
        http="httptools",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        # Nothing here asks for the client's address, which is all that these tell.
        proxy_headers=False,
        timeout_graceful_shutdown=int(config.shutdown_timeout_s),
    )
    # uvicorn stops on these, then raises them again for the handlers that were there before: ours let the exit be 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _already_handled)
    server = uvicorn.Server(settings)
    server.run()
    if not server.started:
        raise SystemExit(1)


def _already_handled(_: int, __: FrameType | None) -> None:
    return


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point. Exits with 2 and the names of the bad keys when the configuration can't be used."""
    arguments = vars(parse_arguments(sys.argv[1:] if argv is None else argv))
    file, key_prefix = arguments.pop("config"), arguments.pop("key_prefix")
    try:
        config = load_config(file=file, environ=os.environ, overrides=arguments, key_prefix=key_prefix)
    except ConfigError as error:
        print(f"router: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    configure_logging(config.log_level)
    keep_freed_memory()
    search_cycles_rarely()
    serve(config)


if __name__ == "__main__":
    main()
