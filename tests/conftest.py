"""What all tests share: one torch thread (faster on small tensors than two; the workers share two cores), real data."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

torch.set_num_threads(1)

DATA = Path(os.environ.get("FAIRBOUND_DATA", Path(__file__).parents[2] / "shared" / "data"))


def extract(name: str) -> dict[str, np.ndarray]:
    """The columns of one of the real census extracts."""
    path = DATA / "acs" / f"acsincome_2018_{name}.parquet"
    if not path.exists():
        pytest.skip(f"the real census data are not here: no {path}")
    import pandas

    frame = pandas.read_parquet(path)
    return {str(column): frame[column].to_numpy() for column in frame}


@pytest.fixture(scope="session")
def acs_ok() -> dict[str, np.ndarray]:
    return extract("OK")


@pytest.fixture(scope="session")
def acs_42() -> dict[str, np.ndarray]:
    return extract("42states")
