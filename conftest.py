"""Modules whose optional package is missing are not collected for doctests: importing them says what to install."""

from importlib.util import find_spec

OPTIONAL = {
    "keras": ["src/fairbound/integrations/keras/*.py", "src/fairbound/integrations/keras/backends/*.py", "tests/keras_twins.py"],
    "lightning": ["src/fairbound/integrations/lightning.py"],
    "transformers": ["src/fairbound/integrations/transformers.py"],
    "tensorflow": ["src/fairbound/integrations/keras/backends/tensorflow.py"],
    "jax": ["src/fairbound/integrations/keras/backends/jax.py"],
}

collect_ignore_glob = [files for package, listed in OPTIONAL.items() if find_spec(package) is None for files in listed]
