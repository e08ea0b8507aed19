"""Examples of peers, ported: the code of docs/from_cooper.md and docs/capabilities.md runs, and both sides agree.

Without `slow` the loops are cut to 60 steps, which is enough to tell two trajectories apart; with it they run as
printed, and end where the pages say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent
PAGES = {page: (ROOT / "docs" / f"{page}.md").read_text() for page in ("from_cooper", "capabilities")}
BLOCK = re.compile(r"```python\n(.*?)```", flags=re.DOTALL)


def sections(page: str) -> dict[str, str]:
    """The Python code of every section of a page, by its heading; that of the first section with code is setup."""
    parts = [part.partition("\n") for part in PAGES[page].split("\n## ")[1:]]
    return {title: "\n".join(BLOCK.findall(text)) for title, _, text in parts if BLOCK.search(text)}


def run_section(page: str, title: str, steps: int | None = None) -> dict[str, Any]:
    """The names that a section defines, after the page's setup; loops of at most `steps` steps."""
    setup, *_ = sections(page).values()
    code = f"{setup}\n{sections(page)[title]}"
    if steps is not None:
        code = re.sub(r"in range\((\d{4,})\)", lambda found: f"in range(min({found[1]}, {steps}))", code)
    torch.manual_seed(0)
    space: dict[str, Any] = {}
    exec(compile(code, f"{page}.md, {title}", "exec"), space)
    return space
