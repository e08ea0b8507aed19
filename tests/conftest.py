"""What all tests share: one torch thread (faster on small tensors than two; the workers share two
cores), real data."""

import census
import numpy as np
import pytest
import torch

torch.set_num_threads(1)


def columns(name: str) -> dict[str, np.ndarray]:
    """Of one of the real census extracts."""
    path = census.extract(name)
    if not path.exists():
        pytest.skip(f"the real census data are not here: no {path}")
    import pandas

    frame = pandas.read_parquet(path)
    return {str(column): frame[column].to_numpy() for column in frame}


@pytest.fixture(scope="session")
def acs_ok() -> dict[str, np.ndarray]:
    return columns("OK")


@pytest.fixture(scope="session")
def acs_42() -> dict[str, np.ndarray]:
    return columns("42states")
