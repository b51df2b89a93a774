"""Reading a spec: one readable message that names every key at fault."""

from pathlib import Path

import pytest

from deploy.spec_file import DEFAULT_SPEC, SpecError, load_spec

GOOD = "name: small\nmodel: nano\nserved_model_name: m\n"


@pytest.fixture
def spec_path(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(GOOD)
    return path


def message_of(path: Path, *overrides: str) -> str:
    with pytest.raises(SpecError) as caught:
        load_spec(path, overrides)
    return str(caught.value)


def test_the_shipped_spec_is_valid_and_small() -> None:
    spec = load_spec(DEFAULT_SPEC)
    assert (spec.model, spec.engine.device, spec.engine.dtype) == ("nano", "cpu", "float32")


def test_an_unknown_key_is_named_by_its_path(spec_path: Path) -> None:
    spec_path.write_text(GOOD + "prefill:\n  replica: 2\n")
    assert "  prefill.replica: no such key" in message_of(spec_path).splitlines()


def test_every_fault_has_one_line_with_path_and_value(spec_path: Path) -> None:
    spec_path.write_text(GOOD + "prefill: {replicas: 0}\nrouter: {port: 99999}\nengine: {device: tpu}\n")
    lines = message_of(spec_path).splitlines()
    assert len(lines) == 4
    assert any(line.startswith("  prefill.replicas: ") and "got 0" in line for line in lines)
    assert any(line.startswith("  router.port: 99999 is not a port") for line in lines)
    assert any(line.startswith("  engine.device: ") and "'tpu'" in line for line in lines)


def test_a_wrong_union_arm_is_reported_under_the_key_itself(spec_path: Path) -> None:
    lines = message_of(spec_path, "prefill.port=some").splitlines()[1:]
    assert lines
    assert all(line.startswith("  prefill.port: ") for line in lines)


def test_a_key_written_twice_is_an_error(spec_path: Path) -> None:
    spec_path.write_text(GOOD + "name: other\n")
    assert "'name' is written twice" in message_of(spec_path)


@pytest.mark.parametrize("content", ["- a\n- b\n", "", "just text"])
def test_a_file_that_is_no_mapping_is_refused(spec_path: Path, content: str) -> None:
    spec_path.write_text(content)
    assert "must hold a mapping" in message_of(spec_path)


def test_broken_yaml_is_refused_with_its_place(spec_path: Path) -> None:
    spec_path.write_text("name: [")
    assert "line 1" in message_of(spec_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    assert message_of(path) == f"{path} can't be read: No such file or directory"


def test_overrides_reach_nested_keys_in_order(spec_path: Path) -> None:
    spec = load_spec(spec_path, ["prefill.replicas=2", "prefill.replicas=3", "engine.kv_cache_bytes=2MiB"])
    assert (spec.prefill.replicas, spec.engine.kv_cache_bytes) == (3, 2 << 20)


@pytest.mark.parametrize("override", ["prefill.replicas", "=3", "a..b=1", ".a=1"])
def test_a_malformed_override_says_how_to_write_it(spec_path: Path, override: str) -> None:
    assert "write it as key=value" in message_of(spec_path, override)


def test_an_override_below_a_plain_value_is_refused(spec_path: Path) -> None:
    assert "name is a value, not a section" in message_of(spec_path, "name.first=x")
