"""UCX's own tables of reads are understood, and a fall-back to TCP is noticed where better was asked for."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from kv_transfer.transport import (
    LOG_NAME,
    READS_ONLY,
    Found,
    Kind,
    Protocol,
    ReadPlan,
    TableParser,
    TransportReader,
    check,
    kind_of,
    prepare_env,
)
from tests.unit.kv_transfer.ucx_logs import (
    CMA,
    EMULATED_RDMA,
    NO_PROTOCOL,
    NVLINK,
    OTHER_OPERATION,
    PATHS,
    PID,
    RDMA,
    TCP,
    USED,
)

ROW_BYTES = 1_820_000


def parse(text: str) -> Found:
    return TableParser(PID).feed(text.splitlines())


def test_a_read_through_the_kernel_is_told_from_other_operations() -> None:
    assert parse(OTHER_OPERATION + CMA + OTHER_OPERATION) == Found(
        (
            ReadPlan(
                agent="d16611",
                connection="intra-node cfg#1",
                memory="into host memory from host",
                protocols=(Protocol(0, None, "zero-copy", ("cma/memory",)),),
            ),
        )
    )


@pytest.mark.parametrize(
    ("text", "links"),
    [
        (CMA, ("cma/memory",)),
        (TCP, ("tcp/lo",)),
        (USED, ("cma/memory",)),
        (RDMA, ("rc_mlx5/mlx5_0:1", "rc_mlx5/mlx5_1:1")),
        (PATHS, ("rc_mlx5/ib3:1",)),
        (NVLINK, ("cuda_ipc/cuda",)),
        (CMA + TCP + CMA, ("cma/memory", "tcp/lo")),
        (NO_PROTOCOL, ()),
        (OTHER_OPERATION, ()),
    ],
)
def test_the_links_of_a_row_are_found(text: str, links: tuple[str, ...]) -> None:
    assert parse(text).links(ROW_BYTES) == links


def test_each_size_has_its_protocol() -> None:
    (plan,) = parse(RDMA).plans
    assert (plan.agent, plan.connection) == ("decode worker 3", "inter-node cfg#2")
    assert plan.memory == "into cuda/GPU3 from cuda/dev[0]"
    assert [(each.first_bytes, each.last_bytes) for each in plan.protocols] == [(0, 0), (1, 2048), (2049, None)]
    assert [plan.protocol(n).method for n in (0, 2048, 2049)] == ["copy-out", "software emulation", "zero-copy"]
    assert plan.protocol() == plan.protocol(ROW_BYTES)


def test_what_else_ucx_complains_of_is_handed_on() -> None:
    found = parse(NO_PROTOCOL + CMA)
    assert found.links() == ("cma/memory",)
    (problem,) = found.problems
    assert problem.startswith("No zero-copy protocol found for get into host from host, 1048576 bytes.")


def test_tables_of_other_processes_and_lines_of_no_kind_are_passed_over() -> None:
    assert TableParser(PID + 1).feed(CMA.splitlines()) == Found()
    noise = ["", "|", "| | |", "[x] [y]", "[1.0] [host:16611:0]", "[1.0] [host:16611:0] |", "\udcff" * 9]
    assert TableParser(PID).feed(noise) == Found()


def test_a_short_process_id_is_filled_up_with_spaces() -> None:
    """Seen: UCX pads it, so a process of four digits writes a space behind its id."""
    padded = CMA.replace(f":{PID}:0]", ":5456 :0]")
    assert TableParser(5456).feed(padded.splitlines()).links(ROW_BYTES) == ("cma/memory",)


def test_tables_that_two_threads_write_at_once_are_kept_apart() -> None:
    mixed: Iterable[str] = (
        line
        for pair in zip(CMA.splitlines(), TCP.replace(":16611:0]", ":16611:1]").splitlines(), strict=True)
        for line in pair
    )
    assert TableParser(PID).feed(mixed).links() == ("cma/memory", "tcp/lo")


@pytest.mark.parametrize(
    ("link", "kind"),
    [
        ("rc_mlx5/mlx5_0:1", "rdma"),
        ("dc_mlx5/mlx5_0:1", "rdma"),
        ("rc_verbs/bnxt_re0:1", "rdma"),
        ("srd/rdmap0:1", "rdma"),
        ("cuda_ipc/cuda", "nvlink"),
        ("cma/memory", "shm"),
        ("cma", "shm"),
        ("sysv/memory", "shm"),
        ("posix/memory", "shm"),
        ("self/memory", "shm"),
        ("tcp/eth0", "tcp"),
        ("cuda_copy/cuda", "other"),
        ("rcfoo/x", "other"),
        ("", "other"),
    ],
)
def test_links_fall_into_kinds(link: str, kind: Kind) -> None:
    assert kind_of(link) == kind


@pytest.mark.parametrize("text", [RDMA, NVLINK, PATHS, RDMA + NVLINK, OTHER_OPERATION])
def test_fast_links_pass_and_so_does_knowing_nothing_yet(text: str) -> None:
    assert check(["rdma", "nvlink"], parse(text), ROW_BYTES) is None


def test_a_fall_back_to_tcp_is_told_with_the_agent_and_the_link() -> None:
    assert check(["rdma", "nvlink"], parse(RDMA + TCP + TCP)) == (
        "rdma or nvlink is required, but agent d16896 (intra-node cfg#1) reads into host memory from host over tcp/lo "
        "(software emulation)"
    )
    assert check(["tcp"], parse(TCP)) is None
    assert check([], parse(TCP)) is None
    assert check(["shm"], parse(CMA)) is None


def test_reads_into_the_hosts_memory_can_be_told_from_those_into_a_gpu() -> None:
    found = parse(NVLINK + TCP + NO_PROTOCOL)
    assert found.into("VRAM").links() == ("cuda_ipc/cuda",)
    assert found.into("DRAM").links() == ("tcp/lo",)
    assert found.into("VRAM").problems == found.into("DRAM").problems == found.problems


def test_reads_that_the_peers_cpu_has_to_send_are_no_rdma() -> None:
    assert "software emulation" in (check(["rdma"], parse(EMULATED_RDMA)) or "")
    assert "software emulation" in (check(["rdma"], parse(RDMA), num_bytes=2048) or "")


def test_the_environment_asks_for_a_file_of_each_process(tmp_path: Path) -> None:
    environ = {"PATH": "/bin"}
    prepare_env(environ, tmp_path / "new" / "logs")
    assert environ.pop("UCX_LOG_FILE") == str(tmp_path / "new" / "logs" / LOG_NAME)
    assert environ == {"PATH": "/bin", "UCX_LOG_FILE_SIZE": "1mb", "UCX_PROTO_INFO": READS_ONLY}
    assert (tmp_path / "new" / "logs").is_dir(), "UCX aborts the process otherwise"


@pytest.mark.parametrize(
    ("theirs", "added"),
    [
        ({"UCX_PROTO_INFO": "y"}, {"UCX_LOG_FILE", "UCX_LOG_FILE_SIZE"}),
        ({"UCX_LOG_FILE": "mine.%p", "UCX_PROTO_INFO": "n"}, set()),
        ({"UCX_LOG_FILE": "mine.%p"}, {"UCX_PROTO_INFO"}),
        ({"UCX_LOG_FILE": "stdout"}, set()),
    ],
)
def test_what_the_operator_has_set_stays(theirs: dict[str, str], added: set[str], tmp_path: Path) -> None:
    environ = dict(theirs)
    prepare_env(environ, tmp_path)
    assert environ.keys() - theirs.keys() == added
    assert environ.items() >= theirs.items()


def test_a_place_where_ucx_could_not_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environ: dict[str, str] = {}
    with pytest.raises(OSError, match="file"):
        prepare_env(environ, tmp_path / "file")
    assert environ == {}


def reader_of(path: Path) -> TransportReader:
    path.touch()
    return TransportReader({"UCX_LOG_FILE": str(path)})


def mine(text: str) -> str:
    return text.replace(f":{PID}:", f":{os.getpid()}:")


def test_only_what_is_new_is_told_even_when_a_line_comes_in_halves(tmp_path: Path) -> None:
    reader = reader_of(tmp_path / "log")
    text = mine(CMA)
    with (tmp_path / "log").open("a", encoding="utf-8") as log:
        for part in (text[:500], text[500:-9]):
            log.write(part)
            log.flush()
            assert reader.read_new() == Found()
        log.write(text[-9:])
        log.flush()
    assert reader.read_new().links() == ("cma/memory",)
    assert reader.read_new() == Found()


def test_a_log_that_ucx_has_started_anew_is_read_from_its_start(tmp_path: Path) -> None:
    reader = reader_of(tmp_path / "log")
    (tmp_path / "log").write_text(mine(OTHER_OPERATION + CMA), encoding="utf-8")
    assert reader.read_new().links() == ("cma/memory",)
    (tmp_path / "log").write_text(mine(TCP), encoding="utf-8")
    assert reader.read_new().links() == ("tcp/lo",)


def test_the_name_of_the_log_is_made_as_ucx_makes_it() -> None:
    path = TransportReader({"UCX_LOG_FILE": "/logs/%h-%p"}).path
    assert path == Path(f"/logs/{socket.gethostname().split('.')[0]}-{os.getpid()}")


@pytest.mark.parametrize("environ", [{}, {"UCX_LOG_FILE": "stdout"}, {"UCX_LOG_FILE": "/nowhere/%p"}])
def test_without_a_log_nothing_is_found(environ: dict[str, str]) -> None:
    assert TransportReader(environ).read_new() == Found()


# Two agents, one read between them; a process of its own, for UCX looks at its environment once.
LIVE = """
import json, os, sys, time
from pathlib import Path
import numpy as np
from nixl._api import nixl_agent, nixl_agent_config
from kv_transfer.transport import TransportReader, check, prepare_env

