"""How often intervals cover: what the tests of coverage share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fairbound.metrics.intervals import IntervalEstimate

SAMPLES = 2_000
DRAWS = 500


def covers(measured: IntervalEstimate, truth: float) -> bool:
    return bool(measured.low - 1e-12 <= truth <= measured.high + 1e-12)


def shares(samples: Iterable[dict[str, bool]]) -> dict[str, float]:
    """How often each named interval covered."""
    hits: Counter[str] = Counter()
    count = 0
    for sample in samples:
        hits.update(sample)
        count += 1
    assert count == SAMPLES
    return {name: hits[name] / count for name in hits}
