"""Whether a checkpoint is one of this model, told from its config.json and file headers before a weight is loaded.

``python -m msa_model.preflight DIR [--config-only] [--sizes] [--json]`` names what is missing, unexpected or of the
wrong shape or number format, and ends with 1 if anything is. Needs neither torch nor vLLM.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msa_model.checkpoint_files import UNREADABLE, FoundTensor, Headers, read_headers, read_text
from msa_model.checkpoint_names import is_ignored, stored_name
from msa_model.checkpoint_sizes import describe_sizes, sizes_of
from msa_model.checkpoint_tensors import ExpectedTensor, expected_tensors
from msa_model.config import check_model_config
from msa_model.preflight_report import Report
from msa_model.published import ARCHITECTURE, MODEL_TYPE, published_quantization, with_defaults
from msa_model.refusals import require, shown


def check_folder(folder: Path, *, is_config_only: bool = False, overrides: dict[str, Any] | None = None) -> Report:
    """Compare a checkpoint folder with the model that its config.json describes.

    Args:
        is_config_only: don't look at the weights.
        overrides: replace keys of config.json, like vLLM's ``--hf-overrides``.
    """
    report = Report()
    values = read_config(folder, report)
    if values is None:
        return report
    config = with_defaults(values | (overrides or {}))
    try:
        check_model_config(config)
        # vLLM takes the first of them for the model, whatever its type, and none where there is none.
        architectures = getattr(config, "architectures", None)
        require(architectures == [ARCHITECTURE], "architectures", architectures, f"[{ARCHITECTURE!r}]")
        # What a check stumbles over where a key is of another kind than it should be counts like what it finds.
        expected = expected_tensors(config)
    except UNREADABLE as error:
        report.add("config", "config.json", str(error) or type(error).__name__)
        return report
    if not is_config_only:
        compare(expected, read_headers(folder), report)
    return report


def read_config(folder: Path, report: Report) -> dict[str, Any] | None:
    """The values of config.json; None, and an entry in ``report``, if there are none for this model."""
    path = folder / "config.json"
    try:
        values = json.loads(read_text(path))
    except UNREADABLE as error:
        report.add("config", path.name, f"can't be read: {error}")
        return None
    model_type = values.get("model_type") if isinstance(values, dict) else None
    if model_type != MODEL_TYPE:
        report.add("config", path.name, f"model_type is {shown(model_type)}, not {MODEL_TYPE!r}")
        return None
    return dict(values)


def compare(expected: dict[str, ExpectedTensor], headers: Headers, report: Report) -> None:
    """Write what is wrong with the tensors of ``headers`` into ``report``."""
    report.num_expected, report.num_files, report.num_bytes = len(expected), headers.num_files, headers.num_bytes
    for name, reason in headers.damaged.items():
        report.add("damaged", name, reason)
    seen: set[str] = set()
    for found_name, found in headers.tensors.items():
        name = stored_name(found_name)
        if name not in expected and is_ignored(name):
            report.add("ignored", found_name, f"{found.num_bytes} bytes in {found.file}")
            report.num_ignored_bytes += found.num_bytes
            continue
        if name not in expected:
            report.add("unexpected", found_name, f"in {found.file}")
            continue
        seen.add(name)
        _compare_one(found_name, expected[name], found, report)
    report.num_found = len(seen)
    for name in expected.keys() - seen:
        report.add("missing", name, f"{expected[name].dtypes[0]}{list(expected[name].shape)}")


def _compare_one(name: str, wanted: ExpectedTensor, found: FoundTensor, report: Report) -> None:
    # Some exporters write a single number as a list of one.
    if found.shape != wanted.shape and not (wanted.shape == () and found.shape == (1,)):
        report.add("wrong shape", name, f"{list(found.shape)}, not {list(wanted.shape)}")
    if found.dtype not in wanted.dtypes:
        report.add("wrong dtype", name, f"{found.dtype}, not {' or '.join(wanted.dtypes)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, print, and return 0 for a checkpoint that can be loaded, 1 for another."""
    parser = argparse.ArgumentParser(prog="python -m msa_model.preflight", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="checkpoint folder; with --sizes, none: as published")
    parser.add_argument("--config-only", action="store_true", help="look at config.json alone")
    parser.add_argument("--sizes", action="store_true", help="print parameters and bytes of each kind of module")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if options.folder is None:
        if not options.sizes:
            parser.error("name a checkpoint folder, or ask for --sizes")
        _print_sizes({"quantization_config": published_quantization()}, as_json=options.json)
        return 0
    report = check_folder(options.folder, is_config_only=options.config_only)
    if options.sizes and not report.has("config"):
        _print_sizes(read_config(options.folder, report) or {}, as_json=options.json)
        if not report.is_good:
            print(f"{parser.prog}: the checkpoint can't be loaded: {report.reason()}", file=sys.stderr)
    else:
        print(json.dumps(report.as_json(), indent=2) if options.json else report.as_text(options.folder))
    return 0 if report.is_good else 1


def _print_sizes(values: dict[str, Any], *, as_json: bool) -> None:
    sizes = sizes_of(expected_tensors(with_defaults(values)))
    print(json.dumps(sizes, indent=2) if as_json else describe_sizes(sizes))


if __name__ == "__main__":
    sys.exit(main())
