"""What the collection reads of scikit-learn, saved from it, for a machine that lacks it."""
from pathlib import Path
from types import SimpleNamespace
import numpy as np
D = np.load(Path(__file__).parents[1] / "data.npz")
def load_digits(return_X_y=False, **_):
    return (D["data"], D["target"]) if return_X_y else SimpleNamespace(data=D["data"], target=D["target"], images=D["images"])
def make_moons(*_, **__):
    return D["moons"], D["labels"]
