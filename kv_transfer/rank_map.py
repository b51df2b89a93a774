"""Who reads whom when prefill and decode differ in TP. Pure; knows ranks and KV heads, but no bytes.

Give each side's rank ``r`` of ``tp`` the share ``[r / tp, (r + 1) / tp)`` of the model. A decode rank deals only with
the prefill ranks whose share meets its own: from those it reads each of its heads once, and the others of them (further
replicas of the same heads, when prefill has more ranks than heads) it only tells that reading is over::

    prefill TP4, decode TP2, 4 heads     prefill TP8, decode TP2, 4 heads      prefill TP2, decode TP4, 4 heads
    d0: p0 (head 0), p1 (head 1)         d0: p0 (head 0), p2 (1); tells p1, p3  d0, d1: p0 (head 0; head 1)
    d1: p2 (head 2), p3 (head 3)         d1: p4 (head 2), p6 (3); tells p5, p7  d2, d3: p1 (head 2; head 3)

Shares spread readers evenly over replicas. They don't depend on the number of heads, so where whole rows cross, a
drafter with another number of heads than the K/V pool comes along rightly; where rows are cut, ``plan`` refuses it.
"""

from dataclasses import dataclass

from kv_transfer.geometry import heads_of_rank, heads_per_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRead:
    """What a decode rank reads from one prefill rank: ``num_heads`` neighbouring heads of every sharded page.

    Attributes:
        source_rank: the prefill rank.
        source_head: the first of the heads, counted from 0 inside the source's page.
        destination_head: the same head, counted inside the reader's page.
        heads_on_source: heads that each sharded page of the source holds.
        heads_on_destination: heads that each sharded page of the reader holds.
        takes_replicated: whether the parts that every rank holds come from this source too.
    """

    source_rank: int
    num_heads: int
    source_head: int
    destination_head: int
    heads_on_source: int
    heads_on_destination: int
    takes_replicated: bool

    @property
    def is_whole_row(self) -> bool:
        """Whether nothing of the source's row is left out, and nothing of the reader's row comes from elsewhere."""
        return self.takes_replicated and self.num_heads == self.heads_on_source == self.heads_on_destination


@dataclass(frozen=True, slots=True)
class RankMap:
    """The prefill ranks that one decode rank deals with.

    Attributes:
        reads: in the order of the heads; the last one takes the replicated parts, because in both rows they follow
            that source's heads and so cross with them.
        notify_only: prefill ranks that hold the blocks too, are not read, and must be told that reading is over.
    """

    reads: tuple[SourceRead, ...]
    notify_only: tuple[int, ...]


def map_ranks(prefill_tp: int, decode_tp: int, decode_rank: int, num_kv_heads: int) -> RankMap:
    """Map decode rank ``decode_rank`` to the prefill ranks that it reads or only notifies.

    Equal TP maps each rank to its own number, whole row. ``num_kv_heads`` counts the whole model's heads.

    Raises:
        ValueError: the heads don't spread evenly over either side, neither TP divides the other, or no such rank.
    """
    _check_sizes(prefill_tp, decode_tp, num_kv_heads)
    wanted = heads_of_rank(decode_tp, decode_rank, num_kv_heads)
    partners = _partners(decode_tp, prefill_tp, decode_rank)
    found: list[tuple[int, range, range]] = []  # rank, its heads, and those of them to read
    notify_only: list[int] = []
    next_head = wanted.start
    for rank in partners:
        held = heads_of_rank(prefill_tp, rank, num_kv_heads)
        heads = range(max(held.start, next_head), min(held.stop, wanted.stop))
        if not heads:
            notify_only.append(rank)  # replica of a head that the one before it gives
            continue
        found.append((rank, held, heads))
        next_head = heads.stop
    assert next_head == wanted.stop, "ranks whose shares meet hold all heads"
    reads = tuple(
        SourceRead(
            source_rank=rank,
            num_heads=len(heads),
            source_head=heads.start - held.start,
            destination_head=heads.start - wanted.start,
            heads_on_source=len(held),
            heads_on_destination=len(wanted),
            takes_replicated=rank == found[-1][0],
        )
        for rank, held, heads in found
    )
    return RankMap(reads, tuple(notify_only))


def readers_of(prefill_tp: int, decode_tp: int, prefill_rank: int, num_kv_heads: int) -> tuple[int, ...]:
    """The decode ranks that notify ``prefill_rank``, whether they read it or not; at least one.

    Their number is what a prefill rank waits for before it gives blocks back.

    Raises:
        ValueError: as ``map_ranks``.
    """
    _check_sizes(prefill_tp, decode_tp, num_kv_heads)
    if not 0 <= prefill_rank < prefill_tp:
        raise ValueError(f"TP {prefill_tp} has no rank {prefill_rank}")
    return tuple(_partners(prefill_tp, decode_tp, prefill_rank))


def _check_sizes(prefill_tp: int, decode_tp: int, num_kv_heads: int) -> None:
    for tp_size in (prefill_tp, decode_tp):
        heads_per_rank(tp_size, num_kv_heads)
    if prefill_tp % decode_tp and decode_tp % prefill_tp:
        raise ValueError(f"prefill's TP {prefill_tp} and decode's TP {decode_tp} don't fit: one must divide the other")


def _partners(own_tp: int, other_tp: int, own_rank: int) -> range:
    """Ranks of the other side whose share of the model meets that of ``own_rank``; one TP divides the other."""
    if other_tp >= own_tp:
        per_rank = other_tp // own_tp
        return range(own_rank * per_rank, (own_rank + 1) * per_rank)
    rank = own_rank // (own_tp // other_tp)
    return range(rank, rank + 1)
