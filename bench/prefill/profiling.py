"""The kernels that a call runs on a device, as torch's profiler sees them."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bench.prefill.trace import Kernel

CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")


def kernels_of(call: Callable[[], object]) -> list[Kernel]:
    """In the order of their starts."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return kernels_in(events)


def kernels_in(events: list[dict[str, Any]]) -> list[Kernel]:
    """Those of a Chrome trace's events that run on a device."""
    kernels = [
        Kernel(event["name"], int(event["args"]["stream"]), float(event["ts"]), float(event["ts"]) + event["dur"])
        for event in events
        if event.get("cat") in CATEGORIES and event.get("ph") == "X"
    ]
    return sorted(kernels, key=lambda kernel: kernel.start_us)
