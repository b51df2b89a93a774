"""The wire's version, its history, and which versions of the two roles pair.

A rolling update mixes versions. **Decode goes first**: a decode worker reads the handoffs of every version listed for
its own, a prefill worker writes its own version only. So a new decode serves old and new prefill workers, and prefill
follows. A version that decode can't read any more is a break, and needs a second deployment instead.
"""

from types import MappingProxyType

WIRE_VERSION = 2

HISTORY = MappingProxyType(
    {
        1: "first: unsigned handoffs, expiry by wall clock, equal tensor parallelism",
        2: "handoffs are signed and bound to their prompt, leases end by a fence that decode reads, unequal tensor "
        "parallelism, fingerprints in the handshake, side channel under CURVE",
    }
)

# Decode's version -> prefill versions whose handoffs it reads. 1 is unsigned, so 2 does not trust it.
READS = MappingProxyType({1: frozenset({1}), 2: frozenset({2})})


def may_pair(prefill_version: int, decode_version: int) -> bool:
    """Whether a decode worker of ``decode_version`` reads what a prefill worker of ``prefill_version`` writes.

    Only the newer side can know: an unknown version is one from the future, and does not pair.
    """
    return prefill_version in READS.get(decode_version, frozenset())
