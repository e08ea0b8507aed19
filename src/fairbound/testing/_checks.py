"""Checks in order; the first that fails is an AssertionError with a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


class FailedCheck(Exception):  # noqa: N818
    """A sentence about what is wrong, and what to change."""


def expect(holds: bool, sentence: str) -> None:
    if not holds:
        raise FailedCheck(sentence)


def run_checks(name: str, checks: Mapping[str, Callable[..., None]], *args: Any) -> None:
    """Call every check with what is given."""
    for title, check in checks.items():
        try:
            check(*args)
        except FailedCheck as failed:
            raise AssertionError(f"{name} fails the check {title!r}: {failed}") from None
        except Exception as error:
            raise AssertionError(
                f"{name} fails the check {title!r}: it raised {type(error).__name__}: {error}"
            ) from error


def close(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> bool:
    """Whether two tensors of one shape agree up to rounding."""
    return a.shape == b.shape and bool(((a - b).abs() <= tolerance * (1 + b.abs())).all())
