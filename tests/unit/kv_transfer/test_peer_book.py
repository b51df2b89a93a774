"""Only registered engines are dialled; each is asked once, and one that is gone or restarted is fenced."""

from dataclasses import dataclass
from typing import Any

import pytest

from kv_transfer.handshake import Greeting
from kv_transfer.peer_book import ASKING, GONE_AFTER_S, PeerBook, Refused
from tests.unit.kv_transfer.factories import ENGINE, HOST, PORT, Clock, handoff
from tests.unit.kv_transfer.peers import RETRY_S, LaterExecutor, Network, peer, peer_book
from wire.handoff import KVHandoff
from wire.refusal import Refusal

ADDRESS = (HOST, PORT)
NEXT_LIFE = "prefill-0-life2"


@dataclass
class Scene:
    clock: Clock
    network: Network
    dialler: LaterExecutor
    book: PeerBook

    def refusal(self, named: KVHandoff) -> Refused:
        outcome = self.book.look_up(named)
        assert isinstance(outcome, Refused)
        return outcome

    def meet(self, engine_id: str = ENGINE) -> Greeting:
        """The engine answers, is registered and met."""
        greeting = self.network.greet(engine_id)
        self.book.register([peer(engine_id)])
        self.dialler.run()
        assert self.book.look_up(handoff(remote_engine_id=engine_id)) == greeting
        return greeting


def scene(*extra: tuple[str, int]) -> Scene:
    clock, network, dialler = Clock(), Network(), LaterExecutor()
    return Scene(clock, network, dialler, peer_book(network, dialler, clock, *extra))


@pytest.fixture
def book() -> Scene:
    return scene()


def test_an_engine_is_asked_once_as_soon_as_it_is_named_and_met_once(book: Scene) -> None:
    greeting = book.network.greet()
    book.book.register([peer()])
    assert book.book.look_up(handoff()) is ASKING
    assert book.network.dialled == [], "dialling is for other threads"
    book.dialler.run()
    assert book.book.look_up(handoff()) == greeting
    book.book.register([peer()])
    book.dialler.run()
    assert book.network.dialled == [ADDRESS]
    assert book.book.take_news() == ([greeting], [])
    assert book.book.take_news() == ([], [])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"remote_engine_id": "prefill-9-other"},
        {"remote_host": "10.0.0.8"},
        {"remote_port": PORT + 1},
    ],
    ids=str,
)
def test_only_a_registered_engine_at_its_own_address_is_dialled(book: Scene, changes: dict[str, Any]) -> None:
    if changes:
        book.meet()
        book.network.dialled.clear()
    assert book.refusal(handoff(**changes)).reason is Refusal.UNREGISTERED
    book.dialler.run()
    assert book.network.dialled == []


def test_an_address_may_be_dialled_while_it_is_registered_or_configured() -> None:
    configured = ("10.0.0.9", 5700)
    book = scene(configured)
    assert book.book.may_dial(*configured)
    assert not book.book.may_dial(*ADDRESS)
    book.book.register([peer()])
    assert book.book.may_dial(*ADDRESS)
    assert not book.book.may_dial(HOST, PORT + 1)


def test_an_engine_at_a_configured_address_is_asked_when_a_handoff_names_it() -> None:
    book = scene(ADDRESS)
    greeting = book.network.greet()
    assert book.book.look_up(handoff()) is ASKING
    book.dialler.run()
    assert book.book.look_up(handoff()) == greeting
    assert book.network.dialled == [ADDRESS]


def test_a_new_life_at_the_same_address_fences_the_old_one_at_once(book: Scene) -> None:
    book.meet()
    book.book.take_news()
    greeting = book.network.greet(NEXT_LIFE)
    book.book.register([peer(NEXT_LIFE)])
    assert book.book.take_news() == ([], [ENGINE]), "before the new one has answered"
    book.dialler.run()
    assert book.book.take_news() == ([greeting], [])
    assert book.refusal(handoff()).reason is Refusal.UNREGISTERED
    assert book.book.look_up(handoff(remote_engine_id=NEXT_LIFE)) == greeting
    assert book.book.may_dial(*ADDRESS)


def test_a_new_life_at_a_configured_address_fences_the_old_one() -> None:
    book = scene(ADDRESS)
    book.network.greet()
    book.book.look_up(handoff())
    book.dialler.run()
    greeting = book.network.greet(NEXT_LIFE)
    book.book.look_up(handoff(remote_engine_id=NEXT_LIFE))
    book.dialler.run()
    assert book.book.look_up(handoff(remote_engine_id=NEXT_LIFE)) == greeting
    met, fenced = book.book.take_news()
    assert fenced == [ENGINE]
    assert greeting in met


def test_a_late_handoff_of_an_earlier_life_does_not_cut_off_the_present_one() -> None:
    book = scene(ADDRESS)
    greeting = book.network.greet(NEXT_LIFE)
    book.book.look_up(handoff(remote_engine_id=NEXT_LIFE))
    book.dialler.run()
    book.book.look_up(handoff(remote_engine_id=ENGINE))
    book.dialler.run()
    assert book.refusal(handoff(remote_engine_id=ENGINE)).reason is Refusal.MISMATCH
    assert book.book.look_up(handoff(remote_engine_id=NEXT_LIFE)) == greeting
    assert book.book.take_news() == ([greeting], [])


