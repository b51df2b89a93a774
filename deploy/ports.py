"""Ports on this machine: finding free ones, and saying which wanted one is taken."""

import errno
import random
import socket
from collections.abc import Collection

# Below Linux's default range for outgoing connections (32768-60999), so that none of those takes a port between
# its choice here and the worker's bind; a crashed worker also finds it free again.
CANDIDATE_PORTS = range(15_000, 32_000)


class PortTaken(Exception):
    """Another process listens on a port that the deployment needs, or the address is not this machine's."""


def check_port_free(host: str, port: int) -> None:
    """Raise PortTaken unless ``host:port`` can be listened on now."""
    family, _, _, _, address = _resolve(host, port)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: connections of an earlier server that linger in TIME_WAIT don't count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTaken(f"port {port} on {host} is already in use") from error
            raise PortTaken(f"port {port} on {host} can't be listened on: {error.strerror}") from error


def pick_free_port(host: str, taken: Collection[int], rng: random.Random) -> int:
    """A port of ``host`` that is free now and not in ``taken``; raises PortTaken when there is none."""
    # A random order keeps two launchers that start together apart.
    for port in rng.sample(CANDIDATE_PORTS, k=len(CANDIDATE_PORTS)):
        if port in taken:
            continue
        try:
            check_port_free(host, port)
        except PortTaken:
            continue
        return port
    raise PortTaken(f"no free port on {host} between {CANDIDATE_PORTS.start} and {CANDIDATE_PORTS.stop - 1}")


def _resolve(host: str, port: int) -> tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise PortTaken(f"{host} is not an address of this machine: {error.strerror}") from error
    return found[0]  # type: ignore[return-value]  # typeshed allows non-IP families here