prepare_env(os.environ, Path(sys.argv[1]))
reader = TransportReader(os.environ)
rows = [np.full(1 << 20, value, dtype=np.uint8) for value in (0, 7)]
decode, prefill = (nixl_agent(name, nixl_agent_config(backends=["UCX"])) for name in ("live decode", "live prefill"))
lists = [[(each.ctypes.data, each.nbytes, 0)] for each in rows]
for agent, each in zip((decode, prefill), rows):
    agent.register_memory([(each.ctypes.data, each.nbytes, 0, "")], "DRAM")
peer = decode.add_remote_agent(prefill.get_agent_metadata())
early = reader.read_new()
mine, theirs = (decode.get_xfer_descs(each, "DRAM") for each in lists)
read = decode.initialize_xfer("READ", mine, theirs, peer)
decode.transfer(read)
deadline = time.monotonic() + 5
while (state := decode.check_xfer_state(read)) == "PROC" and time.monotonic() < deadline:
    prefill.get_new_notifs()
found = reader.read_new()
print(json.dumps({
    "state": state, "right": bool((rows[0] == 7).all()), "early": len(early.plans), "links": found.links(1 << 20),
    "agents": [plan.agent for plan in found.plans], "verdict": check(["rdma", "nvlink"], found),
}))
"""


def test_real_agents_say_how_they_read(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("UCX_")}
    started = [
        subprocess.Popen([sys.executable, "-c", LIVE, tmp_path], env=clean | choice, stdout=subprocess.PIPE, text=True)
        for choice in ({}, {"UCX_TLS": "tcp"})
    ]
    outputs = [process.communicate(timeout=60)[0] for process in started]
    by_default, by_tcp = (json.loads(output.splitlines()[-1]) for output in outputs)
    for said in (by_default, by_tcp):
        assert (said["state"], said["right"], said["early"]) == ("DONE", True, 0)
        assert said["agents"] == ["live decode"]
    assert {kind_of(link) for link in by_tcp["links"]} == {"tcp"}
    assert "agent live decode" in by_tcp["verdict"]
    # Reading another process's memory may be forbidden in a container, where UCX falls back.
    assert {kind_of(link) for link in by_default["links"]} <= {"shm", "tcp"}
    logs = list(tmp_path.iterdir())
    assert len(logs) == 2
    assert all(log.stat().st_size < 4096 for log in logs)
    assert not any("ucp_get" in output for output in outputs)
