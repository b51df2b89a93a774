"""Looks which link UCX chose for our reads, says so, and judges it against what the deployment requires."""

import logging

from kv_transfer.agent import Memory
from kv_transfer.connector_stats import RowConnectorStats
from kv_transfer.transport import Kind, TransportReader, check, kind_of

logger = logging.getLogger("vllm.tandem.kv_transfer")


class TransportWatch:
    """One rank's links.

    Args:
        required: kinds of link that are good enough; none: any is.
        refuses: whether a wrong link makes reads fail; else it is only reported.
    """

    def __init__(self, reader: TransportReader, required: tuple[Kind, ...], *, refuses: bool) -> None:
        self._reader, self._required, self._refuses = reader, required, refuses
        # UCX reports a way once, with the first peer that is reached by it; so a verdict holds for later peers too.
        self.refusal: str | None = None
        self.must_know = bool(required) and refuses

    def look(self, stats: RowConnectorStats, num_bytes: int, memory: Memory) -> None:
        """Take in what UCX has said since the last look; sets ``refusal`` when reads must not go on like this.

        To be called after the first read from a peer: UCX plans a link when it needs one, not before.

        Args:
            num_bytes: of one contiguous read.
            memory: where the rows lie; fence words always lie in host memory, and their link does not matter.
        """
        found = self._reader.read_new()
        for problem in found.problems:
            logger.warning("UCX: %s", problem)
        rows = found.into(memory)
        for plan in rows.plans:
            protocol = plan.protocol(num_bytes)
            links, method = " and ".join(protocol.links), protocol.method
            logger.info("KV rows are read %s over %s (%s, %s)", plan.memory, links, method, plan.connection)
            for link in protocol.links:
                stats.set_transport(kind_of(link))
        wrong = check(self._required, rows, num_bytes)
        if wrong is None:
            return
        logger.error("wrong KV transport: %s", wrong)
        stats.count("wrong_transports")
        if self._refuses:
            self.refusal = wrong
