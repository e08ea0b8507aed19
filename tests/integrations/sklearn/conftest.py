"""Shorter dual ascents: what most tests show does not depend on their last digits."""

import pytest

from fairbound.integrations.sklearn import _corrections as corrections


@pytest.fixture(autouse=True)
def short_dual_ascent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corrections, "ITERATIONS", 60)
