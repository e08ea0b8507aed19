"""Small tensors: one torch thread is faster than two, and the workers of the suite share two cores."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one method's known answers share a long run: they go to one worker."""
    for item in items:
        method = getattr(item, "callspec", None) and item.callspec.params.get("method")
        if item.path.name == "test_known_answers.py" and isinstance(method, str):
            item.add_marker(pytest.mark.xdist_group("SSLALM" if method == "ALM" else method))
