"""Reads a deployment spec: YAML file, then ``key=value`` overrides, then the checks of ``spec``."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from deploy.spec import DeploymentSpec

DEFAULT_SPEC = Path(__file__).parent / "examples" / "cpu.yaml"


class SpecError(Exception):
    """The deployment can't be started as written; the message names each key path at fault."""


class UniqueKeyLoader(yaml.SafeLoader):
    """YAML where a key written twice in one mapping is an error; plain YAML silently keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build one mapping; raises ConstructorError naming the key that is there twice."""
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key_node.value!r} is written twice", key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)


def load_spec(path: Path, overrides: Iterable[str] = ()) -> DeploymentSpec:
    """Read ``path``, apply each ``a.b=value`` in turn and check the whole.

    Raises SpecError for a file that can't be read, for YAML that can't be parsed and for each wrong or unknown key.
    """
    content = _read_mapping(path)
    for override in overrides:
        _apply_override(content, override)
    try:
        return DeploymentSpec.model_validate(content)
    except ValidationError as error:
        raise SpecError("\n".join([f"{path} can't be used:", *_describe(error)])) from error


def _read_mapping(path: Path) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=UniqueKeyLoader)
    except OSError as error:
        raise SpecError(f"{path} can't be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise SpecError(f"{path} must hold a mapping of keys to values")
    return content


def _apply_override(content: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise SpecError(f"--set {override}: write it as key=value, for example --set prefill.replicas=2")
    try:
        value = yaml.load(text, Loader=UniqueKeyLoader)
    except yaml.YAMLError as error:
        raise SpecError(f"--set {key}: the value is not valid YAML") from error
    section = content
    for depth, part in enumerate(parts[:-1], start=1):
        section = section.setdefault(part, {})
        if not isinstance(section, dict):
            raise SpecError(f"--set {key}: {'.'.join(parts[:depth])} is a value, not a section")
    section[parts[-1]] = value


def _describe(error: ValidationError) -> list[str]:
    """One line a fault: its key path, what is wrong, and the value where it is short."""
    lines: dict[str, None] = {}
    for fault in error.errors(include_url=False):
        # A union (`auto` or a number) reports a fault for each arm; the path is the same but for the arm's name.
        path = ".".join(str(part) for part in fault["loc"] if not str(part).startswith(("literal[", "int")))
        message = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            message = "no such key"
        elif isinstance(fault["input"], str | int | float):
            message = f"{message} (got {fault['input']!r})"
        lines[f"  {path}: {message}" if path else f"  {message}"] = None
    return list(lines)
