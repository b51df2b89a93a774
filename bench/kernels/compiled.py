"""Compile one kernel for one target without a GPU, and read its machine code: registers, spills, instructions.

NVIDIA's code is disassembled with the tools in Triton's wheel, but for sm_107, which they can't read: there PTX is
counted, one step before machine code. AMD's comes as text from the compiler.
"""

import os
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from bench.kernels.layouts import misplaced_bytes
from bench.kernels.specimens import Specimen

GPU_TARGETS = {
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_103": GPUTarget("cuda", 103, 32),
    "sm_107": GPUTarget("cuda", 107, 32),
    "gfx950": GPUTarget("hip", "gfx950", 64),
}
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
# What occupies the integer units. IMAD runs beside them on Hopper and later, and is counted all the same.
NVIDIA_INTEGER = {
    *("LOP3", "PLOP3", "SHF", "SHL", "SHR", "PRMT", "IADD3", "IADD", "VIADD", "LEA", "ISETP", "SEL", "SGXT", "BMSK"),
    *("IMNMX", "VIMNMX", "VIADDMNMX", "IMAD", "IABS", "POPC", "FLO", "BREV", "LOP32I"),
}
PTX_INTEGER = re.compile(
    r"(@%p\d+ )?(and|or|xor|not|lop3|sh[lrf]|prmt|add|sub|mul|mad|min|max|setp|selp|bf[ei])(\.\w+)*\.[bsu](16|32|64)\b"
)
AMD_INTEGER = re.compile(r"v_(and|or|xor|not|lshl|lshr|ashr|perm|bfe|bfi|bitop|add_u|add3|sub_u|mad_u|mul_lo|alignb)")
QMUL4 = re.compile(r"QMUL4\.\S*E4M3\S*E2M1")
# Conversions of E2M1 pairs to halves: the way that QMUL4 replaces.
E2M1_TO_F16 = re.compile(r"F2FP\.F16\.E2M1|E2M1\.UNPACK")


@dataclass(frozen=True)
class Report:
    """What came out of the compiler for one kernel and target."""

    target: str
    kernel: str
    registers: int
    shared_bytes: int
    spills: int
    """Instructions that move registers to and from local memory (NVIDIA), or spilled registers (AMD, sm_107)."""
    int_ops_per_8_values: float | None
    num_qmul4: int
    num_e2m1_to_f16: int
    failures: tuple[str, ...]


def compile_specimen(specimen: Specimen, target: str) -> Report:
    """Compile and read; a compiler's error is a failure of the report, not an exception.

    Nothing is cached: each call uses a folder of its own, which is removed.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            with _StandardError(Path(folder) / "messages") as messages:
                built = triton.compile(_source(specimen), target=GPU_TARGETS[target], options=_options(specimen))
        except Exception as e:  # noqa: BLE001 (whatever a compiler throws is what is reported)
            lines = str(e).splitlines() or [type(e).__name__]
            return Report(target, specimen.name, 0, 0, 0, None, 0, 0, (f"does not compile: {lines[-1]}",))
        errors = tuple(f"compiler says: {line}" for line in messages.lines() if line.startswith("error"))
        errors += tuple(misplaced_bytes(built.asm["ttgir"]))
        read = {"gfx950": _read_amd, "sm_107": _read_ptx}.get(target, _read_nvidia)
        report = Report(target=target, kernel=specimen.name, failures=(), **read(specimen, built, Path(folder)))
    return Report(**asdict(report) | {"failures": (*errors, *failures_of(specimen, report))})


def failures_of(specimen: Specimen, report: Report) -> list[str]:
    """What must-2 says of machine code and doesn't hold: spills, a missing QMUL4, conversions of E2M1 to F16."""
    failures = []
    if report.spills and not specimen.may_spill:
        failures.append(f"{report.spills} spills")
    if specimen.loop_values and specimen.decodes_nvfp4 and report.target in ("sm_100", "sm_103"):
        if not report.num_qmul4:
            failures.append("no QMUL4")
        if report.num_e2m1_to_f16:
            failures.append(f"{report.num_e2m1_to_f16} conversions of E2M1 to F16")
    return failures


