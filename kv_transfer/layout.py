"""The row: all pages of one KV block on one rank, side by side. Pure geometry; no torch, no vLLM, no NIXL.

    byte 0                                                        row_bytes
    |- K/V pool page (heads outermost, split over TP) -|- index pool page (replicated) -|- drafter pages ... -|

A rank's KV memory is ``num_blocks`` such rows, one after the other, so block ``b`` lies at ``base + b * row_bytes``
and crosses in one read. Inside a sharded page heads are outermost too: those of a rank follow each other, and each is
``head_bytes`` contiguous bytes (slots of the pool: ``msa_model.pages``; drafter pages: vLLM's layout BLHNC).

``python -m kv_transfer.layout --profile m31-flash --tp 4`` prints the row of a model.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kv_transfer.geometry import DTYPES, PROFILES, CacheGeometry, heads_per_rank

RECOMMENDED_TP = 4  # facts M9

_PageSize = tuple[str, int, int | None]  # name, bytes of a head, heads of this rank or None where not sharded


@dataclass(frozen=True, slots=True)
class Page:
    """Contiguous bytes of one block in one cache layer: ``[offset, offset + page_bytes)`` of the row."""

    name: str
    offset: int
    page_bytes: int
    is_sharded: bool  # split by KV head over TP; otherwise every rank holds the same bytes
    num_heads: int = 1  # of this rank, outermost and of equal size; 1 for a page that is not sharded

    @property
    def head_bytes(self) -> int:
        """Bytes of one head: all its layers in this page, K and V."""
        return self.page_bytes // self.num_heads


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The pages of one row in offset order, without hole or overlap."""

    pages: tuple[Page, ...]
    row_bytes: int

    @classmethod
    def from_pages(cls, pages: Iterable[Page], block_stride: int) -> "RowLayout":
        """Check that ``pages`` tile one dense row of ``block_stride`` bytes and return it.

        Raises:
            ValueError: a hole, an overlap, or a stride that is not the sum of the pages: the memory is not
                block-outermost, and a block would need more than one read. Or a page that its heads don't fill.
        """
        ordered = tuple(sorted(pages, key=lambda page: page.offset))
        if not ordered:
            raise ValueError("a row needs at least one page")
        end = 0
        for page in ordered:
            if page.page_bytes <= 0:
                raise ValueError(f"page {page.name} has {page.page_bytes} bytes")
            if page.offset != end:
                raise ValueError(f"page {page.name} starts at byte {page.offset} of the row, expected {end}")
            _check_heads(page)
            end += page.page_bytes
        if end != block_stride:
            raise ValueError(f"pages add up to {end} bytes, but blocks are {block_stride} bytes apart")
        return cls(ordered, end)


def _check_heads(page: Page) -> None:
    if page.num_heads < 1 or page.page_bytes % page.num_heads:
        raise ValueError(f"page {page.name} of {page.page_bytes} bytes does not hold {page.num_heads} equal heads")
    if page.num_heads != 1 and not page.is_sharded:
        raise ValueError(f"page {page.name} is the same on every rank, but has {page.num_heads} heads")


def layer_row(geometry: CacheGeometry, tp_size: int) -> RowLayout:
    """The row of one of ``tp_size`` ranks with a page per layer, as cache layers of their own would have it (K1, K2).

    Sizes are those of ``pool_row``. Offsets inside the K/V part are so too where a rank has one head; with more, the
    pool keeps a head's layers together instead of a layer's heads.

    Raises:
        ValueError: the heads don't spread evenly over the ranks.
    """
    num_heads = heads_per_rank(tp_size, geometry.num_kv_heads)
    layers = range(geometry.num_layers)
    pages: list[_PageSize] = [(f"layers.{layer}.kv", geometry.kv_head_bytes, num_heads) for layer in layers]
    indexed = layers[geometry.num_layers - geometry.num_index_layers :]
    pages += [(f"layers.{layer}.index", geometry.index_bytes, None) for layer in indexed]
    return _tiled([*pages, *_drafter_pages(geometry, tp_size)])


