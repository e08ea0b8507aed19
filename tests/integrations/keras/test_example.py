"""The example prints what it says, and the code of docs/guides/keras.md runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("keras", reason="Keras is not installed: make test-keras")
pytest.importorskip("tensorflow", reason="TensorFlow is not installed: make test-keras")

ROOT = Path(__file__).parents[3]


def printed(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=os.environ | {"OMP_NUM_THREADS": "1", "KERAS_BACKEND": "tensorflow"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_example_keeps_its_bound() -> None:
    text = printed(str(ROOT / "examples" / "keras_model.py"))
    bound = float(re.search(r"bound: ([\d.]+)", text)[1])
    for words, slack in (("gap on training examples", 0.02), ("gap on held-out examples", 0.04)):
        plain, fit, loop = (float(gap) for gap in re.findall(rf"{words}: ([-+][\d.]+)", text))
        assert max(abs(fit), abs(loop)) <= bound + slack < plain
    assert "stationarity" in text


def test_the_page_runs(tmp_path: Path) -> None:
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "guides" / "keras.md").read_text(), flags=re.DOTALL
    )
    assert len(blocks) >= 4
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    assert "stationarity" in printed(str(script))
