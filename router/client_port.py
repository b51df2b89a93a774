"""The API's port where several processes listen on it.

On Linux each has a listening socket of its own (SO_REUSEPORT): the kernel spreads new connections over them, and those
of a process that dies go to the others at once. Elsewhere all accept from one socket, which each inherits.
"""

import os
import socket
import sys

from router.serving import BACKLOG, CannotListen, bind, listen, names

# Others have the option too, but give all connections to one of the sockets.
CAN_SPREAD = sys.platform == "linux" and hasattr(socket, "SO_REUSEPORT")


class ClientPort:
    """Gives out listening sockets.

    The port is taken, for all of them, when this is made: what comes before a process serves waits in its backlog.

    Args:
        num_processes: that will be there at first; others take the place of those that end.

    Raises:
        CannotListen: somebody else has the port.
    """

    def __init__(self, host: str, port: int, num_processes: int, *, can_spread: bool = CAN_SPREAD) -> None:
        # Alone at first: with the option set, another router of the same user could have the port as well.
        sockets = listen(host, port)
        self.addresses = names(sockets)
        self._places = [(sock.family, sock.proto, sock.getsockname()) for sock in sockets]
        self._shared = None if can_spread else sockets
        self._first: list[list[socket.socket]] = []
        if can_spread:
            close(sockets)
            self._first = [self._bind(is_listening=True) for _ in range(num_processes)]

    def take(self) -> list[socket.socket]:
        """Sockets for one process, to be closed here by ``give_away`` once it has them.

        They listen already, or will when the process serves: connections must not wait for one that takes the place of
        another while others could answer.

        Raises: CannotListen.
        """
        if self._shared is not None:
            return self._shared
        return self._first.pop() if self._first else self._bind(is_listening=False)

    def give_away(self, sockets: list[socket.socket]) -> None:
        """The process has inherited them."""
        if sockets is not self._shared:
            close(sockets)

    def close(self) -> None:
        """No further process will be started."""
        close(self._shared or [])
        for sockets in self._first:
            close(sockets)

    def _bind(self, *, is_listening: bool) -> list[socket.socket]:
        sockets: list[socket.socket] = []
        for family, proto, address in self._places:
            sock = socket.socket(family, socket.SOCK_STREAM, proto)
            sockets.append(sock)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                bind(sock, address)
                if is_listening:
                    sock.listen(BACKLOG)
            except OSError as error:
                close(sockets)
                why = os.strerror(error.errno or 0)
                raise CannotListen(f"port {address[1]} on {address[0]} can't be listened on: {why}") from None
        return sockets


def close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
