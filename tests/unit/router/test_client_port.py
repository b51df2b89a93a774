"""The API's port is taken at once, for all processes, and a process that ends takes no connections with it."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from router.client_port import CAN_SPREAD, ClientPort, close
from router.serving import CannotListen, listen

HOST = "127.0.0.1"
NUM_CONNECTIONS = 64


@pytest.fixture(params=[pytest.param(True, marks=pytest.mark.skipif(not CAN_SPREAD, reason="Linux only")), False])
def port(request: pytest.FixtureRequest) -> Iterator[ClientPort]:
    with closing(ClientPort(HOST, 0, 2, can_spread=request.param)) as port:
        yield port


def connect(port: ClientPort) -> socket.socket:
    return socket.create_connection(port.addresses[0], timeout=5)


def accept_all(sock: socket.socket) -> int:
    """How many connections wait."""
    num = 0
    while True:
        try:
            sock.accept()[0].close()
        except BlockingIOError:
            return num
        num += 1


def test_nobody_else_gets_the_port_not_even_a_router_of_several_processes(port: ClientPort) -> None:
    number = port.addresses[0][1]
    for _ in range(2):
        with pytest.raises(CannotListen, match=f"port {number} on {HOST}"):
            listen(HOST, number)
        with pytest.raises(CannotListen, match=f"port {number} on {HOST}"):
            ClientPort(HOST, number, 2)


def test_what_comes_before_a_process_serves_waits_for_one(port: ClientPort) -> None:
    clients = [connect(port) for _ in range(NUM_CONNECTIONS)]
    taken = [port.take() for _ in range(2)]
    assert sum(accept_all(sock) for [sock] in taken) == NUM_CONNECTIONS
    for sockets in taken:
        port.give_away(sockets)
    close(clients)


@pytest.mark.skipif(not CAN_SPREAD, reason="Linux only")
def test_each_process_gets_some_connections_and_those_of_one_that_ended_go_to_the_others() -> None:
    with closing(ClientPort(HOST, 0, 2)) as port:
        [one], [other] = port.take(), port.take()
        with closing(other):
            clients = [connect(port) for _ in range(NUM_CONNECTIONS)]
            assert accept_all(one) > 0
            assert accept_all(other) > 0
            one.close()
            # The next in its place takes none before it serves, so nothing waits for it.
            [new] = port.take()
            with closing(new):
                clients += [connect(port) for _ in range(NUM_CONNECTIONS)]
                assert accept_all(other) == NUM_CONNECTIONS
                new.listen()
                clients += [connect(port) for _ in range(NUM_CONNECTIONS)]
                assert accept_all(new) > 0
        close(clients)
