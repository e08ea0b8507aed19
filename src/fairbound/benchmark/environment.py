"""What results were computed on: software, processor, device. Seconds mean little without it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

CPU_INFO = Path("/proc/cpuinfo")  # Linux; elsewhere the platform's own answer


def describe(date: str, device: torch.device | str = "cpu") -> dict[str, str | int]:
    """The system in words and numbers, for `Store.note_system`. `date` is the caller's: nothing here reads a clock.

    >>> said = describe("2025-01-31")
    >>> said["date"], said["device"], said["threads"] == torch.get_num_threads()
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


def cpu_model(info: Path) -> str:
    """The processor's name as Linux lists it in `info`, or what Python knows of it."""
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


def usable_cpus() -> int:
    """Those that this process may use, which containers and clusters keep below those of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def device_name(device: torch.device) -> str:
    """A graphics card by its model."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
