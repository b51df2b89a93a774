"""What a preflight found, as text for people and as JSON for programs. Pure."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msa_model.refusals import printable

# Kinds of findings, in the order in which they are told. What is ignored stops nobody.
KINDS = ("config", "damaged", "missing", "unexpected", "wrong shape", "wrong dtype", "ignored")
NUM_NAMED = 5


@dataclass
class Report:
    """Findings by kind, each a name and what is to say about it."""

    num_expected: int = 0
    num_found: int = 0
    num_files: int = 0
    num_bytes: int = 0
    num_ignored_bytes: int = 0
    """Of tensors that the loader leaves out: a draft module's (``mtp``), and calibrated scales of a cache."""
    findings: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    def add(self, kind: str, name: str, detail: str) -> None:
        """One more finding of ``kind``, which must be one of KINDS; both texts may come out of the checkpoint."""
        self.findings[kind].append((printable(name), printable(detail)))

    def has(self, kind: str) -> bool:
        return bool(self.findings[kind])

    @property
    def is_good(self) -> bool:
        """Whether the checkpoint can be loaded."""
        return not any(found for kind, found in self.findings.items() if kind != "ignored")

    def reason(self) -> str:
        """What is wrong in one line: how much of each kind, and the first of it."""
        parts = []
        for kind in KINDS[:-1]:
            if self.has(kind):
                name, detail = min(self.findings[kind])
                count = "" if kind == "config" else f"{len(self.findings[kind])} {kind}: "
                parts.append(f"{count}{name} ({detail})")
        return "; ".join(parts)

    def as_text(self, folder: Path) -> str:
        """A line of counts, then for each kind its number and its first names."""
        lines = [
            f"{printable(str(folder))}: {'can be loaded' if self.is_good else 'can NOT be loaded'}; "
            f"{self.num_found} of {self.num_expected} tensors, {self.num_files} files, {self.num_bytes / 1e9:.3f} GB"
        ]
        for kind in KINDS:
            found = sorted(self.findings[kind])
            if found:
                lines.append(f"{kind}: {len(found)}{self._ignored_bytes() if kind == 'ignored' else ''}")
                lines += [f"  {name}: {detail}" for name, detail in found[:NUM_NAMED]]
                lines += [f"  ... and {len(found) - NUM_NAMED} more"] if len(found) > NUM_NAMED else []
        return "\n".join(lines)

    def _ignored_bytes(self) -> str:
        return f" tensors, {self.num_ignored_bytes} bytes, which are in the files and are not loaded or checked"

    def as_json(self) -> dict[str, Any]:
        """The same for programs, with the first names of each kind that occurs."""
        return {
            "is_good": self.is_good,
            "num_expected": self.num_expected,
            "num_found": self.num_found,
            "num_files": self.num_files,
            "num_bytes": self.num_bytes,
            "num_ignored_bytes": self.num_ignored_bytes,
            "findings": {
                kind: {"count": len(found), "first": [list(entry) for entry in sorted(found)[:NUM_NAMED]]}
                for kind, found in self.findings.items()
                if found
            },
        }
