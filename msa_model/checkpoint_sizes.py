"""Parameters and bytes of a checkpoint by kind of module. Pure."""

from typing import TypedDict

from msa_model.checkpoint_tensors import ExpectedTensor


class Size(TypedDict):
    """Of one kind of module, or of all."""

    num_tensors: int
    num_parameters: int
    num_bytes: int


TOTAL = "total"


def sizes_of(tensors: dict[str, ExpectedTensor]) -> dict[str, Size]:
    """Size of each kind of module, and of all as ``total``."""
    sizes: dict[str, Size] = {}
    for tensor in tensors.values():
        for kind in (tensor.kind, TOTAL):
            size = sizes.setdefault(kind, Size(num_tensors=0, num_parameters=0, num_bytes=0))
            size["num_tensors"] += 1
            size["num_parameters"] += tensor.num_parameters
            size["num_bytes"] += tensor.num_bytes
    sizes[TOTAL] = sizes.pop(TOTAL)
    return sizes


def describe_sizes(sizes: dict[str, Size]) -> str:
    """A table for people."""
    lines = [f"{'module':<16}{'tensors':>9}{'parameters':>18}{'bytes':>18}{'GB':>10}"]
    lines += [
        f"{kind:<16}{size['num_tensors']:>9}{size['num_parameters']:>18,}{size['num_bytes']:>18,}"
        f"{size['num_bytes'] / 1e9:>10.3f}"
        for kind, size in sizes.items()
    ]
    return "\n".join(lines)
