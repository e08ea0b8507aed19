"""Every test starts from the same seeds of the global generators. Modules whose optional package is
missing are not collected for doctests: importing them says what to install.

Tests read the real census files in shared/data beside the checkout, if FAIRBOUND_DATA names no
other folder.
"""

import os
import random
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

SHARED = Path(__file__).parent.parent / "shared" / "data"
if SHARED.is_dir():
    os.environ.setdefault("FAIRBOUND_DATA", str(SHARED))

OPTIONAL = {
    "keras": [
        "src/fairbound/integrations/keras/*.py",
        "src/fairbound/integrations/keras/_backends/*.py",
        "tests/keras_twins.py",
    ],
    "lightning": ["src/fairbound/integrations/lightning.py"],
    "transformers": ["src/fairbound/integrations/transformers.py"],
    "tensorflow": ["src/fairbound/integrations/keras/_backends/tensorflow.py"],
    "jax": ["src/fairbound/integrations/keras/_backends/jax.py"],
}

collect_ignore_glob = [
    files for package, listed in OPTIONAL.items() if find_spec(package) is None for files in listed
]


@pytest.fixture(autouse=True)
def global_seeds() -> None:
    """Seed the global generators, so that no test depends on those that ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
