"""Machine code is read right: loops, instruction names, and what must not be in it."""

import re

import pytest

from bench.kernels.compiled import AMD_INTEGER, E2M1_TO_F16, NVIDIA_INTEGER, PTX_INTEGER, QMUL4, main_loop, nvidia_name

BRANCH = r"BRA.*`\((\.L_x_\d+)\)"


def test_the_main_loop_is_the_longest_way_back() -> None:
    lines = [
        "MOV",
        ".L_x_0:",
        "A",
        "B",
        "C",
        "@P0 BRA `(.L_x_0)",
        ".L_x_1:",
        "D",
        "BRA `(.L_x_1)",
        "BRA `(.L_x_2)",
        ".L_x_2:",
    ]
    assert main_loop(lines, BRANCH) == [".L_x_0:", "A", "B", "C", "@P0 BRA `(.L_x_0)"]


def test_code_without_a_loop_is_counted_whole() -> None:
    assert main_loop(["A", "BRA `(.L_x_2)", ".L_x_2:"], BRANCH) == ["A", "BRA `(.L_x_2)", ".L_x_2:"]


def test_the_branch_to_itself_behind_the_last_instruction_is_no_loop() -> None:
    lines = ["A", "EXIT", ".L_x_0:", "BRA `(.L_x_0)"]
    assert main_loop(lines, BRANCH) == lines


@pytest.mark.parametrize(
    ("line", "name"),
    [("@!P3 LOP3.LUT R2, R4, 0x7, RZ, 0xc0, !PT", "LOP3"), ("@UP0 ULEA.HI.X UR5", "ULEA"), ("LDL R3, [R1]", "LDL")],
)
def test_predicates_and_modifiers_are_no_part_of_a_name(line: str, name: str) -> None:
    assert nvidia_name(line) == name


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("QMUL4.E4M3x4.E2M1x4.E4M3x4.SATFINITE R8, R9, R10", QMUL4),
        ("F2FP.F16.E2M1.UNPACK_B R6, R2", E2M1_TO_F16),
        ("lop3.b32 	%r1, %r2, 7, %r3, 0xEA;", PTX_INTEGER),
        ("@%p1 shr.u32 %r1, %r2, 3;", PTX_INTEGER),
        ("v_perm_b32 v1, v2, v3, v4", AMD_INTEGER),
    ],
)
def test_instructions_are_recognised(line: str, pattern: re.Pattern[str]) -> None:
    assert pattern.search(line)


@pytest.mark.parametrize("line", ["mul.f32 %f1, %f2, %f3;", "add.rn.f16x2 %r1, %r2, %r3;", "mov.b32 %r1, %r2;"])
def test_floating_point_is_no_integer_work(line: str) -> None:
    assert not PTX_INTEGER.match(line)
    assert "FFMA" not in NVIDIA_INTEGER
