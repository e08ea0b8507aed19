"""Algorithms with different numbers as one stack: which runs go together, and the numbers as
tensors.

Float fields stack, also inside schedules. Everything else (class, schedule, whole numbers,
switches, the law of random batch sizes) is structure.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import product
from typing import Any, TypeVar

import torch
from torch import Tensor

A = TypeVar("A")


def structure(settings: Any) -> Hashable:
    """What runs of one stack must have in common."""
    if not is_dataclass(settings):
        raise TypeError(
            f"{type(settings).__name__} must be a frozen dataclass, its hyper-parameters the fields"
        )
    entries: list[Any] = [type(settings), getattr(settings, "batch_size_probs", None)]
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            entries.append((field.name, structure(value)))
        elif not isinstance(value, float):
            entries.append((field.name, value))
    return tuple(entries)


def float_settings(settings: Any, prefix: str = "") -> dict[str, float]:
    """The float fields that may differ within a stack, by their dotted name."""
    floats: dict[str, float] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            floats |= float_settings(value, f"{prefix}{field.name}.")
        elif isinstance(value, float):
            floats[prefix + field.name] = value
    return floats


def stack_hyperparams(
    methods: Sequence[Any], like: Tensor, *, all_of_them: bool
) -> dict[str, Tensor]:
    """The numbers in which the runs differ, or all, each as a tensor (R,).

    A compiled step takes all of them as inputs: a number left in the code would mean another
    compilation for another value.
    """
    tables = [float_settings(settings) for settings in methods]
    return {
        name: torch.tensor([table[name] for table in tables], dtype=like.dtype, device=like.device)
        for name in tables[0]
        if all_of_them or len({table[name] for table in tables}) > 1
    }


def with_hyperparams(settings: A, values: Mapping[str, Any]) -> A:
    """The same settings with some numbers replaced by tensors; ranges were checked when the
    originals were built."""
    if not values:
        return settings
    replaced: A = object.__new__(type(settings))
    for field in fields(settings):  # type: ignore[arg-type]
        old = getattr(settings, field.name)
        inner = {
            name.removeprefix(f"{field.name}."): v
            for name, v in values.items()
            if name.startswith(f"{field.name}.")
        }
        new = with_hyperparams(old, inner) if inner else values.get(field.name, old)
        object.__setattr__(replaced, field.name, new)
    return replaced


def grid(algorithm: type[A], **choices: Any) -> list[A]:
    """Every combination of hyper-parameters; a single value stays as it is.

    >>> from fairbound import ALGORITHMS
    >>> [a.tau for a in grid(ALGORITHMS["SSLALM"], tau=[0.01, 0.05], mu=0.0)]
    [0.01, 0.05]
    """
    listed = {name: _choices(value) for name, value in choices.items()}
    return [
        algorithm(**dict(zip(listed, values, strict=True))) for values in product(*listed.values())
    ]


def _choices(value: Any) -> list[Any]:
    if hasattr(value, "tolist"):  # numpy and torch
        value = value.tolist()
    return list(value) if isinstance(value, list | tuple | range) else [value]
