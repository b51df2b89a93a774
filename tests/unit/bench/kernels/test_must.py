"""must-3 passes a good result, fails each way of missing it, and can't be passed by leaving cases out."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from bench.kernels.__main__ import main
from bench.kernels.must import verdicts

SIZES = [
    ("rank of TP4", 32, 1, 1),
    ("rank of TP4", 128, 8, 1),
    ("rank of TP4", 128, 8, 8),
    ("rank of TP4", 512, 1, 1),
    ("rank of TP4", 512, 8, 1),
    ("TP1", 128, 8, 8),
]


def case(op: str, shape: str, context: int, batch: int, rows: int) -> dict[str, Any]:
    us = {"ours": 10.0, "upstream_fp8": 16.0, "upstream_bf16": 30.0}
    floor = {"read_bytes": 1000, "flops": 1000, "int_ops": 1000}
    size = {"shape": shape, "context": context * 1024, "batch": batch, "query_rows": rows}
    return {"op": op, **size, "floor": floor, "us": us}


def good_result() -> dict[str, Any]:
    attention = [case("attention", "TP1", 128, batch, rows) for batch, rows in ((1, 1), (32, 1), (32, 8))]
    attention[0]["us"]["ours"] = 16.9
    return {"cases": [*(case("index", *size) for size in SIZES), *attention]}


def failed(result: dict[str, Any]) -> set[str]:
    return {verdict.demand for verdict in verdicts(result) if not verdict.is_met}


def with_us(op: str, size: tuple[str, int, int, int], **us: float) -> dict[str, Any]:
    result = copy.deepcopy(good_result())
    (found,) = [
        c
        for c in result["cases"]
        if c["op"] == op
        and (c["shape"], c["context"] // 1024) == size[:2]
        and (c["batch"], c["query_rows"]) == size[2:]
    ]
    found["us"] |= us
    return result


def test_a_good_result_keeps_every_demand() -> None:
    assert not failed(good_result())


@pytest.mark.parametrize(
    ("op", "size", "us", "demand"),
    [
        ("index", ("rank of TP4", 128, 8, 1), {"ours": 10.7}, "index: times as fast as upstream fp8, 1 rows"),
        ("index", ("rank of TP4", 512, 8, 1), {"upstream_bf16": 25.9}, "index: times as fast as upstream bf16, 1 rows"),
        ("index", ("rank of TP4", 128, 8, 8), {"upstream_fp8": 13.9}, "index: times as fast as upstream fp8, 8 rows"),
        ("index", ("rank of TP4", 128, 8, 8), {"upstream_bf16": 21.9}, "index: times as fast as upstream bf16, 8 rows"),
        (
            "index",
            ("rank of TP4", 512, 1, 1),
            {"ours": 10.7},
            "index: one request of 512K, times as fast as upstream fp8",
        ),
        ("index", ("TP1", 128, 8, 8), {"ours": 16.1}, "index: times as fast as upstream's best, batch 8 and up"),
        ("attention", ("TP1", 128, 32, 8), {"ours": 10.7}, "attention: times as fast as upstream's best"),
        (
            "attention",
            ("TP1", 128, 32, 1),
            {"ours": 16.1},
            "attention: times as fast as upstream's best, batch 8 and up",
        ),
        ("attention", ("TP1", 128, 1, 1), {"ours": 17.1}, "attention: us behind upstream's best at one row"),
    ],
)
def test_a_figure_that_falls_short_fails_its_demand(
    op: str, size: tuple[str, int, int, int], us: dict[str, float], demand: str
) -> None:
    assert failed(with_us(op, size, **us)) == {demand}


def test_a_case_without_a_peer_shows_nothing() -> None:
    result = good_result()
    del result["cases"][0]["us"]["upstream_fp8"]
    with pytest.raises(ValueError, match="lacks upstream_fp8"):
        verdicts(result)


def test_a_demand_without_a_case_is_not_kept() -> None:
    result = good_result()
    result["cases"] = [c for c in result["cases"] if c["op"] != "index" or c["query_rows"] == 1]
    with pytest.raises(ValueError, match="8 rows"):
        verdicts(result)
    with pytest.raises(ValueError, match=r"no case shows: attention: .*; index: "):
        verdicts({"cases": []})


@pytest.mark.parametrize("op", ["index", "attention"])
def test_an_op_that_was_left_out_fails_the_check_and_its_demands_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], op: str
) -> None:
    result = good_result()
    result["cases"] = [c for c in result["cases"] if c["op"] != op]
    file = tmp_path / "result.json"
    file.write_text(json.dumps(result))
    assert main(["--check", str(file)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("FAIL: no case shows: ")
    assert all(demand.startswith(op) for demand in out.removeprefix("FAIL: no case shows: ").split("; "))
    assert f"{op}: times as fast as upstream's best, batch 8 and up" in out


def test_ops_without_demands_are_left_alone() -> None:
    result = good_result()
    result["cases"].append(
        case("prefill", "TP1", 128, 1, 2048) | {"us": dict.fromkeys(("ours", "upstream_fp8", "upstream_bf16"), 1.0)}
    )
    assert not failed(result)


@pytest.mark.parametrize(("ours", "status", "word"), [(10.0, 0, "pass:"), (99.0, 1, "FAIL:")])
def test_the_check_says_so_and_ends_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ours: float, status: int, word: str
) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps(with_us("index", ("rank of TP4", 512, 8, 1), ours=ours)))
    assert main(["--check", str(file)]) == status
    assert word in capsys.readouterr().out
