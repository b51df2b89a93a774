"""A model whose rows are small: two layers, four KV heads, one index layer."""

from kv_transfer.geometry import CacheGeometry

GEOMETRY = CacheGeometry(
    num_layers=2,
    num_index_layers=1,
    num_drafter_layers=0,
    num_kv_heads=4,
    num_drafter_kv_heads=4,
    kv_dtype="nvfp4",
    index_dtype="nvfp4",
    drafter_dtype="bf16",
    head_dim=16,
    block_size=16,
)
