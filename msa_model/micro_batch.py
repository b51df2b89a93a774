"""Parts of one step's tokens, each computed by itself: where they are cut, and what the attention sees of them."""

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from msa_model.batch_rows import VariedRows
    from msa_model.metadata import LongQuery, MSAMetadata

# Halves of a step are cut at a multiple of this, the tokens of a block and of a kernel's tile.
ROUND = 128


def cut(num_tokens: int, *, num_whole: int = 0) -> int:
    """Where to cut a step of ``num_tokens`` in two: near its middle, 0 for not at all.

    ``num_whole``: first tokens that stay together; a cut within them would be none.
    """
    middle = -(-num_tokens // 2)
    if num_tokens >= 4 * ROUND:
        middle = -(-middle // ROUND) * ROUND
    return middle if num_whole <= middle < num_tokens else 0


def metadata_of(whole: "MSAMetadata", start: int, end: int) -> "MSAMetadata":
    """What the attention sees of tokens ``start`` to ``end`` of a step: contexts reach up to a request's last of them.

    A request that is cut comes in both parts; one without a token in this part has an empty query. Uniform rows for
    kernels must not be cut.
    """
    ends = whole.query_start_loc[1:]
    behind = (ends - end).clamp(min=0).minimum(ends - whole.query_start_loc[:-1])
    long_queries = [part for query in whole.long_queries if (part := _long_query_of(query, start, end))]
    tokens = whole.short_tokens
    if tokens is not None:
        tokens = tokens[(tokens >= start) & (tokens < end)] - start
    uniform, varied = whole.uniform, whole.varied
    num_uniform = 0 if uniform is None else uniform.num_tokens
    assert num_uniform <= start or (start == 0 and num_uniform <= end), "uniform rows stay together"
    return replace(
        whole,
        num_tokens=max(0, min(whole.num_tokens, end) - start),
        seq_lens=whole.seq_lens - behind,
        query_start_loc=whole.query_start_loc.clamp(start, end) - start,
        slot_mapping=whole.slot_mapping[start:end],
        long_queries=long_queries,
        short_tokens=tokens,
        uniform=uniform if start == 0 else None,
        varied=None if varied is None else _varied_of(varied, start, end),
        parts={},
    )


def _long_query_of(query: "LongQuery", start: int, end: int) -> "LongQuery | None":
    first, last = max(query.start, start), min(query.end, end)
    if first >= last:
        return None
    return replace(query, start=first - start, end=last - start, seq_len=query.seq_len - (query.end - last))


def _varied_of(varied: "VariedRows", start: int, end: int) -> "VariedRows | None":
    first, last = max(0, start - varied.first_token), min(varied.num_tokens, end - varied.first_token)
    if first >= last:
        return None
    return replace(varied.piece(first, last), first_token=varied.first_token + first - start)
