"""The fairness metrics of stored counts. Tables and figures ask for those of the same runs: each is computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairbound.metrics.counts import Counts
from fairbound.metrics.fairness_metrics import values

KEPT = 1 << 14  # runs and parts: a whole benchmark has a few thousand


def metrics_of(counts: NDArray[Any], groups: Sequence[str]) -> Mapping[str, float | None]:
    """Every metric of counts (G, label, prediction); None where undefined.

    >>> round(metrics_of(np.array([[[990, 805], [532, 1369]], [[1139, 349], [461, 505]]]), ("a", "b"))["inaccuracy"], 4)
    0.3491
    """
    return _metrics_of(np.asarray(counts, dtype=np.float64).tobytes(), tuple(groups))


@lru_cache(maxsize=KEPT)
def _metrics_of(counts: bytes, groups: tuple[str, ...]) -> Mapping[str, float | None]:
    weight = torch.from_numpy(np.frombuffer(counts).reshape(len(groups), 2, 2).copy())
    return MappingProxyType(values(Counts(groups, weight, weight, weight.long())))
