"""The examples of the README and the docs run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *(ROOT / "docs" / f"{name}.md" for name in ("data", "metrics", "classifier"))]
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{i}")
    for page in PAGES
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_example(block: str) -> None:
    torch.manual_seed(0)
    space: dict[str, Any] = {}
    exec(compile(block, str(README), "exec"), space)
    checks = {  # what the example is about
        "measured": lambda measured: measured.c.amax(1).median() < 0.02,
        "x": lambda x: float(x) == pytest.approx(1.0, abs=1e-3),
        "fair": lambda fair: fair.mode_ in ("train_duals", "held_out_duals") and fair.verdict_ is not None,
        "found": lambda found: found.metrics["demographic_parity_difference"].value > 0,
        "data": lambda data: data.rows > 30 and data.X.shape[1] == len(data.names),
    }
    about = next(name for name in checks if name in space)
    assert checks[about](space[about])


def test_the_two_commands_are_at_the_top() -> None:
    top = README.read_text()[:600]
    assert "make test" in top
    assert "make bench" in top
