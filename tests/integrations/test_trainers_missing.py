"""Trainers are extras: without them their modules say what to install, and `Constrained.loss` needs
none."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("lightning", "transformers", "accelerate"):
            raise ModuleNotFoundError(f"No module named {{name!r}}")
sys.meta_path.insert(0, Refuse())
import fairbound
assert fairbound.Constrained.loss
try:
    import fairbound.integrations.{trainer}
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("trainer", ["lightning", "transformers"])
def test_without_it(trainer: str) -> None:
    code = WITHOUT.format(trainer=trainer)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (
        f"fairbound.integrations.{trainer} needs {trainer}, which is not installed: "
        f"pip install 'fairbound[{trainer}]'" in done.stdout
    )
