"""The README's examples run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_example(block: str) -> None:
    torch.manual_seed(0)
    space: dict[str, object] = {}
    exec(compile(block, str(README), "exec"), space)
    if "measured" in space:
        assert space["measured"].c.amax(1).median() < 0.02  # type: ignore[attr-defined]
    else:
        assert float(space["x"]) == pytest.approx(1.0, abs=1e-3)  # type: ignore[arg-type]


def test_the_two_commands_are_at_the_top() -> None:
    top = README.read_text()[:600]
    assert "make test" in top
    assert "make bench" in top
