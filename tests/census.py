"""Where the real census files are, and the mark of tests that read one of its extracts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DATA = Path(
    os.environ.get("FAIRBOUND_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data"
)


def extract(name: str) -> Path:
    """An extract of ACSIncome 2018, such as OK or 42states."""
    return DATA / "acs" / f"acsincome_2018_{name}.parquet"


def needs_extract(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        not extract(name).is_file(), reason=f"the real census data are not here: no {extract(name)}"
    )
