"""One process's part of what is configured for the whole router."""

from router.config import RouterConfig

# Rounded up, so that each process can serve something; the whole may be above its limit by less than one each.
DIVIDED = ("prefill_tokens_per_worker", "decode_tokens_per_worker", "max_queued_tokens", "max_in_flight_per_key")


def part_of(config: RouterConfig) -> RouterConfig:
    """The configuration of each of ``config.processes`` processes, which hear of workers from their parent alone."""
    limits = {name: getattr(config, name) for name in DIVIDED}
    parts = {name: -(-limit // config.processes) for name, limit in limits.items() if limit is not None}
    return config.model_copy(update={**parts, "prefill": (), "decode": ()})
