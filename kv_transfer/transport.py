"""Which links the reads of NIXL really take, in UCX's own words.

UCX chooses among the links of a machine without a word, and falls back to TCP without one too. When ``UCX_PROTO_INFO``
names an operation, UCX writes a table the first time that it plans it on a new kind of connection: which protocol and
which links it will use for which sizes. This module asks for the tables of reads alone, in a file of this process,
and takes them apart. Nothing on the read path changes; asking costs about 0.1 ms.

What UCX does not say: which peer a table is about. Peers that are reached in the same way share one table, which comes
with the first of them, so later peers add nothing. The reading agent is named, cut to 31 characters.
Tried with UCX 1.23 of nixl 1.5.1; the one-line titles of older versions are understood too.
"""

import ctypes
import os
import re
import socket
from collections.abc import Collection, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Kind = Literal["rdma", "nvlink", "shm", "tcp", "other"]

READS_ONLY = "*ucp_get*"  # a pattern on the title of a table; "y" would write 16 kB of other operations at each start
LOG_NAME = "ucx.%p.log"  # UCX puts the process id, so ranks and agents of a machine never share a file
# A table takes 1 kB and comes once for each kind of connection. UCX starts the file anew at this size.
LOG_SIZE = "1mb"
MAX_READ_BYTES = 4 << 20  # of one call: an operator's debug log may be large
EMULATION = "software emulation"

_OPERATION = "remote memory read by ucp_get"
_NOT_A_FILE = {"", "stdout", "stderr"}
_TITLE = re.compile(r"^(.*?) *((?:self |intra-node |inter-node )?cfg#\d+)$")
_PREFIX = re.compile(r"^\[[\d.]+\] \[[^\]]*?:(?P<pid>\d+) *:(?P<thread>\d+)[^\]]*\] +(?P<text>.*)$")
_PROBLEM = re.compile(r"UCX +(?:WARN|ERROR|FATAL) +(.*)$")
_RANGE = re.compile(r"^(\d+)([KMGTP]?)(?:\.\.(?:(inf)|(\d+)([KMGTP]?)))?$")
_LINK = re.compile(r"\b([a-z][a-z0-9_]*/[^\s/]+)")
_UNITS = {unit: 1 << (10 * power) for power, unit in enumerate(["", *"KMGTP"])}


@dataclass(frozen=True, slots=True)
class Protocol:
    """How reads of ``first_bytes`` to ``last_bytes`` (None: without end) go: ``method`` over all of ``links``."""

    first_bytes: int
    last_bytes: int | None
    method: str
    links: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """One table of UCX.

    ``agent`` is the reader; ``connection`` numbers the kind of connection, such as "intra-node cfg#1"; ``memory`` says
    which memory is read into which, such as "into cuda/GPU0 from cuda".
    """

    agent: str
    connection: str
    memory: str
    protocols: tuple[Protocol, ...]

    def protocol(self, num_bytes: int | None = None) -> Protocol:
        """The protocol of one contiguous read of ``num_bytes``; without it, of the largest reads."""
        if num_bytes is not None:
            for protocol in self.protocols:
                if num_bytes <= (protocol.last_bytes if protocol.last_bytes is not None else num_bytes):
                    return protocol
        return self.protocols[-1]


@dataclass(frozen=True, slots=True)
class Found:
    """What UCX wrote: plans of reads, oldest first, and its warnings and errors, which no longer reach stdout."""

    plans: tuple[ReadPlan, ...] = ()
    problems: tuple[str, ...] = ()

    def links(self, num_bytes: int | None = None) -> tuple[str, ...]:
        """Links of the reads of ``num_bytes`` each (default: the largest), each once, such as ``("cma/memory",)``."""
        return tuple(dict.fromkeys(link for plan in self.plans for link in plan.protocol(num_bytes).links))

    def into(self, memory: Literal["DRAM", "VRAM"]) -> "Found":
        """Only the plans that read into the host's memory or into a GPU's: words beside the rows may go another way."""
        is_host = memory == "DRAM"
        return Found(tuple(p for p in self.plans if p.memory.startswith("into host") == is_host), self.problems)


def prepare_env(environ: MutableMapping[str, str], directory: Path) -> None:
    """Make UCX report the plans of reads into a file of ``directory``; what the operator has set stays.

    To be called before the first NIXL agent of the process: UCX looks once, when that agent loads it (importing nixl
    does not). Child processes inherit the wish, so ``directory`` must be there as long as any of them may start an
    agent: **UCX aborts the process when it can't open its log**.

    Raises:
        OSError: ``directory`` can't be made or written to; ``environ`` is as it was.
    """
    if "UCX_LOG_FILE" not in environ:
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(f"UCX can't write its log into {directory}")
        environ["UCX_LOG_FILE"] = str(directory.absolute() / LOG_NAME)
        environ.setdefault("UCX_LOG_FILE_SIZE", LOG_SIZE)
    elif environ["UCX_LOG_FILE"] in _NOT_A_FILE:
        return  # tables on the operator's terminal are no use here
    environ.setdefault("UCX_PROTO_INFO", READS_ONLY)


