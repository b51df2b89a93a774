"""The parent of a router's processes: keeps as many as there should be, tells them of the workers, and ends them.

It serves no client. What it hears of workers goes to all children at once; each child that starts is told all there is.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence

from router.app import RouterParts
from router.client_port import ClientPort
from router.control_view import ControlView
from router.process_limits import part_of
from router.process_link import ProcessLink
from router.process_messages import Message, OrderName, Start, State, Suspect, Workers, config_json, encode
from router.process_totals import ProcessTotals
from router.respawn import Respawn
from router.serving import CannotListen
from router.worker_news import TellingRegistry

# A report takes a child a few milliseconds; one that takes longer than this hangs, and a scrape must not.
REPORT_TIMEOUT_S = 1.0
# Beyond the limits of requests and releases: for the last spans, the last report and the interpreter's own end.
KILL_MARGIN_S = 5.0

logger = logging.getLogger(__name__)


class Processes:
    """All children.

    Args:
        parts: the parent's own, of which it uses what knows workers and what is shown.
    """

    def __init__(self, parts: RouterParts, registry: TellingRegistry, port: ClientPort) -> None:
        self._config, self._lifecycle, self._registry, self._port = parts.config, parts.lifecycle, registry, port
        self._start = Start(config=config_json(part_of(parts.config)))
        self._links: list[ProcessLink] = []
        self._stopping, self._is_cut = asyncio.Event(), False
        self._heard: dict[str, None] = {}
        """Workers that there is something to tell of, in the order in which it came."""
        self._totals = ProcessTotals(parts, num_wanted=parts.config.processes)
        self.failure: str | None = None
        """Why it was given up; None: it was asked to stop."""
        registry.on_news = self._note_news

    @property
    def view(self) -> ControlView:
        """Of all of them."""
        return ControlView(
            render=lambda: self._totals.render(self._links),
            gather=self._gather,
            is_serving=lambda: any(link.is_serving for link in self._links),
        )

    async def run(self) -> None:
        """Until the last one has ended after ``stop``; ``failure`` says whether that was asked for."""
        late = asyncio.create_task(self._kill_late())
        async with asyncio.TaskGroup() as group:
            for number in range(1, self._config.processes + 1):
                group.create_task(self._keep(number))
        late.cancel()
        self._port.close()

    def pids(self) -> list[int]:
        """Of those that run."""
        return [link.pid for link in self._links]

    # --- ending ---

    def stop(self) -> None:
        """Drain: no new requests, and the end of all when none is left anywhere. May be called twice."""
        if not self._stopping.is_set():
            logger.info("stopping: the requests of %d processes are to be finished", len(self._links))
            self._lifecycle.drain.begin()
            self._stopping.set()
            self.order("drain")

    def stop_harder(self, *, is_last: bool) -> None:
        """Whoever asks once more doesn't want to wait for requests; nor, if ``is_last``, for anything else then."""
        if not self._stopping.is_set():
            self.stop()
        elif not self._is_cut:
            self._is_cut = True
            self.order("cut")
        elif is_last:
            self.order("force")

    def order(self, name: OrderName) -> None:
        """Of all that run."""
        for link in self._links:
            link.order(name)

    def _note_idle(self) -> None:
        if self._stopping.is_set() and all(link.is_idle for link in self._links):
            self.order("finish")

    async def _kill_late(self) -> None:
        await self._stopping.wait()
        config = self._config
        await asyncio.sleep(config.shutdown_timeout_s + 2 * config.release_timeout_s + KILL_MARGIN_S)
        for link in self._links:
            logger.error("process %d (pid %d) does not end: it is killed", link.number, link.pid)
            link.kill()

    # --- living ---

    async def _keep(self, number: int) -> None:
        """One in this place, again and again."""
        respawn = Respawn()
        while not self._stopping.is_set():
            try:
                lived_s, how = await self._live(number)
            except (OSError, CannotListen) as error:
                lived_s, how = 0.0, f"could not be started: {error}"
            if self._stopping.is_set():
                return
            delay_s = respawn.delay_s(lived_s)
            if delay_s is None:
                self.failure = f"process {number} ended at once {respawn.num_early} times, the last time: {how}"
                self.stop()
                return
            self._totals.num_restarts += 1
            logger.error("process %d ended (%s); another takes its place in %.1f s", number, how, delay_s)
            await self._sleep(delay_s)

    async def _live(self, number: int) -> tuple[float, str]:
        """The whole life of one child: how long it was, and how it ended."""
        sockets = self._port.take()
        try:
            link = await ProcessLink.start(number, sockets)
        finally:
            self._port.give_away(sockets)
        # From here to the list nothing else runs, so that no news is lost between the two.
        link.tell(self._start)
        link.tell(self._news_of(self._registry.all_ids()))
        if self._stopping.is_set():
            link.order("drain")
        if self._is_cut:
            link.order("cut")
        self._links.append(link)
        try:
            await self._listen(link)
            how = await link.end()
        finally:
            self._links.remove(link)
            self._totals.keep(link)
            self._note_idle()
        return link.lived_s, how

    async def _listen(self, link: ProcessLink) -> None:
        async for message in link.messages():
            match message:
                case State(name="serving"):
                    logger.info("process %d (pid %d) serves", link.number, link.pid)
                case State(name="idle"):
                    self._note_idle()
                case Suspect():
                    self._registry.suspect_by_id(message.worker_id, message.generation)

    async def _sleep(self, delay_s: float) -> None:
        """Or until it is time to stop."""
        try:
            async with asyncio.timeout(delay_s):
                await self._stopping.wait()
        except TimeoutError:
            return  # the usual

    # --- workers, loads ---

    def _note_news(self, worker_id: str) -> None:
        if not self._heard:
            # Later, when whoever is told this has done all that belongs to it.
            asyncio.get_running_loop().call_soon(self._tell_news)
        self._heard[worker_id] = None

    def _tell_news(self) -> None:
        heard, self._heard = self._heard, {}
        line = encode(self._news_of(heard))
        for link in self._links:
            link.tell_line(line)

    def _news_of(self, worker_ids: Iterable[str]) -> Message:
        heard, gone = self._registry.news_of(worker_ids)
        return Workers(heard=heard, gone=gone, has_been_whole=self._lifecycle.fallback.has_been_whole)

    async def _gather(self) -> None:
        links: Sequence[ProcessLink] = list(self._links)
        answered = await asyncio.gather(*(link.ask_report(REPORT_TIMEOUT_S) for link in links))
        self._totals.take(self._links, num_answered=sum(answered))
