"""The examples of trainers keep their bounds, and the code of docs/guides/trainers.md runs as it
stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

for package in ("lightning", "transformers", "accelerate", "peft"):
    pytest.importorskip(package, reason=f"{package} is not installed: make test-trainers")

ROOT = Path(__file__).parents[2]


def printed(path: Path, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    ("name", "slack"),
    [("lightning_module", 0.0), ("transformers_trainer", 0.02), ("accelerate_loop", 0.01)],
)
def test_an_example_keeps_its_bound(name: str, slack: float, tmp_path: Path) -> None:
    """The slack is what mini-batches of 64 or 16 examples leave."""
    path = ROOT / "examples" / f"{name}.py"
    assert len(path.read_text().splitlines()) <= 85
    text = printed(path, tmp_path)
    (bound,) = map(float, re.findall(r"^bound ([\d.]+)", text, flags=re.MULTILINE))
    plain, fair = (
        abs(float(gap)) for gap in re.findall(r"gap on training examples ([-+][\d.]+)", text)
    )
    assert fair <= bound + slack < plain
    plain, fair = (
        abs(float(gap)) for gap in re.findall(r"on held-out examples ([-+][\d.]+)", text)
    )
    assert fair < plain  # the standard error of a held-out gap is 0.02
    assert not list(tmp_path.iterdir())


def test_the_page_runs(tmp_path: Path) -> None:
    blocks = re.findall(
        r"```python\n(.*?)```",
        (ROOT / "docs" / "guides" / "trainers.md").read_text(),
        flags=re.DOTALL,
    )
    assert len(blocks) == 7
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    lines = printed(script, tmp_path).splitlines()
    steps = [line.split(" ")[0] for line in lines if re.match(r"\d+ ", line)]
    # Lightning, Transformers, LoRA, accelerate: half of the mini-batches
    assert steps == ["20", "16", "16", "10"]