class _StandardError:
    """Catches what is written to file descriptor 2: some of LLVM's errors appear there alone."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> "_StandardError":
        self.saved = os.dup(2)
        with self.path.open("wb") as stream:
            os.dup2(stream.fileno(), 2)
        return self

    def __exit__(self, *_: object) -> None:
        os.dup2(self.saved, 2)
        os.close(self.saved)

    def lines(self) -> list[str]:
        return self.path.read_text(encoding="utf-8", errors="replace").splitlines()


def _source(specimen: Specimen) -> Any:
    names = specimen.kernel.arg_names
    unknown = {*specimen.types, *specimen.constants} ^ set(names)
    assert not unknown, f"{specimen.name}: arguments {unknown} don't fit the kernel's"
    signature, constants, attributes = {}, {}, {}
    for place, name in enumerate(names):
        if name in specimen.constants:
            signature[name] = "constexpr"
            constants[(place,)] = specimen.constants[name]
            continue
        kind, _, multiple = specimen.types[name].partition(":")
        signature[name] = kind
        if multiple:
            attributes[(place,)] = [["tt.divisibility", int(multiple)]]
    return ASTSource(specimen.kernel, signature, constants, attributes)


def _options(specimen: Specimen) -> dict[str, Any]:
    return {"num_warps": specimen.num_warps, "num_stages": specimen.num_stages}


def _tool(name: str, *arguments: str) -> str:
    return subprocess.run([TOOLS / name, *arguments], capture_output=True, text=True, check=True).stdout


def _read_nvidia(specimen: Specimen, built: Any, folder: Path) -> dict[str, Any]:
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(built.asm["cubin"])
    usage = re.search(r"REG:(\d+)", _tool("cuobjdump", "-res-usage", str(cubin)))
    sass = _tool("nvdisasm", "-c", str(cubin))
    lines = [
        match.group(2) or match.group(1)
        for match in re.finditer(r"^\s*(?:(\.L_x_\d+:)|/\*[0-9a-f]+\*/\s+([^;]+);)", sass, re.MULTILINE)
    ]
    names = Counter(nvidia_name(line) for line in lines)
    loop = main_loop(lines, r"BRA.*`\((\.L_x_\d+)\)")
    return {
        "registers": int(usage.group(1)) if usage else 0,
        "shared_bytes": built.metadata.shared,
        "spills": names["LDL"] + names["STL"],
        "int_ops_per_8_values": _per_8_values(
            specimen, sum(nvidia_name(line) in NVIDIA_INTEGER for line in loop), 32 * specimen.num_warps
        ),
        "num_qmul4": len(QMUL4.findall(sass)),
        "num_e2m1_to_f16": len(E2M1_TO_F16.findall(sass)),
    }


def _read_ptx(specimen: Specimen, built: Any, folder: Path) -> dict[str, Any]:
    text = built.asm["ptx"]
    source = folder / "kernel.ptx"
    source.write_text(text, encoding="utf-8")
    arch = re.search(r"\.target (\w+)", text)
    assert arch, "PTX names its target"
    command = [
        str(TOOLS / "ptxas-blackwell"),
        "-v",
        f"--gpu-name={arch.group(1)}",
        str(source),
        "-o",
        str(folder / "again.cubin"),
    ]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    usage = re.search(r"Used (\d+) registers", said)
    spilled_bytes = sum(int(number) for number in re.findall(r"(\d+) bytes spill (?:stores|loads)", said))
    lines = [line.strip().split("//")[0].strip() for line in text.splitlines()]
    loop = main_loop([line for line in lines if line], r"bra(?:\.uni)?\s+(\$\w+)")
    return {
        "registers": int(usage.group(1)) if usage else 0,
        "shared_bytes": built.metadata.shared,
        "spills": spilled_bytes // 4,
        "int_ops_per_8_values": _per_8_values(
            specimen, sum(bool(PTX_INTEGER.match(line)) for line in loop), 32 * specimen.num_warps
        ),
        "num_qmul4": 0,
        "num_e2m1_to_f16": 0,
    }


def _read_amd(specimen: Specimen, built: Any, folder: Path) -> dict[str, Any]:
    text = built.asm["amdgcn"]
    lines = [line.split(";")[0].strip() for line in text.splitlines()]
    loop = main_loop([line for line in lines if line], r"s_c?branch\w*\s+(\.LBB\w+)")

    def number(key: str) -> int:
        found = re.search(rf"\.{key}:\s+(\d+)", text)
        return int(found.group(1)) if found else 0

    return {
        "registers": number("vgpr_count"),
        "shared_bytes": built.metadata.shared,
        "spills": number("vgpr_spill_count"),
        "int_ops_per_8_values": _per_8_values(
            specimen, sum(bool(AMD_INTEGER.match(line)) for line in loop), 64 * specimen.num_warps
        ),
        "num_qmul4": 0,
        "num_e2m1_to_f16": 0,
    }


def _per_8_values(specimen: Specimen, operations: int, threads: int) -> float | None:
    if not specimen.loop_values:
        return None
    return round(operations * threads / (specimen.loop_values / 8), 1)


def nvidia_name(line: str) -> str:
    """Bare name of an instruction: without predicate and modifiers."""
    words = re.sub(r"^@!?U?P\w+\s+", "", line).split()
    return words[0].split(".")[0] if words else ""


def main_loop(lines: list[str], branch: str) -> list[str]:
    """The longest run of instructions between a label and a branch back to it; all of them if there is none.

    ``lines`` are instructions, and labels ending in a colon; ``branch`` has the label as its group. A branch to itself
    is no loop: NVIDIA's code ends with one, which is never reached.
    """
    labels = {line[:-1]: place for place, line in enumerate(lines) if line.endswith(":")}
    loops = []
    for place, line in enumerate(lines):
        match = re.search(branch, line)
        if match and labels.get(match.group(1), place) < place - 1:
            loops.append(lines[labels[match.group(1)] : place + 1])
    return max(loops, key=len, default=lines)
