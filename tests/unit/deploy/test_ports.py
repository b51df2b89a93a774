"""Ports: free ones are found, taken ones are named."""

import random
import socket
from collections.abc import Iterator

import pytest

from deploy.ports import CANDIDATE_PORTS, PortTaken, check_port_free, pick_free_port


@pytest.fixture
def listening_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_that_someone_listens_on_is_named(listening_port: int) -> None:
    with pytest.raises(PortTaken, match=f"port {listening_port} on 127.0.0.1 is already in use"):
        check_port_free("127.0.0.1", listening_port)


def test_a_free_port_passes_the_check_twice() -> None:
    port = pick_free_port("127.0.0.1", (), random.Random(1))
    check_port_free("127.0.0.1", port)
    check_port_free("127.0.0.1", port)


def test_a_port_already_given_out_is_not_picked_again() -> None:
    first = pick_free_port("127.0.0.1", (), random.Random(3))
    assert pick_free_port("127.0.0.1", {first}, random.Random(3)) != first


def test_picking_fails_when_every_candidate_is_given_out() -> None:
    with pytest.raises(PortTaken, match="no free port"):
        pick_free_port("127.0.0.1", CANDIDATE_PORTS, random.Random(1))


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(PortTaken, match="can't be listened on"):
        check_port_free("192.0.2.1", 8000)