class TransportReader:
    """Reads what UCX has written about this process; one owner, any thread.

    Args:
        environ: as UCX saw it. Without a log file in it, nothing is ever found.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.path = _log_path(environ.get("UCX_LOG_FILE", ""))
        self._parser = TableParser(os.getpid())
        self._offset = 0
        self._rest = b""

    def read_new(self) -> Found:
        """What has come since the last call: a plan appears with the first read that needs it, not before.

        Flushes all of the process's C streams, so it waits for a thread that is stuck in writing to one of them.

        Raises:
            OSError: the file is there and can't be read.
        """
        if self.path is None:
            return Found()
        # UCX's stream is buffered: without this, a table would show up when the process ends.
        ctypes.CDLL(None).fflush(None)
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset, self._rest = 0, b""  # UCX has started the file anew
                file.seek(self._offset)
                new = file.read(MAX_READ_BYTES)
        except FileNotFoundError:
            return Found()  # no agent yet
        self._offset += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        return self._parser.feed(line.decode(errors="replace") for line in lines)


@dataclass(slots=True)
class _Table:
    """The table that one thread is writing."""

    title: str = ""
    memory: str | None = None
    protocols: list[Protocol] = field(default_factory=list)


class TableParser:
    """Takes UCX's log apart, line by line; a table may come in pieces.

    Args:
        pid: lines of other processes, which may share an operator's file, are passed over.
    """

    def __init__(self, pid: int) -> None:
        self._pid = str(pid)
        self._tables: dict[str, _Table] = {}  # by thread: UCX writes a table as single lines, and threads interleave

    def feed(self, lines: Iterable[str]) -> Found:
        """The plans whose last line is among ``lines``, and the problems in them."""
        plans: list[ReadPlan] = []
        problems: list[str] = []
        for line in lines:
            prefix = _PREFIX.match(line)
            if prefix is None or prefix["pid"] != self._pid:
                continue
            text = prefix["text"].strip()
            if text[:1] in ("|", "+"):
                plan = self._add(prefix["thread"], text)
                plans += [plan] if plan else []
            elif problem := _PROBLEM.search(text):
                problems.append(problem[1])
        return Found(tuple(plans), tuple(problems))

    def _add(self, thread: str, text: str) -> ReadPlan | None:
        """Take one line of a table; the plan when the line ends it."""
        table = self._tables.setdefault(thread, _Table())
        if text.startswith("+"):
            if not table.protocols or table.memory is None:
                return None  # a line between the title and the ranges
            del self._tables[thread]
            return ReadPlan(*_title(table.title), table.memory, tuple(table.protocols))
        cells = [cell.strip() for cell in text.strip("|").split("|")]
        if _OPERATION in cells[-1]:
            # UCX 1.23 gives the title a line of its own; older ones put it beside the operation.
            title = cells[0] if len(cells) > 1 else table.title
            _, _, memory = cells[-1].partition(" into ")
            self._tables[thread] = _Table(title, f"into {memory}")
        elif len(cells) == 1 or _TITLE.match(cells[0]):
            self._tables[thread] = _Table(cells[0])  # the title of a table, which may be of another operation
        elif table.memory is not None and len(cells) >= 3 and (sizes := _RANGE.match(cells[-3])):
            # With UCX_PROTO_INFO=used a count comes before the range.
            table.protocols.append(Protocol(*_sizes(sizes), cells[-2].removeprefix("(?) "), _links(cells[-1])))
        return None


def kind_of(link: str) -> Kind:
    """The class of a link such as "rc_mlx5/mlx5_0:1" or of a bare transport such as "cma".

    "nvlink" are copies from GPU to GPU of one machine or NVLink domain. UCX plans reads by ``cuda_ipc`` only where it
    sees NVLink, unless ``UCX_CUDA_IPC_ENABLE_GET_ZCOPY`` forces it. Copies inside one process (``cuda_copy``), and what
    is not known, are "other".
    """
    transport = link.partition("/")[0]
    if transport.partition("_")[0] in ("rc", "dc", "ud", "srd"):
        return "rdma"
    if transport in ("cuda_ipc", "rocm_ipc"):
        return "nvlink"
    if transport in ("cma", "posix", "sysv", "xpmem", "knem", "self"):
        return "shm"
    return "tcp" if transport == "tcp" else "other"


def check(required: Collection[Kind], found: Found, num_bytes: int | None = None) -> str | None:
    """Say what is wrong when reads take a link of no ``required`` kind; None when all is well or nothing is known yet.

    Software emulation over RDMA or NVLink counts as wrong too: the peer's CPU then sends the bytes, usually because the
    network card can't reach the GPU's memory.

    Args:
        required: the kinds that are good enough; none means that any is.
        num_bytes: of one contiguous read; default: the largest.
    """
    wrong: dict[str, None] = {}
    for plan in found.plans if required else ():
        protocol = plan.protocol(num_bytes)
        kinds = {kind_of(link) for link in protocol.links}
        if kinds <= set(required) and not (EMULATION in protocol.method and kinds & {"rdma", "nvlink"}):
            continue
        links = " and ".join(protocol.links)
        wrong[f"agent {plan.agent} ({plan.connection}) reads {plan.memory} over {links} ({protocol.method})"] = None
    return f"{' or '.join(required)} is required, but {'; '.join(wrong)}" if wrong else None


def _title(title: str) -> tuple[str, str]:
    """Agent and connection."""
    parts = _TITLE.match(title)
    return (parts[1], parts[2]) if parts else (title, "")


def _sizes(sizes: re.Match[str]) -> tuple[int, int | None]:
    """First and last size of a range; "2K" is 2,048, and a lone size is both."""
    first = int(sizes[1]) * _UNITS[sizes[2]]
    if sizes[3]:
        return first, None
    return first, int(sizes[4]) * _UNITS[sizes[5]] if sizes[4] else first


def _links(config: str) -> tuple[str, ...]:
    """The links in the last cell of a row: one, or several with their shares of the bytes; else the cell as it is."""
    return tuple(dict.fromkeys(_LINK.findall(config))) or (config,)


def _log_path(name: str) -> Path | None:
    """Where UCX writes, given UCX_LOG_FILE; it knows these two substitutions and cuts the host's name at a dot."""
    if name in _NOT_A_FILE:
        return None
    return Path(name.replace("%p", str(os.getpid())).replace("%h", socket.gethostname().partition(".")[0]))
