"""Work goes on for as long as its client is there, and unwinds as soon as it is not."""

import asyncio

import pytest

from router.client_watch import ClientLeft, run_while_connected

DISCONNECT: dict[str, object] = {"type": "http.disconnect"}
MORE: dict[str, object] = {"type": "http.request", "body": b"", "more_body": False}


class Client:
    """Gives the messages it is told to, each after ``num_turns`` turns of the event loop."""

    def __init__(self, *messages: dict[str, object], num_turns: int = 0) -> None:
        self.messages, self.num_turns = list(messages), num_turns
        self.is_gone = asyncio.Event()
        self.num_left = 0

    async def receive(self) -> dict[str, object]:
        for _ in range(self.num_turns):
            await asyncio.sleep(0)
        if self.messages:
            return self.messages.pop(0)
        try:
            await self.is_gone.wait()
        finally:
            self.num_left += 1
        return DISCONNECT


async def test_work_that_ends_first_is_not_disturbed() -> None:
    client, done = Client(), []

    async def work() -> None:
        await asyncio.sleep(0.001)
        done.append(True)

    await run_while_connected(work(), client.receive)
    client.is_gone.set()
    await asyncio.sleep(0.001)
    assert done == [True]
    assert client.num_left == 1


async def test_a_client_that_leaves_ends_the_work() -> None:
    client, unwound = Client(), []

    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(0)
            unwound.append(True)

    asyncio.get_running_loop().call_later(0.001, client.is_gone.set)
    with pytest.raises(ClientLeft):
        await run_while_connected(work(), client.receive)
    assert unwound == [True]
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0


@pytest.mark.parametrize("num_turns", [0, 1, 3])
@pytest.mark.parametrize("messages", [(DISCONNECT,), (MORE, MORE, DISCONNECT)])
async def test_a_client_that_has_left_before_the_work_begins(
    num_turns: int, messages: tuple[dict[str, object], ...]
) -> None:
    client = Client(*messages, num_turns=num_turns)
    with pytest.raises(ClientLeft):
        await run_while_connected(asyncio.sleep(10), client.receive)


async def test_another_s_cancellation_stays_a_cancellation() -> None:
    client = Client()
    task = asyncio.create_task(run_while_connected(asyncio.sleep(10), client.receive))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.num_left == 1


async def test_both_at_once_stay_a_cancellation() -> None:
    client = Client()
    task = asyncio.create_task(run_while_connected(asyncio.sleep(10), client.receive))
    await asyncio.sleep(0)
    client.is_gone.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_the_work_is_the_caller_s() -> None:
    client = Client()

    async def work() -> None:
        await asyncio.sleep(0)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await run_while_connected(work(), client.receive)
    assert client.num_left == 1
