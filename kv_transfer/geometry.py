"""Sizes of a model's cache: bytes of a vector, heads of a rank, bytes of a token. Pure arithmetic, stdlib only.

``layout`` makes rows of them; nothing here knows where a byte lies.
"""

from dataclasses import dataclass
from typing import Literal, get_args

Dtype = Literal["nvfp4", "fp8", "bf16"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
NVFP4_GROUP = 16  # values that share one E4M3 scale (facts M4)


def vector_bytes(dtype: Dtype, head_dim: int) -> int:
    """Bytes of one head vector of ``head_dim`` values, its NVFP4 scales included.

    For 128 values: nvfp4 64 + 8 = 72 (facts M4), fp8 128, bf16 256. Raises ValueError for another dtype, and for an
    NVFP4 vector that groups of 16 don't fill.
    """
    if dtype == "nvfp4":
        if head_dim % NVFP4_GROUP:
            raise ValueError(f"head_dim {head_dim} is no multiple of {NVFP4_GROUP}, which share an NVFP4 scale")
        return head_dim // 2 + head_dim // NVFP4_GROUP
    if dtype not in DTYPES:
        raise ValueError(f"no cache dtype {dtype!r}; there are {', '.join(DTYPES)}")
    return head_dim if dtype == "fp8" else 2 * head_dim


def heads_per_rank(tp_size: int, num_kv_heads: int) -> int:
    """KV heads on each of ``tp_size`` ranks; one, when there are more ranks than heads.

    Raises:
        ValueError: the heads don't spread evenly: neither number divides the other.
    """
    if tp_size < 1 or num_kv_heads < 1:
        raise ValueError(f"TP {tp_size} and {num_kv_heads} KV heads must both be at least 1")
    if num_kv_heads % tp_size and tp_size % num_kv_heads:
        raise ValueError(f"TP {tp_size} neither divides {num_kv_heads} KV heads nor is a multiple of them")
    return max(1, num_kv_heads // tp_size)


def heads_of_rank(tp_size: int, tp_rank: int, num_kv_heads: int) -> range:
    """The model's KV heads on rank ``tp_rank``, counted over the whole model.

    Above ``num_kv_heads`` ranks, neighbouring ranks hold the same head: rank ``r`` holds head
    ``r // (tp_size / num_kv_heads)``, which is where vLLM puts it.

    Raises:
        ValueError: the heads don't spread evenly, or there is no such rank.
    """
    num_heads = heads_per_rank(tp_size, num_kv_heads)
    if not 0 <= tp_rank < tp_size:
        raise ValueError(f"TP {tp_size} has no rank {tp_rank}")
    first = tp_rank * num_kv_heads // tp_size
    return range(first, first + num_heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGeometry:
    """What a model keeps for each token, all TP ranks together.

    Attributes:
        num_layers: decoder layers; each keeps K and V of ``num_kv_heads`` heads.
        num_index_layers: how many of them, counted from the last, keep an index key as well: one head, replicated.
        num_drafter_layers: layers of the speculative drafter; each keeps K and V of ``num_drafter_kv_heads`` heads.
        head_dim: values of a K, V or index vector.
        block_size: tokens of a block.

    Raises:
        ValueError: a count that is out of range, or a vector that its dtype can't hold.
    """

    num_layers: int
    num_index_layers: int
    num_drafter_layers: int
    num_kv_heads: int
    num_drafter_kv_heads: int
    kv_dtype: Dtype
    index_dtype: Dtype
    drafter_dtype: Dtype
    head_dim: int = 128
    block_size: int = 128

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "num_drafter_kv_heads", "head_dim", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        if not 0 <= self.num_index_layers <= self.num_layers:
            raise ValueError(f"num_index_layers is {self.num_index_layers}, of {self.num_layers} layers")
        if self.num_drafter_layers < 0:
            raise ValueError(f"num_drafter_layers is {self.num_drafter_layers}, but must not be negative")
        for dtype in (self.kv_dtype, self.index_dtype, self.drafter_dtype):
            vector_bytes(dtype, self.head_dim)

    @property
    def kv_head_bytes(self) -> int:
        """Bytes of one head's K and V in one layer of one block."""
        return 2 * self.block_size * vector_bytes(self.kv_dtype, self.head_dim)

    @property
    def index_bytes(self) -> int:
        """Bytes of the index keys in one layer of one block."""
        return self.block_size * vector_bytes(self.index_dtype, self.head_dim)

    @property
    def drafter_head_bytes(self) -> int:
        """Bytes of one head's K and V in one drafter layer of one block."""
        return 2 * self.block_size * vector_bytes(self.drafter_dtype, self.head_dim)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of a token's K and V: all layers and heads, each once; no index keys, no drafter (facts M5)."""
        return self.num_layers * self.num_kv_heads * 2 * vector_bytes(self.kv_dtype, self.head_dim)


PROFILES = {
    # Layers and heads: facts M1; NVFP4: M4. 5 FP8 drafter layers with one head a rank at TP4, so 4 heads: M8, K2.
    "m31-flash": CacheGeometry(
        num_layers=60,
        num_index_layers=60,
        num_drafter_layers=5,
        num_kv_heads=4,
        num_drafter_kv_heads=4,
        kv_dtype="nvfp4",
        index_dtype="nvfp4",
        drafter_dtype="fp8",
    ),
    # Layers 0-2 have no index branch (upstream's ``sparse_attention_freq``); served with an FP8 cache: facts M3, M7.
    # Nothing says that it has a drafter.
    "m3": CacheGeometry(
        num_layers=60,
        num_index_layers=57,
        num_drafter_layers=0,
        num_kv_heads=4,
        num_drafter_kv_heads=4,
        kv_dtype="fp8",
        index_dtype="fp8",
        drafter_dtype="fp8",
    ),
}
