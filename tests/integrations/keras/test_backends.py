"""Keras picks its backend once a process: what is asked of one is asked of the others in processes
of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("keras", reason="Keras is not installed: make test-keras")

HERE = Path(__file__).parent


def asked(backend: str, *tests: str) -> None:
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", *tests],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=os.environ | {"KERAS_BACKEND": backend, "JAX_ENABLE_X64": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_on_torch() -> None:
    asked("torch", "test_equals_torch.py", "test_bridge.py", "test_fit.py", "test_classifier.py")


def test_on_jax() -> None:
    """Not Ghost, for whose batches of many sizes JAX compiles many times; nor all of the bridge."""
    asked(
        "jax",
        "test_equals_torch.py",
        "test_bridge.py",
        "-k",
        "200_steps and not Ghost or derivatives or state",
    )
