"""Bounds on what a client may ask a grammar compiler to unroll.

A schema of 60 bytes with ``minItems: 1000000000`` made a worker take all the machine's memory. Workers compile schemas
inside the process that serves everyone, so such a request has to be stopped before it reaches one.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from wire.errors import BadRequest

# The fields that hold schemas, patterns or grammars.
SCHEMA_FIELDS = ("response_format", "structured_outputs", "tools", "text", "output_config")
REPETITION_KEYS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
# At this many repetitions the compilers take about 0.1 s and 100 MB (measured with llguidance 1.7 and xgrammar 0.2).
MAX_REPETITIONS = 65_536
PATTERN_KEYS = frozenset({"pattern", "regex", "grammar"})
_QUANTIFIER = re.compile(r"\{\s*(\d+)?\s*,?\s*(\d+)?\s*\}")


def check_schema_bounds(fields: Mapping[str, Any]) -> None:
    """Refuse repetitions beyond ``MAX_REPETITIONS``, however deep they lie.

    Raises:
        BadRequest: ``param`` is the top-level field.
    """
    for name in SCHEMA_FIELDS:
        if fields.get(name) is not None:
            _check(fields[name], name)


def _check(root: Any, field: str) -> None:
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, dict):
            for key, value in node.items():
                _check_member(key, value, field)
                pending.append(_parsed(value) if key in ("json", "structural_tag") else value)


def _check_member(key: str, value: Any, field: str) -> None:
    if key in REPETITION_KEYS and isinstance(value, int | float) and value > MAX_REPETITIONS:
        raise BadRequest(f"`{field}`: `{key}` must be at most {MAX_REPETITIONS}.", param=field)
    if key in PATTERN_KEYS and isinstance(value, str):
        numbers = (number for match in _QUANTIFIER.findall(value) for number in match if number)
        if any(len(number) > 9 or int(number) > MAX_REPETITIONS for number in numbers):
            raise BadRequest(f"`{field}`: a repetition in `{key}` must be at most {MAX_REPETITIONS}.", param=field)


def _parsed(value: Any) -> Any:
    """A schema may come as text; text that is no JSON is left to the worker to refuse."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None
