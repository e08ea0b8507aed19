"""One random stream per run, as a function of (seed, step, slot): a counter-based generator.

There is no state to advance, so a run draws the same numbers alone or in a stack, step by step or
in blocks of many steps, on a CPU or a GPU, from the start or resumed in the middle. The function is
SplitMix64's finaliser (Steele, Lea, Flood 2014) over two levels: seed and step give a key, key and
slot give the number.
"""

from __future__ import annotations

import operator

import torch
from torch import Tensor

WEYL = 0x9E3779B97F4A7C15 - (1 << 64)  # the golden ratio's 64-bit fraction, as a signed number
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
SECOND = 0x94D049BB133111EB - (1 << 64)

# slots of a step: its uniform number, its level, then its examples
UNIFORM, LEVEL, EXAMPLES = 0, 1, 2


def _shifted(z: Tensor, by: int) -> Tensor:
    """z xor (z >> by), the shift without sign."""
    return z ^ ((z >> by) & ((1 << (64 - by)) - 1))


def mixed(z: Tensor) -> Tensor:
    """SplitMix64's finaliser: a bijection of 64-bit numbers that scatters neighbors."""
    z = _shifted(z, 30) * _FIRST
    z = _shifted(z, 27) * SECOND
    return _shifted(z, 31)


def keys(seeds: Tensor) -> Tensor:
    """A scattered 64-bit key for every seed."""
    return mixed(seeds.to(torch.int64) + WEYL)


def bits(key: Tensor, step: Tensor, slot: Tensor) -> Tensor:
    """64 random bits for every broadcast (key, step, slot)."""
    return mixed(mixed(key + WEYL * step) + WEYL * slot)


def uniforms(key: Tensor, step: Tensor, slot: Tensor) -> Tensor:
    """Uniform float64 numbers in [0, 1), 53 bits each, for every broadcast (key, step, slot)."""
    return ((bits(key, step, slot) >> 11) & ((1 << 53) - 1)).to(torch.float64) * 2.0**-53


def checked_seed(seed: int) -> int:
    """A seed as a signed 64-bit number."""
    seed = operator.index(seed)
    if not -(1 << 63) <= seed < 1 << 63:
        raise ValueError(f"a seed must fit in 64 bits, got {seed}")
    return seed
