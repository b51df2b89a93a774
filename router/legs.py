"""The two exchanges with workers, and what each status of theirs means for the client.

2xx                 go on
4xx that says so    the handoff is at fault (``wire.refusal``), not the client's request: HandoffRefused
401, 403, 3xx       the deployment's fault, not the client's: WorkerFailed
other 4xx           the client's own error, passed on: WorkerRefused
503                 the worker takes nothing now: WorkerUnavailable
other 5xx           WorkerFailed

A stream that begins with an error is judged by the status which that error names.
"""

from contextlib import AbstractAsyncContextManager

from pydantic import SecretStr

from router.body import extract_handoff
from router.config import RouterConfig
from router.context import RequestContext
from router.endpoints import Stage
from router.first_event import read_first
from router.relay import is_event_stream, read_whole
from router.worker_client import (
    Body,
    WorkerAnswer,
    WorkerBroken,
    WorkerClient,
    WorkerStream,
    WorkerTimeout,
    WorkerUnreachable,
    header_lines,
)
from router.workers import Worker
from wire.errors import UpstreamError
from wire.refusal import REFUSED_HEADER, Refusal


class WorkerFailed(UpstreamError):
    """The worker answered that it failed. Its own words stay inside: they may quote the prompt."""

    worker_status = 0
    """Of that answer."""


class WorkerUnavailable(WorkerFailed):
    """The worker takes no request now (draining, or starting)."""


class HandoffRefused(UpstreamError):
    """The worker does not take the handoff; ``reason`` is None where the worker names none that is known here."""

    def __init__(self, worker: Worker, stage: Stage, reason: Refusal | None, worker_status: int) -> None:
        self.reason, self.worker_status = reason, worker_status
        named = reason or "no known reason"
        super().__init__(f"The {stage} worker {worker.worker_id} refused the handoff: {named}.", stage=stage)


# By these the worker itself is at fault. Refused and missing handoffs have counters of their own.
WORKER_FAULTS = (WorkerUnreachable, WorkerBroken, WorkerTimeout, WorkerFailed)


class WorkerRefused(Exception):
    """The worker refused the client's request; ``answer`` is the client's to read."""

    def __init__(self, answer: WorkerAnswer) -> None:
        super().__init__(f"refused with {answer.status}")
        self.answer = answer


class Legs:
    """Speaks to workers on behalf of one request at a time; holds no state of it."""

    def __init__(self, *, client: WorkerClient, config: RouterConfig) -> None:
        self._client = client
        self._headers = header_lines(worker_headers(config.cluster_token))
        self._prefill_timeout_s, self._decode_idle_timeout_s = config.prefill_timeout_s, config.decode_idle_timeout_s

    async def prefill(self, ctx: RequestContext, worker: Worker, handoff_id: str) -> None:
        """Have the prompt computed; fills what the context has of prefill, the handoff as the worker spelled it.

        Raises:
            WorkerRefused, HandoffRefused, WorkerFailed, WorkerUnreachable, WorkerBroken, WorkerTimeout.
            HandoffMissing, UpstreamError: the answer holds no handoff, or not the one asked for.
        """
        num_readers, rules = ctx.checked_plan().num_choices, ctx.endpoint.prefill
        assert rules is not None
        answer = await self._client.post(
            worker.url + ctx.endpoint.url_path,
            ctx.checked_body().prefill_body(worker.dialect.ask(handoff_id, num_readers), rules),
            self._headers_of(ctx),
            timeout_s=self._prefill_timeout_s,
        )
        if not 200 <= answer.status < 300:
            raise _judge(answer, worker, Stage.PREFILL)
        handoff_json, handoff = extract_handoff(answer.body)
        ctx.num_blocks = worker.dialect.check(handoff, handoff_id, num_readers)
        ctx.handoff_json, ctx.prefill_status = handoff_json, answer.status

    async def decode_whole(self, ctx: RequestContext, worker: Worker) -> WorkerAnswer:
        """Decode's good answer at once; with ``ctx.handoff_json`` it reads that handoff, without it starts afresh.

        Raises: WorkerRefused, HandoffRefused, WorkerFailed, WorkerUnreachable, WorkerBroken, WorkerTimeout.
        """
        answer = await self._client.post(
            worker.url + ctx.endpoint.url_path,
            _decode_body(ctx),
            self._headers_of(ctx),
            timeout_s=self._decode_idle_timeout_s,
        )
        if not 200 <= answer.status < 300:
            raise _judge(answer, worker, Stage.DECODE)
        if not answer.body:
            raise WorkerBroken("The worker's answer is empty.")
        return answer

    def decode_stream(self, ctx: RequestContext, worker: Worker) -> AbstractAsyncContextManager[WorkerStream]:
        """The same as it comes.

        Raises, on entering: WorkerUnreachable, WorkerBroken, WorkerTimeout. Entered, it is for ``check_decode`` to say
        whether the answer is a good one.
        """
        return self._client.stream(
            worker.url + ctx.endpoint.url_path,
            _decode_body(ctx),
            self._headers_of(ctx),
            idle_timeout_s=self._decode_idle_timeout_s,
        )

    def _headers_of(self, ctx: RequestContext) -> bytes:
        # Id and trace context have been matched against patterns without line ends, or are ours.
        return b"%bx-request-id: %b\r\n%b" % (self._headers, ctx.request_id.encode(), ctx.trace_lines.encode())


def _decode_body(ctx: RequestContext) -> Body:
    body = ctx.checked_body()
    return body.raw if ctx.handoff_json is None else body.decode_body(ctx.handoff_json)


async def check_decode(stream: WorkerStream, worker: Worker) -> bytes | None:
    """The first bytes of a stream, which were read to see that it is a good answer; None: it is no stream.

    Raises: as ``Legs.prefill``, if decode's answer is not a good one.
    """
    if not 200 <= stream.status < 300:
        raise _judge(WorkerAnswer(stream.status, stream.headers, await read_whole(stream)), worker, Stage.DECODE)
    if not is_event_stream(stream):
        return None
    first = await read_first(stream)
    if isinstance(first, WorkerAnswer):
        raise _judge(first, worker, Stage.DECODE)
    return first


def worker_headers(cluster_token: SecretStr | None) -> dict[str, str]:
    """Headers of every request to a worker; of the client's own none but its trace context joins them."""
    headers = {"content-type": "application/json"}
    if cluster_token is not None:
        headers["authorization"] = f"Bearer {cluster_token.get_secret_value()}"
    return headers


def _judge(answer: WorkerAnswer, worker: Worker, stage: Stage) -> WorkerRefused | HandoffRefused | WorkerFailed:
    if 400 <= answer.status < 500 and REFUSED_HEADER in answer.headers:
        said = answer.headers[REFUSED_HEADER]
        return HandoffRefused(worker, stage, Refusal(said) if said in set(Refusal) else None, answer.status)
    if 400 <= answer.status < 500 and answer.status not in (401, 403):
        return WorkerRefused(answer)
    kind = WorkerUnavailable if answer.status == 503 else WorkerFailed
    failed = kind(f"The {worker.role.value} worker {worker.worker_id} answered with {answer.status}.", stage=stage)
    failed.worker_status = answer.status
    return failed
