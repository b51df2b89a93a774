"""Assembly that gives one scale to four bytes is found out if a register's four bytes are no neighbours."""

from bench.kernels.layouts import has_four_neighbours, misplaced_bytes

NEIGHBOURS = "#ttg.linear<{register = [[0, 1], [0, 2], [0, 4], [32, 0]], lane = [[0, 16]], warp = [], block = []}>"
ROWS_FIRST = "#ttg.linear<{register = [[16, 0], [32, 0], [0, 1], [0, 2]], lane = [[1, 0]], warp = [], block = []}>"
OP = (
    '%1:2 = tt.elementwise_inline_asm "{ BEFORE mul.rn.satfinite.e4m3x4.e2m1x4.e4m3x4 $0, l, s; }" %2, %3 '
    ": tensor<128x64xi8, #own>, tensor<128x64xi8, #own> -> tensor<128x64xf8E4M3FN, #own>"
)


def module(layout: str, before: str = "") -> str:
    return f"#own = {layout}\n#other = {NEIGHBOURS}\nmodule {{\n    {OP.replace('BEFORE', before)}\n}}\n"


def test_neighbours_of_one_token_are_right() -> None:
    assert misplaced_bytes(module(NEIGHBOURS)) == []


def test_bytes_of_several_tokens_are_wrong() -> None:
    (found,) = misplaced_bytes(module(ROWS_FIRST))
    assert ROWS_FIRST in found


def test_bytes_of_several_tokens_are_right_with_a_scale_each() -> None:
    assert misplaced_bytes(module(ROWS_FIRST, "prmt.b32 s, $3, 0, 0x1100;")) == []


def test_other_assembly_may_lie_anyhow() -> None:
    assert misplaced_bytes(module(ROWS_FIRST).replace("mul.rn.satfinite.e4m3x4", "mul.rn.f16x2")) == []


def test_a_blocked_layout_needs_four_columns_a_thread_and_rows_last() -> None:
    text = "#ttg.blocked<{{sizePerThread = [1, {}], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [{}]}}>"
    assert has_four_neighbours(text.format(16, "1, 0"))
    assert not has_four_neighbours(text.format(2, "1, 0"))
    assert not has_four_neighbours(text.format(16, "0, 1"))


def test_a_layout_that_is_not_known_is_reported() -> None:
    assert misplaced_bytes(module(NEIGHBOURS).replace("#own =", "#lost =")) != []
