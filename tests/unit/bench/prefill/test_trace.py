"""Communication counts as exposed exactly where nothing computes, whatever streams kernels are on."""

from typing import Any

import pytest

from bench.prefill.profiling import kernels_in
from bench.prefill.trace import Kernel, longest, mean_of_dicts, overlap_of, reduced, union

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def compute(start_us: float, end_us: float, stream: int = 7) -> Kernel:
    return Kernel("marlin", stream, start_us, end_us)


def communication(start_us: float, end_us: float, stream: int = 20) -> Kernel:
    return Kernel(NCCL, stream, start_us, end_us)


def test_communication_between_two_kernels_is_exposed() -> None:
    found = overlap_of([compute(0, 10), communication(10, 14), compute(14, 20)])
    assert (found.step_us, found.communication_us, found.compute_us) == (20, 4, 16)
    assert (found.exposed_us, found.idle_us, found.hidden) == (4, 0, 0)


def test_communication_under_a_kernel_is_hidden() -> None:
    found = overlap_of([compute(0, 10), communication(2, 8), compute(11, 12)])
    assert (found.exposed_us, found.idle_us, found.hidden) == (0, 1, 1)


def test_what_sticks_out_is_exposed() -> None:
    found = overlap_of([compute(0, 10), communication(6, 14), compute(12, 20)])
    assert (found.communication_us, found.exposed_us, found.hidden) == (8, 2, 0.75)


def test_kernels_side_by_side_count_once() -> None:
    kernels = [compute(0, 10), compute(5, 12, stream=8), communication(8, 14), communication(9, 13, stream=21)]
    found = overlap_of(kernels)
    assert (found.compute_us, found.communication_us, found.exposed_us) == (12, 6, 2)


def test_a_gap_is_neither() -> None:
    found = overlap_of([compute(0, 2), communication(5, 6), compute(9, 10)])
    assert (found.step_us, found.exposed_us, found.idle_us) == (10, 1, 6)


def test_a_step_without_communication_exposes_none() -> None:
    assert overlap_of([compute(3, 4)]).hidden == 1


def test_an_empty_trace_shows_nothing() -> None:
    with pytest.raises(ValueError, match="no kernel"):
        overlap_of([])


@pytest.mark.parametrize(
    "name",
    [
        NCCL,
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        "rcclGenericKernel",
        "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 2>(vllm::RankData*)",
        "void quickreduce::allreduce_prototype_twoshot<...>",
        "two_shot_all_reduce_kernel_inplace",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<...>",
        "Memcpy PtoP (Device -> Device)",
    ],
)
def test_kernels_between_gpus_are_communication(name: str) -> None:
    assert Kernel(name, 1, 0, 1).kind == "communication"


@pytest.mark.parametrize("name", ["Memcpy DtoD (Device -> Device)", "reduce_kernel", "gather_elements", "_attend"])
def test_others_are_compute(name: str) -> None:
    assert Kernel(name, 1, 0, 1).kind == "compute"


def test_a_union_has_no_overlaps() -> None:
    assert union([(5, 6), (0, 2), (1, 3), (3, 4)]) == [(0, 4), (5, 6)]


def test_a_reduced_trace_joins_neighbours_of_one_kind_on_one_stream() -> None:
    kernels = [compute(100, 110), compute(111, 120), communication(105, 130), compute(200, 210)]
    assert reduced(kernels) == [
        {"stream": 7, "kind": "compute", "start_us": 0, "end_us": 20, "kernels": 2},
        {"stream": 20, "kind": "communication", "start_us": 5, "end_us": 30, "kernels": 1},
        {"stream": 7, "kind": "compute", "start_us": 100, "end_us": 110, "kernels": 1},
    ]


def test_the_longest_names_come_first() -> None:
    found = longest([compute(0, 3), communication(0, 5), compute(6, 9)], count=1)
    assert found == [{"name": "marlin", "kind": "compute", "us": 6, "kernels": 2}]


def test_ranks_are_averaged() -> None:
    assert mean_of_dicts([{"exposed_us": 1.0, "hidden": 0.5}, {"exposed_us": 2.0, "hidden": 0.0}]) == {
        "exposed_us": 1.5,
        "hidden": 0.25,
    }


def test_only_what_runs_on_a_device_is_taken_from_a_profile() -> None:
    place = {"args": {"stream": 7, "device": 0}, "ph": "X"}
    events: list[dict[str, Any]] = [
        {"cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 9, "ph": "X", "args": {}},
        {"cat": "gpu_memcpy", "name": "Memcpy DtoD", "ts": 20.5, "dur": 1.5, **place},
        {"cat": "kernel", "name": "mm", "ts": 10, "dur": 2, **place},
        {"name": "process_name", "ph": "M", "args": {"name": "python"}},
    ]
    assert kernels_in(events) == [Kernel("mm", 7, 10, 12), Kernel("Memcpy DtoD", 7, 20.5, 22)]
