"""What the spans of a request say: OpenTelemetry's conventions for HTTP and generative AI, and ``tandem.`` for our own.

No text of a prompt or an answer, no key, no message of an error, and of a client's headers its request id alone.
"""

from functools import lru_cache

from router.context import Plan, RequestContext
from router.endpoints import Endpoint, Route, Stage
from router.http1_request import parse_target
from router.metrics import CLIENT_LEFT_STATUS
from router.workers import Worker

Attributes = dict[str, str | bool | int | float]

# As in the error that says that there is no such model.
MAX_MODEL_CHARS = 128
# OTLP's integers have 64 bits; one that doesn't fit would cost a whole batch of spans.
MAX_INT = (1 << 63) - 1
# By the conventions' own names; what else there is has none.
OPERATIONS = {
    Endpoint.CHAT: "chat",
    Endpoint.RESPONSES: "chat",
    Endpoint.MESSAGES: "chat",
    Endpoint.COMPLETIONS: "text_completion",
    Endpoint.EMBEDDINGS: "embeddings",
}


def endpoint_attributes(endpoint: Endpoint) -> Attributes:
    """Of every request to it."""
    path = endpoint.url_path
    attributes: Attributes = {"http.request.method": "POST", "http.route": path, "url.path": path}
    operation = OPERATIONS.get(endpoint)
    return attributes if operation is None else attributes | {"gen_ai.operation.name": operation}


def leg_attributes(ctx: RequestContext, worker: Worker | None) -> Attributes:
    """Of one attempt of a leg. None: no worker could be picked for it."""
    attributes: Attributes = {"http.request.method": "POST"}
    if worker is not None:
        attributes |= _address(worker.url + ctx.endpoint.url_path)
        attributes |= {"tandem.worker_id": worker.worker_id, "tandem.worker_role": worker.role.value}
    return attributes


def request_attributes(ctx: RequestContext) -> Attributes:
    """Of a request that is over."""
    attributes: Attributes = {"tandem.stage": ctx.stage.value}
    if ctx.status:
        attributes["http.response.status_code"] = ctx.status
    if ctx.status == CLIENT_LEFT_STATUS:
        attributes["tandem.client_left"] = True
    if ctx.plan is None or ctx.stage is Stage.ADMIT:
        return attributes  # not even the model's name is known to be one
    if ctx.plan.route is Route.PREFILL_DECODE:
        attributes["tandem.num_blocks"] = ctx.num_blocks
    if ctx.plan.is_stream and ctx.first_byte_s is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = ctx.first_byte_s - ctx.start_s
    return attributes | _plan_attributes(ctx.plan) | _worker_ids(ctx, ctx.plan)


def _plan_attributes(plan: Plan) -> Attributes:
    attributes: Attributes = {
        "gen_ai.request.stream": plan.is_stream,
        "tandem.route": plan.route.value,
        "tandem.route_reason": plan.reason,
    }
    if plan.model is not None:
        # While there is no worker at all any name is admitted, also one that is no Unicode text.
        attributes["gen_ai.request.model"] = plan.model[:MAX_MODEL_CHARS].encode(errors="replace").decode()
    if plan.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = min(plan.max_tokens, MAX_INT)
    if plan.num_choices != 1:
        attributes["gen_ai.request.choice.count"] = min(plan.num_choices, MAX_INT)
    return attributes


def _worker_ids(ctx: RequestContext, plan: Plan) -> Attributes:
    decode_key = "tandem.worker_id" if plan.route is Route.ONE_WORKER else "tandem.decode_worker_id"
    workers = (("tandem.prefill_worker_id", ctx.prefill), (decode_key, ctx.decode))
    return {key: worker.worker_id for key, worker in workers if worker is not None}


@lru_cache(maxsize=1024)
def _address(url: str) -> Attributes:
    """Where a leg goes; not to be changed. Of a URL scheme, host, port and path alone: the rest may hold a secret."""
    try:
        target = parse_target(url)
    except ValueError:
        return {}
    is_tls, host, port = target.origin
    spelled = f"[{host}]" if ":" in host else host
    path = target.request_uri.partition("?")[0]
    full = f"{'https' if is_tls else 'http'}://{spelled}:{port}{path}"
    return {"server.address": host, "server.port": port, "url.full": full}
