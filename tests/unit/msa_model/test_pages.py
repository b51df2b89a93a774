"""Slots of the paged cache: what is written is read back, and nothing else is touched."""

import pytest
import torch

from msa_model.config import BLOCK_SIZE, HEAD_DIM
from msa_model.pages import (
    SLOT_BYTES,
    STATE_BYTES,
    SlotPages,
    check_row,
    index_page_bytes,
    key_slot,
    kv_page_bytes,
)
from tests.unit.msa_model.factories import STALE, make_pages, make_sequence, make_shape, round_trip, store


def make_rows(num_blocks: int, *num_slots: int) -> list[torch.Tensor]:
    """Pools that share rows, in row order."""
    rows = torch.zeros(num_blocks, sum(num_slots), BLOCK_SIZE, STATE_BYTES, dtype=torch.uint8)
    return list(rows.split(list(num_slots), dim=1))


def test_page_sizes_are_those_of_the_model_at_tp4() -> None:
    # Facts K2: 60 pages of 128 x 144 bytes for one KV head, 60 of 128 x 72 for the index keys.
    assert kv_page_bytes(num_layers=60, num_kv_heads=1) == 60 * 128 * 144
    assert index_page_bytes(num_index_layers=60) == 60 * 128 * 72


def test_all_layers_of_a_head_are_neighbours_and_every_slot_has_one_owner() -> None:
    layers, heads = 5, 3
    slots = [
        key_slot(layer, head, layers) + value for head in range(heads) for layer in range(layers) for value in (0, 1)
    ]
    assert slots == list(range(2 * layers * heads))


def test_tokens_are_read_back_from_random_blocks_with_a_partial_last_one() -> None:
    shape, generator = make_shape(), torch.Generator().manual_seed(0)
    pages = make_pages(shape, num_blocks=9)
    blocks = torch.tensor([7, 2, 5])
    sequence = make_sequence(shape, 300, blocks, generator)
    store(pages, sequence)
    for pool, slots, values in (
        (pages.kv, pages.key_slots, sequence.key),
        (pages.kv, pages.value_slots, sequence.value),
        (pages.index, pages.index_slots, sequence.index_key),
    ):
        read = pool.read(blocks, slots, 300).flatten(1, 2)
        assert torch.equal(read[:, :300], round_trip(values).transpose(0, 1))
        assert not read[:, 300:].any(), "stale bytes behind the last token must not be read"


def test_a_write_touches_its_own_72_bytes_alone() -> None:
    (cache,) = make_rows(4, 6)
    before = cache.fill_(STALE).clone()
    value = torch.randn(1, 1, HEAD_DIM)
    SlotPages(cache).write(torch.tensor([2 * BLOCK_SIZE + 5]), torch.tensor([3]), value)
    changed = (cache != before).nonzero()
    assert set(map(tuple, changed[:, :2].tolist())) == {(2, 3)}
    slot = cache[2, 3].flatten()
    untouched = torch.ones(SLOT_BYTES, dtype=torch.bool)
    untouched[5 * 64 : 6 * 64] = False
    untouched[BLOCK_SIZE * 64 + 5 * 8 : BLOCK_SIZE * 64 + 6 * 8] = False
    assert (slot[untouched] == STALE).all()


def test_padding_tokens_write_to_the_null_block_alone() -> None:
    (cache,) = make_rows(3, 2)
    before = cache.fill_(STALE).clone()
    SlotPages(cache).write(torch.tensor([-1, BLOCK_SIZE, -1]), torch.tensor([1]), torch.randn(3, 1, HEAD_DIM))
    assert torch.equal(cache[2], before[2])
    assert (cache[1] != before[1]).any()


def test_gather_returns_the_blocks_asked_for_per_head() -> None:
    shape, generator = make_shape(), torch.Generator().manual_seed(0)
    pages = make_pages(shape, num_blocks=5)
    sequence = make_sequence(shape, 256, torch.tensor([3, 1]), generator)
    store(pages, sequence)
    asked = torch.tensor([[[1, 3], [3, 3]]])
    gathered = pages.kv.gather(asked, pages.key_slots[:, None])
    keys = round_trip(sequence.key)
    assert torch.equal(gathered[0, 0], torch.cat([keys[128:, 0], keys[:128, 0]]))
    assert torch.equal(gathered[0, 1], torch.cat([keys[:128, 1], keys[:128, 1]]))


def test_a_cache_with_gaps_inside_a_page_is_refused() -> None:
    wide = torch.zeros(2, 4, BLOCK_SIZE, 2 * STATE_BYTES, dtype=torch.uint8)
    with pytest.raises(ValueError, match="contiguous pages"):
        SlotPages(wide[..., :STATE_BYTES])


def test_a_row_is_as_long_as_its_pages() -> None:
    assert check_row(make_rows(3, 16, 4)) == 20 * SLOT_BYTES


def test_pages_followed_by_a_drafters_are_part_of_a_row() -> None:
    kv, index, drafter = make_rows(3, 16, 4, 1)
    with pytest.raises(ValueError, match="sum up to"):
        check_row([kv, index])
    assert check_row([kv, index], is_whole_row=False) == check_row([kv, index, drafter]) == 21 * SLOT_BYTES


def test_caches_in_storages_of_their_own_are_no_row() -> None:
    with pytest.raises(ValueError, match="2 storages"):
        check_row([*make_rows(3, 16), *make_rows(3, 4)])


def test_layer_outermost_caches_are_no_row() -> None:
    storage = torch.zeros(3 * 20 * SLOT_BYTES, dtype=torch.uint8)
    kv = storage[: 3 * 16 * SLOT_BYTES].view(3, 16, BLOCK_SIZE, STATE_BYTES)
    index = storage[3 * 16 * SLOT_BYTES :].view(3, 4, BLOCK_SIZE, STATE_BYTES)
    with pytest.raises(ValueError, match="step"):
        check_row([kv, index])


def test_pages_in_the_wrong_order_are_no_row() -> None:
    kv, index = make_rows(3, 16, 4)
    with pytest.raises(ValueError, match="cache 1 begins"):
        check_row([index, kv])
