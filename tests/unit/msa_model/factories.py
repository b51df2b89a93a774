"""Small pools, batches and configurations for the tests of this package."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from msa_model.config import BLOCK_SIZE, HEAD_DIM, MSAShape
from msa_model.hf_config import MiniMaxM31FlashConfig
from msa_model.metadata import MAX_SHORT_QUERY_LEN, LongQuery, MSAMetadata
from msa_model.nano.config import model_config
from msa_model.pages import STATE_BYTES, LayerPages, SlotPages, key_slot
from msa_model.published import with_defaults
from msa_model.reference.nvfp4 import dequantize, quantize

STALE = 0xFF  # an E4M3 scale of these bits is NaN


def make_config(**changes: Any) -> MiniMaxM31FlashConfig:
    """The nano config with keys replaced; those of sparse_attention_config and quantization_config by their name."""
    return MiniMaxM31FlashConfig(**_nano_values(changes))


def make_plain(**changes: Any) -> SimpleNamespace:
    """The same as the preflight has it, which no configuration class has looked at."""
    return with_defaults(_nano_values(changes))


def _nano_values(changes: dict[str, Any]) -> dict[str, Any]:
    values = model_config("float32", 512)
    for key, value in changes.items():
        for section in (values["sparse_attention_config"], values["quantization_config"], values):
            if key in section or section is values:
                section[key] = value
                break
    return values


def make_shape(**changes: Any) -> MSAShape:
    sizes = {"num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "topk_blocks": 3, "local_blocks": 1}
    return MSAShape(**(sizes | changes))


def round_trip(x: torch.Tensor) -> torch.Tensor:
    return dequantize(*quantize(x))


def make_pages(shape: MSAShape, num_blocks: int, layer: int = 1) -> LayerPages:
    """Two pools in one backing row, as vLLM binds them, full of stale bytes."""
    slots = (2 * shape.num_layers * shape.num_kv_heads, shape.num_layers)
    rows = torch.full((num_blocks, sum(slots), BLOCK_SIZE, STATE_BYTES), STALE, dtype=torch.uint8)
    keys = torch.tensor([key_slot(layer, head, shape.num_layers) for head in range(shape.num_kv_heads)])
    return LayerPages(
        kv=SlotPages(rows[:, : slots[0]]),
        index=SlotPages(rows[:, slots[0] :]),
        key_slots=keys,
        value_slots=keys + 1,
        index_slots=torch.tensor([layer]),
        first_key_slot=int(keys[0]),
        head_slots=2 * shape.num_layers,
        index_slot=layer,
    )


@dataclass
class Sequence:
    """One request: its whole context, and the physical blocks that hold it."""

    query: torch.Tensor
    index_query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    index_key: torch.Tensor
    blocks: torch.Tensor

    @property
    def num_tokens(self) -> int:
        return self.query.shape[0]

    def slots(self) -> torch.Tensor:
        position = torch.arange(self.num_tokens)
        return self.blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE


def make_sequence(shape: MSAShape, num_tokens: int, blocks: torch.Tensor, generator: torch.Generator) -> Sequence:
    def heads(count: int) -> torch.Tensor:
        return torch.randn(num_tokens, count, HEAD_DIM, generator=generator)

    kv = shape.num_kv_heads
    return Sequence(heads(shape.num_heads), heads(kv), heads(kv), heads(kv), heads(1), blocks)


def store(pages: LayerPages, sequence: Sequence) -> None:
    pages.write(sequence.slots(), sequence.key, sequence.value, sequence.index_key)


def make_metadata(batch: list[tuple[Sequence, int]], num_padding_rows: int = 0) -> MSAMetadata:
    """A step in which each sequence's last ``n`` tokens are its queries, then padding rows without tokens."""
    lengths = [n for _, n in batch]
    starts = torch.tensor([0, *lengths, *[0] * num_padding_rows]).cumsum(0)
    seq_lens = torch.tensor([sequence.num_tokens for sequence, _ in batch] + [0] * num_padding_rows)
    width = max(sequence.blocks.shape[0] for sequence, _ in batch)
    table = torch.zeros(len(seq_lens), width, dtype=torch.int32)
    for row, (sequence, _) in enumerate(batch):
        table[row, : sequence.blocks.shape[0]] = sequence.blocks
    spans = list(zip(starts.tolist(), starts.tolist()[1:], strict=False))
    is_long = [end - start > MAX_SHORT_QUERY_LEN for start, end in spans]
    short = [
        token for (start, end), long in zip(spans, is_long, strict=True) if not long for token in range(start, end)
    ]
    return MSAMetadata(
        num_tokens=sum(lengths),
        max_blocks=-(-int(seq_lens.max()) // BLOCK_SIZE),
        seq_lens=seq_lens.int(),
        query_start_loc=starts.int(),
        block_table=table,
        slot_mapping=torch.cat([sequence.slots()[-n:] for sequence, n in batch]),
        long_queries=[
            LongQuery(row, *spans[row], int(seq_lens[row])) for row, is_row_long in enumerate(is_long) if is_row_long
        ],
        short_tokens=torch.tensor(short, dtype=torch.int64) if any(is_long) else None,
    )
