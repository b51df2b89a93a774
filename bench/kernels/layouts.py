"""Whether the compiler chose registers as the assembly in a kernel needs them. Pure: reads Triton's GPU dialect."""

import re

# QMUL4 comes with one scale for the four bytes of a register, which must then be neighbours in a token, or with this:
SCALE_FOR_EACH_BYTE = "prmt.b32 s"
OPERAND = re.compile(r"tensor<\d+x\d+xi8, #(?:ttg\.)?(\w+)>")


def misplaced_bytes(text: str) -> list[str]:
    """A line for each such assembly whose four bytes don't come from neighbouring columns of one row."""
    found = []
    for line in text.splitlines():
        if "elementwise_inline_asm" not in line or "mul.rn.satfinite.e4m3x4" not in line:
            continue
        operand = OPERAND.search(line)
        if SCALE_FOR_EACH_BYTE in line or operand is None:
            continue
        layout = re.search(rf"^#{operand.group(1)} = (.*)$", text, re.MULTILINE)
        if layout is None or not has_four_neighbours(layout.group(1)):
            found.append(f"QMUL4 takes one scale for bytes laid out as {layout.group(1) if layout else 'unknown'}")
    return found


def has_four_neighbours(layout: str) -> bool:
    """Whether each four registers of a thread hold four neighbours of the last of two dimensions."""
    linear = re.search(r"register = \[\[(\d+), (\d+)\], \[(\d+), (\d+)\]", layout)
    if linear:
        return linear.groups() == ("0", "1", "0", "2")
    blocked = re.search(r"sizePerThread = \[\d+, (\d+)\].*order = \[(\d)", layout)
    return blocked is not None and int(blocked.group(1)) >= 4 and blocked.group(2) == "1"
