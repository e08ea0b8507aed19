"""Sequences whose entries are made when they are read: the names of a million constraints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

_T = TypeVar("_T", covariant=True)

KEPT = 1000  # entries up to which a sequence is an ordinary tuple


class LazySequence(Sequence[_T]):
    """`length` entries, made by `make(i)`.

    >>> names = LazySequence(1_000_000, lambda i: f"group {i}")
    >>> names[999_999], names[:2]
    ('group 999999', ('group 0', 'group 1'))
    """

    def __init__(self, length: int, make: Callable[[int], _T]) -> None:
        self._length, self._make = length, make

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> _T: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[_T, ...]: ...
    def __getitem__(self, place: int | slice) -> _T | tuple[_T, ...]:
        if isinstance(place, slice):
            return tuple(self._make(i) for i in range(*place.indices(self._length)))
        if not -self._length <= place < self._length:
            raise IndexError(place)
        return self._make(place % self._length)

    def __repr__(self) -> str:
        return f"<{self._length} entries, {self[:2]} ...>"

    def __eq__(self, other: Any) -> bool:
        return (
            isinstance(other, Sequence)
            and len(self) == len(other)
            and all(a == b for a, b in zip(self, other, strict=False))
        )

    __hash__ = None  # type: ignore[assignment]


def sequence(length: int, make: Callable[[int], _T]) -> Sequence[_T]:
    """A tuple where there are few entries, lazy where there are many."""
    lazy = LazySequence(length, make)
    return tuple(lazy) if length <= KEPT else lazy
