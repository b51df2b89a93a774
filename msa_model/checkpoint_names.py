"""Spellings of a checkpoint's names that mean a tensor of ours, and names that mean none of it. Pure."""

# Upstream's MXFP8 checkpoints call the scale after what it was divided by.
_SCALE, _SCALE_ALIAS = ".weight_scale", ".weight_scale_inv"
# Of a drafter that this model does not have.
_DRAFTER = ".mtp."
# Calibrated scales of a quantised cache. Ours keeps its scale per tensor at 1: an E4M3 scale per 16 values has range
# enough for normed keys (fact M4).
_CACHE_SCALES = (".k_scale", ".v_scale", ".k_proj.output_scale", ".v_proj.output_scale")


def stored_name(name: str) -> str:
    """The name under which this package knows the tensor that a checkpoint calls ``name``."""
    return name.removesuffix(_SCALE_ALIAS) + _SCALE if name.endswith(_SCALE_ALIAS) else name


def is_ignored(name: str) -> bool:
    """Whether a tensor may be in a checkpoint although this model has no place for it."""
    return _DRAFTER in f".{name}" or is_cache_scale(name)


def is_cache_scale(name: str) -> bool:
    """Whether a tensor is a calibrated scale of a cache."""
    return name.endswith(_CACHE_SCALES)