def pool_row(geometry: CacheGeometry, tp_size: int) -> RowLayout:
    """The row of one of ``tp_size`` ranks as it is served: K/V pool, index pool, a page per drafter layer.

    Raises:
        ValueError: the heads don't spread evenly over the ranks.
    """
    num_heads = heads_per_rank(tp_size, geometry.num_kv_heads)
    pages: list[_PageSize] = [("kv_pool", geometry.num_layers * geometry.kv_head_bytes, num_heads)]
    if geometry.num_index_layers:
        pages.append(("index_pool", geometry.num_index_layers * geometry.index_bytes, None))
    return _tiled([*pages, *_drafter_pages(geometry, tp_size)])


def _drafter_pages(geometry: CacheGeometry, tp_size: int) -> list[_PageSize]:
    if not geometry.num_drafter_layers:
        return []
    num_heads = heads_per_rank(tp_size, geometry.num_drafter_kv_heads)
    return [(f"drafter.{i}", geometry.drafter_head_bytes, num_heads) for i in range(geometry.num_drafter_layers)]


def _tiled(pages: Iterable[_PageSize]) -> RowLayout:
    """Lay pages one after the other."""
    placed: list[Page] = []
    end = 0
    for name, head_bytes, num_heads in pages:
        page = Page(name, end, head_bytes * (num_heads or 1), num_heads is not None, num_heads or 1)
        placed.append(page)
        end += page.page_bytes
    return RowLayout.from_pages(placed, end)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the row of a profile as a table or as JSON; exits with status 2 on arguments that don't fit."""
    parser = _build_parser()
    options = parser.parse_args(argv)
    if options.drafter_layers is not None and options.drafter_layers < 0:
        parser.error(f"argument --drafter-layers: {options.drafter_layers} is negative")
    geometry = _geometry_of(options)
    try:
        row = (pool_row if options.pooled else layer_row)(geometry, options.tp)
    except ValueError as error:
        parser.error(f"argument --tp: {error}")
    summary: dict[str, object] = {
        "profile": options.profile,
        "tp": options.tp,
        "kv_dtype": geometry.kv_dtype,
        "index_dtype": geometry.index_dtype,
        "pages": len(row.pages),
        "row_bytes": row.row_bytes,
        "kv_bytes_per_token": geometry.kv_bytes_per_token,
    }
    pages = row.pages if options.pages else ()
    if options.json:
        if options.pages:
            summary["page_table"] = [{"name": p.name, "offset": p.offset, "bytes": p.page_bytes} for p in pages]
        print(json.dumps(summary, indent=2))
        return
    for name, value in summary.items():
        print(f"{name:<20}{f'{value:,}' if isinstance(value, int) else value:>12}")
    if pages:
        print(f"\n{'page':<20}{'offset':>12}{'bytes':>12}")
    for page in pages:
        print(f"{page.name:<20}{page.offset:>12,}{page.page_bytes:>12,}")


def _geometry_of(options: argparse.Namespace) -> CacheGeometry:
    profile = PROFILES[options.profile]
    kv_dtype = options.kv_dtype or profile.kv_dtype
    return replace(
        profile,
        kv_dtype=kv_dtype,
        # Index keys are stored as K and V are (facts M4, M5) unless somebody says otherwise.
        index_dtype=options.index_dtype or kv_dtype,
        num_drafter_layers=profile.num_drafter_layers if options.drafter_layers is None else options.drafter_layers,
    )


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kv_transfer.layout", description="Print the KV row of one block on one rank."
    )
    parser.add_argument("--profile", required=True, choices=sorted(PROFILES), help="whose cache")
    parser.add_argument("--tp", type=int, default=RECOMMENDED_TP, help="tensor-parallel ranks (default: %(default)s)")
    parser.add_argument("--kv-dtype", choices=DTYPES, help="of K and V (default: the profile's)")
    parser.add_argument("--index-dtype", choices=DTYPES, help="of index keys (default: that of K and V)")
    parser.add_argument("--drafter-layers", type=int, help="layers of the drafter (default: the profile's)")
    parser.add_argument("--pooled", action="store_true", help="a page per pool, as served, instead of one per layer")
    parser.add_argument("--pages", action="store_true", help="list the pages too")
    parser.add_argument("--json", action="store_true", help="print JSON; kv_bytes_per_token is over all heads and TP")
    return parser


if __name__ == "__main__":
    main()
