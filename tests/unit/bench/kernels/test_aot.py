"""What is asked of compiled kernels, and how they are listed. `make aot` compiles all of them; CI runs it too."""

from dataclasses import replace

import pytest

from bench.kernels.aot import all_specimens, table
from bench.kernels.compiled import Report, failures_of
from bench.kernels.specimens import TARGETS

GOOD = Report("sm_100", "a kernel", 40, 1024, 0, 7.71, 32, 0, ())


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_arguments_of_every_specimen_fit_its_kernel(target: str) -> None:
    for specimen in all_specimens(target):
        assert {*specimen.types, *specimen.constants} == set(specimen.kernel.arg_names)


def test_a_line_tells_registers_spills_and_integer_work() -> None:
    line = table([GOOD, replace(GOOD, int_ops_per_8_values=None, num_qmul4=0)]).splitlines()
    assert line[1].split() == ["a", "kernel", "sm_100", "40", "1024", "0", "7.7", "32"]
    assert line[2].split() == ["a", "kernel", "sm_100", "40", "1024", "0"]


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        ({}, []),
        ({"spills": 3}, ["3 spills"]),
        ({"num_qmul4": 0}, ["no QMUL4"]),
        ({"num_e2m1_to_f16": 2}, ["2 conversions of E2M1 to F16"]),
        ({"num_qmul4": 0, "target": "sm_107"}, []),
    ],
)
def test_what_must_hold_of_machine_code_is_held(change: dict[str, object], failure: list[str]) -> None:
    decode = all_specimens("sm_100")[0]
    assert decode.loop_values
    assert failures_of(decode, replace(GOOD, **change)) == failure  # type: ignore[arg-type]


def test_qmul4_is_asked_only_of_what_decodes_nvfp4() -> None:
    (encode,) = [specimen for specimen in all_specimens("sm_100") if specimen.name == "MXFP8 rows, encode"]
    assert encode.loop_values
    assert not failures_of(encode, replace(GOOD, num_qmul4=0))
