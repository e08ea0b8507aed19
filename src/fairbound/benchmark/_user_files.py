"""What users write in TOML files, read into dataclasses: whatever is not understood is refused in a
sentence."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, ValidationError

KNOWN_KEYS_ONLY = ConfigDict(extra="forbid")
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(strict=True, ge=1)]
Size = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


def nearest(name: object, known: Iterable[str]) -> str:
    by_lower = {one.lower(): one for one in known}
    return by_lower[get_close_matches(str(name).lower(), list(by_lower), n=1, cutoff=0.0)[0]]


def known_name(name: Any, known: Collection[str], what: str) -> Any:
    if name not in known:
        raise ValueError(_unknown(name, known, what))
    return name


def _unknown(name: object, known: Iterable[str], what: str) -> str:
    return (
        f"there is no {what} {name!r}; the nearest is {nearest(name, known)!r} (there are"
        f" {', '.join(known)})"
    )


def check_unique(names: Iterable[str], what: str) -> None:
    """Results are kept by the names of entries and problems."""
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(
                f"{count} {what} are called {name!r}; results are kept by name, so rename one"
            )


def one_of(what: str, known: Collection[str]) -> AfterValidator:
    return AfterValidator(lambda name: known_name(name, known, what))


def keyed_by(*known: str, needed: Iterable[str]) -> AfterValidator:
    """A table with these keys only, the needed ones among them unless it is empty."""

    def check(table: Mapping[str, float]) -> Mapping[str, float]:
        for name in table:
            known_name(name, known, "key")
        for name in needed:
            if table and name not in table:
                raise ValueError(f"the key {name!r} is missing")
        return table

    return AfterValidator(check)


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The content of a file that is to be, say, "a problem"."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read as {what}: {error}") from error
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no file {path}, which was to be {what}") from error
    except OSError as error:
        raise OSError(f"{path} cannot be read as {what}: {error.strerror}") from error


@contextmanager
def mistakes_in(
    place: object, models: Mapping[tuple[str, ...], Any], table: Mapping[str, Any]
) -> Iterator[None]:
    """What is refused while a file's content is read, as a sentence that begins with its place.

    Args:
        place: the file, or a table of it.
        models: the dataclasses of the content, by the keys that lead to them.
        table: the content; a table in a list of it is called by its name.
    """
    try:
        yield
    except ValidationError as error:
        raise ValueError(f"{place}{_first_mistake(error, models, table)}") from error
    except ValueError as error:
        raise ValueError(f"{place}, {error}") from error


def _first_mistake(
    refused: ValidationError, models: Mapping[tuple[str, ...], Any], table: Mapping[str, Any]
) -> str:
    """Describe the first mistake, after its place in the file; an unknown key before the key that
    is missing because of it."""
    error = min(refused.errors(), key=lambda one: one["type"] != "unexpected_keyword_argument")
    place, key, message = list(error["loc"]), error["loc"][-1] if error["loc"] else "", error["msg"]
    in_list = (
        len(place) > 1
        and isinstance(place[0], str)
        and isinstance(place[1], int)
        and (place[0],) in models
    )
    if error["type"] == "value_error":
        message = message.removeprefix("Value error, ")
    elif error["type"] == "unexpected_keyword_argument":
        model = models[tuple(one for one in place[:-1] if isinstance(one, str))]
        message = _unknown(place.pop(), [field.name for field in fields(model)], "key")
    elif error["type"] == "missing":
        message = f"the key {place.pop()!r} is missing"
    else:
        name = (
            f"{place.pop(-2)}[{place.pop()}]"
            if isinstance(key, int) and not in_list
            else place.pop()
        )
        message = f"{re.sub('^[A-Z][a-z]+ ', f'{name} ', message)}, got {error['input']!r}"
    if in_list and len(place) > 1:
        named = table[str(place[0])][int(place[1])].get("name", int(place[1]) + 1)
        place[:2] = [f"{'entry' if place[0] == 'entries' else place[0]} {named!r}"]
    return "".join(f", {one}" for one in place) + f": {message}"
