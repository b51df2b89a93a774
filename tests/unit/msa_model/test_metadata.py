"""A step's batch is cut into short and long queries with the exact context lengths."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata

from msa_model.metadata import LongQuery, MSAMetadataBuilder, split_by_query_len


def make_common(lengths: list[int], seq_lens: list[int], **changes: Any) -> CommonAttentionMetadata:
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    values: dict[str, Any] = {
        "query_start_loc": starts,
        "query_start_loc_cpu": starts,
        "seq_lens": torch.tensor(seq_lens).int(),
        "num_reqs": len(lengths),
        "num_actual_tokens": sum(lengths),
        "max_query_len": max(lengths),
        "max_seq_len": max(seq_lens),
        "block_table_tensor": torch.zeros(len(lengths), 64).int(),
        "slot_mapping": torch.zeros(sum(lengths)).long(),
    }
    return CommonAttentionMetadata(**(values | changes))


@pytest.mark.parametrize("lengths", [[1, 1, 1], [8, 1, 0], [8]])
def test_a_batch_of_short_queries_needs_no_host_values(lengths: list[int]) -> None:
    assert split_by_query_len(make_common(lengths, [900] * len(lengths))) == ([], None)


def test_long_queries_are_listed_and_the_tokens_of_short_ones_collected() -> None:
    long_queries, short_tokens = split_by_query_len(make_common([1, 9, 0, 3, 512], [400, 9, 0, 77, 1024]))
    assert long_queries == [LongQuery(1, 1, 10, 9), LongQuery(4, 13, 525, 1024)]
    assert short_tokens is not None
    assert short_tokens.tolist() == [0, 10, 11, 12]


def test_an_optimistic_upper_bound_of_a_context_is_not_taken_for_its_length() -> None:
    common = make_common([20], [50], seq_lens_cpu_upper_bound=torch.tensor([57]).int())
    (query,), _ = split_by_query_len(common)
    assert query.seq_len == 50


@pytest.mark.parametrize(
    ("num_drafts", "support"),
    [
        (0, AttentionCGSupport.UNIFORM_BATCH),
        (7, AttentionCGSupport.UNIFORM_BATCH),
        (8, AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE),
    ],
)
def test_full_graphs_hold_no_queries_that_are_longer_than_the_path_with_static_shapes_takes(
    num_drafts: int, support: AttentionCGSupport
) -> None:
    engine: Any = SimpleNamespace(num_speculative_tokens=num_drafts)
    assert MSAMetadataBuilder.get_cudagraph_support(engine, kv_cache_spec=engine) == support
