"""How the workers that one process hears from become known to others: a registry that tells, and one that is told.

The told one forgets silent workers by itself, as any registry does. What it has in flight on a worker, and what it
thinks of it by its own requests, stays its own.
"""

from collections.abc import Callable, Iterable

from router.dialects import NIXL, TANDEM, Dialect
from router.process_messages import WorkerNews
from router.registry import WorkerRegistry
from router.workers import Worker
from wire.worker import KVPeer, WorkerHeartbeat, WorkerRole

_DIALECTS = {dialect.name: dialect for dialect in (TANDEM, NIXL)}


class TellingRegistry(WorkerRegistry):
    """The parent's: says of each worker that something was heard of it, or that it is gone.

    Args:
        on_news: takes the worker's id. It may change further before the caller has returned.
    """

    def __init__(self, *, ttl_s: float, clock: Callable[[], float]) -> None:
        super().__init__(ttl_s=ttl_s, clock=clock)
        self.on_news: Callable[[str], None] = lambda _: None

    def heartbeat(self, beat: WorkerHeartbeat) -> Worker:
        worker = super().heartbeat(beat)
        self.on_news(worker.worker_id)
        return worker

    def tell_peers(self, worker: Worker) -> tuple[KVPeer, ...]:
        peers = super().tell_peers(worker)
        self.on_news(worker.worker_id)
        return peers

    def add_static(self, role: WorkerRole, url: str) -> Worker:
        worker = super().add_static(role, url)
        self.on_news(worker.worker_id)
        return worker

    def observe_static(
        self,
        worker: Worker,
        *,
        model: str | None,
        max_model_len: int | None,
        other_models: tuple[str, ...] = (),
        dialect: Dialect = TANDEM,
    ) -> None:
        super().observe_static(
            worker, model=model, max_model_len=max_model_len, other_models=other_models, dialect=dialect
        )
        self.on_news(worker.worker_id)

    def suspect(self, worker: Worker) -> None:
        super().suspect(worker)
        self.on_news(worker.worker_id)

    def remove(self, worker_id: str) -> None:
        super().remove(worker_id)
        self.on_news(worker_id)

    def suspect_by_id(self, worker_id: str, generation: str) -> None:
        """A child could not connect to it; nothing happens if that was another life of it."""
        worker = self._workers.get(worker_id)
        if worker is not None and worker.generation == generation and not worker.is_suspect:
            self.suspect(worker)

    def news_of(self, worker_ids: Iterable[str]) -> tuple[tuple[WorkerNews, ...], tuple[str, ...]]:
        """What is known of those that are there, and the ids of the others."""
        ids, now_s = list(worker_ids), self.clock()
        here = [_news(self._workers[one], now_s) for one in ids if one in self._workers]
        return tuple(here), tuple(one for one in ids if one not in self._workers)

    def all_ids(self) -> list[str]:
        """In the order in which they came; those that are silent for too long are forgotten first."""
        self.workers()
        return list(self._workers)


def _news(worker: Worker, now_s: float) -> WorkerNews:
    return WorkerNews(
        worker_id=worker.worker_id,
        generation=worker.generation,
        role=worker.role,
        url=worker.url,
        model=worker.model,
        status=worker.status,
        registration=worker.registration,
        max_model_len=worker.max_model_len,
        other_models=worker.other_models,
        dialect=worker.dialect.name,
        told_engines=worker.told_engines,
        is_suspect=worker.is_suspect,
        silent_s=max(0.0, now_s - worker.seen_s),
    )


class ToldRegistry(WorkerRegistry):
    """A child's: knows what its parent says."""

    def __init__(self, *, ttl_s: float, clock: Callable[[], float], on_suspect: Callable[[Worker], None]) -> None:
        super().__init__(ttl_s=ttl_s, clock=clock)
        self._on_suspect = on_suspect

    def suspect(self, worker: Worker) -> None:
        is_new = not worker.is_suspect
        super().suspect(worker)
        if is_new:
            self._on_suspect(worker)

    def take(self, heard: Iterable[WorkerNews], gone: Iterable[str]) -> None:
        """These are the workers now, beside those that nothing was said of."""
        are_news = [self._workers.pop(worker_id, None) is not None for worker_id in gone]
        are_news += [self._take_one(news) for news in heard]
        if any(are_news):
            self.refresh()

    def _take_one(self, news: WorkerNews) -> bool:
        """Whether it changes who may be given what. Load reports, of which there are many, don't."""
        worker = self._workers.get(news.worker_id)
        if worker is None or worker.generation != news.generation:
            worker, before = self._begin(news), None
        else:
            before = _what_counts(worker)
        worker.registration, worker.status = news.registration, news.status
        worker.url, worker.role, worker.model = news.url, news.role, news.model
        worker.max_model_len, worker.other_models = news.max_model_len, news.other_models
        worker.dialect, worker.told_engines = _DIALECTS[news.dialect], news.told_engines
        worker.seen_s, worker.is_suspect = self.clock() - news.silent_s, news.is_suspect
        return before != _what_counts(worker)

    def _begin(self, news: WorkerNews) -> Worker:
        worker = Worker(news.worker_id, news.generation, news.role, news.url, news.model, news.status)
        self._workers[news.worker_id] = worker
        return worker


def _what_counts(worker: Worker) -> tuple[object, ...]:
    return (
        worker.is_suspect,
        worker.status.state,
        worker.registration,
        (worker.url, worker.role, worker.model, worker.max_model_len, worker.other_models),
        worker.dialect.name,
        worker.told_engines,
    )
