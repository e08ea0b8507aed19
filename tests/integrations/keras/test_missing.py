"""Keras is an extra: `import fairbound` never loads it, and without it `integrations.keras` says
what to install."""

from __future__ import annotations

import subprocess
import sys

WITHOUT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("keras", "tensorflow", "jax"):
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Refuse())
import fairbound
assert not {"keras", "tensorflow", "jax"} & set(sys.modules)
try:
    import fairbound.integrations.keras
except ImportError as error:
    print(error)
"""


def test_without_keras() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (
        "fairbound.integrations.keras needs keras, which is not installed: pip install"
        " 'fairbound[keras]'" in done.stdout
    )


def test_import_fairbound_loads_no_keras() -> None:
    code = "import sys, fairbound; print({'keras', 'tensorflow', 'jax'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "set()", done.stdout + done.stderr
