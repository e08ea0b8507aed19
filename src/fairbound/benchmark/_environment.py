"""What results were computed on: software, processor, device. Times cannot be compared without
it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

CPU_INFO = Path("/proc/cpuinfo")  # Linux; elsewhere from `platform`


def describe(date: str, device: torch.device | str = "cpu") -> dict[str, str | int]:
    """A description of the system, for `Store.note_system`. `date` is the caller's: nothing here
    reads a clock.

    >>> found = describe("2025-01-31")
    >>> found["date"], found["device"], found["threads"] == torch.get_num_threads()
    ('2025-01-31', 'cpu', True)
    """
    return {
        "date": date,
        "fairbound": version("fairbound"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "cpu": cpu_model(CPU_INFO),
        "cpus": usable_cpus(),
        "threads": torch.get_num_threads(),
        "device": device_name(torch.device(device)),
    }


def made_by(device: torch.device | str, seconds: float, code: str) -> dict[str, str | float]:
    """Who computed a batch of results by which code, and how long that took: beside each of them,
    not in its name."""
    where = torch.device(device)
    return {
        "device": device_name(where) if where.type == "cuda" else cpu_model(CPU_INFO),
        "kind": where.type,
        "host": platform.node(),
        "seconds": round(seconds, 3),
        "torch": str(torch.__version__),
        "fairbound": version("fairbound"),
        "code": code,
    }


def cpu_model(info: Path) -> str:
    """The processor's name as Linux lists it in `info`, or from `platform`."""
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


def usable_cpus() -> int:
    """Number of CPUs that this process may use, which containers and clusters keep below those of
    the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def device_name(device: torch.device) -> str:
    """The model of a GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
