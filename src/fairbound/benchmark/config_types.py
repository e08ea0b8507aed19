"""Tables of a TOML file, entry by entry: what a value must be, and a sentence for what it is not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """What a value must be, how to say so, and the form in which it is kept."""

    wording: str
    holds: Callable[[Any], bool]
    kept: Callable[[Any], Any] = lambda value: value


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    return is_whole(value) and bool(value >= 1)


def is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def listed_all(value: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(holds(entry) for entry in value)


def taken_from(
    table: Mapping[str, Any], kinds: Mapping[str, Kind], place: str, optional: Collection[str] = ()
) -> dict[str, Any]:
    """The entries of a table, all of them known, of their kind, and none missing."""
    for key, value in table.items():
        known_name(key, kinds, "key", place)
        if not kinds[key].holds(value):
            raise ValueError(f"{place}: {key} must be {kinds[key].wording}, got {value!r}")
    refuse_missing(table, kinds, place, optional)
    return {key: kinds[key].kept(value) for key, value in table.items()}


def refuse_missing(table: Mapping[str, Any], kinds: Mapping[str, Kind], place: str, optional: Collection[str]) -> None:
    for key, kind in kinds.items():
        if key not in table and key not in optional:
            raise ValueError(f"{place}: the key {key!r} is missing; it must be {kind.wording}")


def known_name(name: str, known: Iterable[str], what: str, place: str) -> str:
    listed = list(known)
    if name not in listed:
        raise ValueError(
            f"{place}: there is no {what} {name!r}; the nearest is {nearest(name, listed)!r} "
            f"(there are {', '.join(listed)})"
        )
    return name


def nearest(name: str, known: Iterable[str]) -> str:
    by_lower = {one.lower(): one for one in known}
    return by_lower[get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.0)[0]]
