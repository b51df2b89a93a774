"""Whether a worker can listen where it is to: looked at before minutes go into loading a model."""

import os
import socket
from collections.abc import Iterable

EXIT_PORT = 1
"""Of a worker that can't listen. Not ``EXIT_CONFIG``: the port may be that of its own last life, and free soon."""


class PortUnusable(Exception):
    """An address that can't be listened on, and why."""


def check_ports(addresses: Iterable[tuple[str, int]]) -> None:
    """Listen on each for a moment.

    Raises: PortUnusable.
    """
    for host, port in addresses:
        bare = host.strip("[]")
        try:
            socket.create_server((bare, port), family=socket.AF_INET6 if ":" in bare else socket.AF_INET).close()
        except OSError as error:
            # Python adds the address to the system's words; a name that can't be looked up has a number below 0.
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise PortUnusable(f"port {port} on {host} can't be listened on: {reason}") from error