def test_two_engines_named_at_one_address_leave_the_one_that_answers_there(book: Scene) -> None:
    # A pod's address is given anew before the router has forgotten who had it.
    greeting = book.network.greet(NEXT_LIFE)
    book.book.register([peer(ENGINE), peer(NEXT_LIFE)])
    book.dialler.run()
    assert book.book.look_up(handoff(remote_engine_id=NEXT_LIFE)) == greeting


def test_an_engine_that_is_not_named_any_more_is_fenced_after_a_grace(book: Scene) -> None:
    greeting = book.meet()
    book.book.take_news()
    book.book.register([])
    book.clock.now += GONE_AFTER_S - 0.1
    assert book.book.take_news() == ([], [])
    assert book.book.look_up(handoff()) == greeting
    assert book.book.may_dial(*ADDRESS)
    book.book.register([])  # again: the grace does not start anew
    book.clock.now += 0.1
    assert book.book.take_news() == ([], [ENGINE])
    assert book.refusal(handoff()).reason is Refusal.UNREGISTERED
    assert not book.book.may_dial(*ADDRESS)
    assert book.book.take_news() == ([], [])


def test_an_engine_that_is_named_again_within_the_grace_stays_connected(book: Scene) -> None:
    greeting = book.meet()
    book.book.take_news()
    book.book.register([])
    book.clock.now += GONE_AFTER_S - 1
    book.book.register([peer()])
    book.clock.now += GONE_AFTER_S
    assert book.book.take_news() == ([], [])
    assert book.book.look_up(handoff()) == greeting
    assert book.network.dialled == [ADDRESS]


def test_a_mismatch_names_every_difference_with_both_sides_values(book: Scene) -> None:
    book.network.greet(fingerprint={"dtype": "float16", "block_size": "64"})
    book.book.register([peer()])
    book.dialler.run()
    refused = book.refusal(handoff())
    assert refused.reason is Refusal.MISMATCH
    for value in ("dtype", "float16", "bfloat16", "block_size", "64", "128", "prefill", "decode"):
        assert value in refused.text
    assert book.book.take_news() == ([], [])


def test_an_engine_of_other_kv_heads_is_refused_with_both_numbers(book: Scene) -> None:
    book.network.greet(num_kv_heads=8)
    book.book.register([peer()])
    book.dialler.run()
    assert book.refusal(handoff()) == Refused(Refusal.MISMATCH, "KV heads differ: 8 on prefill, 4 on decode")


def test_a_greeting_of_another_engine_than_the_named_one_is_refused(book: Scene) -> None:
    book.network.greet(NEXT_LIFE)
    book.book.register([peer()])
    book.dialler.run()
    refused = book.refusal(handoff())
    assert refused.reason is Refusal.MISMATCH
    assert ENGINE in refused.text
    assert NEXT_LIFE in refused.text


def test_an_answer_that_is_no_greeting_is_a_mismatch(book: Scene) -> None:
    book.network.answers[ADDRESS] = b"HTTP/1.1 400 Bad Request"
    book.book.register([peer()])
    book.dialler.run()
    assert book.refusal(handoff()).reason is Refusal.MISMATCH


def test_an_engine_that_does_not_answer_is_asked_again_after_a_while(book: Scene) -> None:
    book.book.register([peer()])
    book.dialler.run()
    assert book.refusal(handoff()).reason is Refusal.UNREACHABLE
    book.clock.now += RETRY_S - 0.1
    assert book.refusal(handoff()).reason is Refusal.UNREACHABLE
    book.dialler.run()
    assert book.network.dialled == [ADDRESS]
    greeting = book.network.greet()
    book.clock.now += 0.1
    assert book.book.look_up(handoff()) is ASKING
    book.dialler.run()
    assert book.book.look_up(handoff()) == greeting
    assert book.network.dialled == [ADDRESS, ADDRESS]


def test_a_mismatch_is_final(book: Scene) -> None:
    book.network.greet(num_kv_heads=8)
    book.book.register([peer()])
    book.dialler.run()
    book.clock.now += 1e6
    assert book.refusal(handoff()).reason is Refusal.MISMATCH
    assert book.network.dialled == [ADDRESS]


@pytest.mark.parametrize("error", [ValueError("three frames"), OSError("no such host"), RuntimeError("zmq")])
def test_whatever_goes_wrong_while_asking_nobody_waits_for_ever(book: Scene, error: Exception) -> None:
    book.network.answers[ADDRESS] = error
    book.book.register([peer()])
    book.dialler.run()
    assert book.refusal(handoff()).reason is Refusal.UNREACHABLE


def test_an_engine_that_leaves_while_it_is_asked_is_not_met(book: Scene) -> None:
    book.network.greet()
    book.book.register([peer()])
    book.book.register([])
    book.clock.now += GONE_AFTER_S
    assert book.book.take_news() == ([], [ENGINE])
    book.dialler.run()
    assert book.book.take_news() == ([], [])
    assert book.refusal(handoff()).reason is Refusal.UNREGISTERED
