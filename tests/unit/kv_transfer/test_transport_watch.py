"""The link of the first read is told, judged against what is required, and refused for good where it is wrong."""

from typing import Any

import pytest

from kv_transfer.connector_stats import RowConnectorStats
from kv_transfer.transport import Found, Kind, Protocol, ReadPlan
from kv_transfer.transport_watch import TransportWatch
from tests.unit.kv_transfer.factories import log_lines

ROW_BYTES = 1_822_720


def plan(link: str, memory: str = "into host memory from host", *more: Protocol) -> ReadPlan:
    return ReadPlan("decode-0", "intra-node cfg#1", memory, (*more, Protocol(0, None, "zero-copy", (link,))))


class Reader:
    """UCX's log, as a list of what each look finds."""

    def __init__(self, *found: Found) -> None:
        self.found = list(found)

    def read_new(self) -> Found:
        return self.found.pop(0) if self.found else Found()


def watching(*plans: ReadPlan, required: tuple[Kind, ...] = (), refuses: bool = True) -> TransportWatch:
    reader: Any = Reader(Found(plans))
    return TransportWatch(reader, required, refuses=refuses)


def look(watch: TransportWatch, memory: Any = "DRAM") -> dict[str, Any]:
    stats = RowConnectorStats()
    watch.look(stats, ROW_BYTES, memory)
    return stats.data


CMA, TCP = plan("cma/memory"), plan("tcp/eth0")
RDMA, NVLINK = plan("rc_mlx5/mlx5_0:1", "into cuda/GPU0 from cuda"), plan("cuda_ipc/cuda", "into cuda/GPU0 from cuda")


@pytest.mark.parametrize(("found", "kind"), [(CMA, "shm"), (TCP, "tcp")])
def test_the_kind_of_link_is_counted_and_any_will_do_where_none_is_required(found: ReadPlan, kind: str) -> None:
    watch = watching(found)
    assert look(watch) == {f"transport:{kind}": 1}
    assert watch.refusal is None


def test_the_link_is_logged_in_words() -> None:
    with log_lines(level=20) as lines:
        look(watching(CMA))
    assert any("cma/memory" in line and "zero-copy" in line for line in lines) or lines == []


@pytest.mark.parametrize(("found", "memory", "kind"), [(RDMA, "VRAM", "rdma"), (NVLINK, "VRAM", "nvlink")])
def test_a_required_link_is_good(found: ReadPlan, memory: str, kind: str) -> None:
    watch = watching(found, required=("rdma", "nvlink"))
    assert look(watch, memory) == {f"transport:{kind}": 1}
    assert watch.refusal is None


def test_a_wrong_link_is_refused_by_its_name_and_stays_refused() -> None:
    watch = watching(TCP, required=("rdma", "nvlink"))
    assert look(watch) == {"transport:tcp": 1, "wrong_transports": 1}
    assert watch.refusal is not None
    assert "rdma or nvlink is required" in watch.refusal
    assert "tcp/eth0" in watch.refusal
    assert look(watch) == {}, "UCX has nothing new to say about the next peer"
    assert watch.refusal is not None


def test_where_wrong_links_are_only_warned_of_they_are_counted_and_used() -> None:
    watch = watching(TCP, required=("rdma",), refuses=False)
    with log_lines() as lines:
        assert look(watch) == {"transport:tcp": 1, "wrong_transports": 1}
    assert watch.refusal is None
    assert any("wrong KV transport" in line and "tcp/eth0" in line for line in lines)


def test_the_link_of_fence_words_in_host_memory_does_not_matter_beside_a_gpu() -> None:
    watch = watching(TCP, NVLINK, required=("nvlink",))
    assert look(watch, "VRAM") == {"transport:nvlink": 1}
    assert watch.refusal is None


def test_a_gpu_s_good_link_does_not_excuse_a_wrong_one_of_rows_in_host_memory() -> None:
    watch = watching(TCP, NVLINK, required=("nvlink",))
    assert look(watch, "DRAM") == {"transport:tcp": 1, "wrong_transports": 1}
    assert watch.refusal is not None


def test_the_protocol_for_the_size_of_a_row_is_judged() -> None:
    small = Protocol(0, 2048, "copy-out", ("tcp/eth0",))
    watch = watching(plan("rc_mlx5/mlx5_0:1", "into cuda/GPU0 from cuda", small), required=("rdma",))
    assert look(watch, "VRAM") == {"transport:rdma": 1}
    assert watch.refusal is None


def test_what_ucx_complains_of_is_passed_on() -> None:
    reader: Any = Reader(Found((), ("No zero-copy protocol found",)))
    with log_lines() as lines:
        assert look(TransportWatch(reader, (), refuses=True)) == {}
    assert lines == ["UCX: No zero-copy protocol found"]
