"""How a CSV file is written: its compression, encoding, separator and header."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

SEPARATORS = ",;\t|"
HEAD_BYTES = 1 << 16  # of a file, from which the separator is detected
CHUNK_BYTES = 1 << 20  # of a file, read at a time to detect its encoding
C1_BYTES = frozenset(range(0x80, 0xA0))  # control characters in latin-1, but quotes, dashes and the euro in cp1252
NOT_IN_CP1252 = frozenset((0x81, 0x8D, 0x8F, 0x90, 0x9D))


class CsvForm(NamedTuple):
    """How a CSV file is written."""

    gzipped: bool
    encoding: str
    sep: str
    header: list[str]
    notes: list[str]


def form_of(path: Path, start: bytes, sep: str | None, encoding: str | None) -> CsvForm:
    gzipped, notes = start[:2] == b"\x1f\x8b", []
    if encoding is None:
        encoding = _encoding_of(path, gzipped)
        if encoding not in ("utf-8-sig", "utf-16"):
            notes = [f"{path.name} is not UTF-8 text and was read as {encoding}; --encoding names another"]
    else:
        _check_encoding(encoding)
    lines = _first_lines(path, gzipped, encoding)
    sep = sep or max(SEPARATORS, key=lambda sep: _agreement(lines, sep))
    header = next(csv.reader(lines, delimiter=sep))
    return CsvForm(gzipped, encoding, sep, header, notes)


def _encoding_of(path: Path, gzipped: bool) -> str:
    """UTF-8 or UTF-16 where that is what it is; else cp1252, or latin-1 where it holds what cp1252 lacks."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    unicode, high = True, frozenset[int]()
    try:
        with opened(path, gzipped) as file:
            if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
                return "utf-16"
            file.seek(0)
            while chunk := file.read(CHUNK_BYTES):
                try:
                    unicode = unicode and decoder.decode(chunk) is not None
                except UnicodeDecodeError:
                    unicode = False
                if not unicode:
                    high |= C1_BYTES & frozenset(chunk)
    except (EOFError, OSError) as error:
        raise ValueError(f"{path} is damaged or incomplete: {first_line(error)}") from error
    if unicode:
        return "utf-8-sig"
    return "cp1252" if high and not high & NOT_IN_CP1252 else "latin-1"


def _check_encoding(encoding: str) -> None:
    try:
        codecs.lookup(encoding)
    except LookupError as error:
        raise ValueError(
            f"no encoding is called {encoding!r}; usual ones are utf-8, latin-1, cp1252 and utf-16"
        ) from error


def _first_lines(path: Path, gzipped: bool, encoding: str) -> list[str]:
    try:
        with opened(path, gzipped) as file:
            data = file.read(HEAD_BYTES)
    except (EOFError, OSError) as error:
        raise ValueError(f"{path} is damaged or incomplete: {first_line(error)}") from error
    lines = data.decode(encoding, errors="replace").splitlines()
    lines = [line for line in lines[: -1 if len(data) == HEAD_BYTES else None] if line.strip()]  # the last may be cut
    if not lines:
        raise ValueError(f"{path} is empty")
    if "\ufffd" in lines[0]:
        raise ValueError(wrong_encoding(path, encoding))
    return lines


def _agreement(lines: Sequence[str], sep: str) -> tuple[float, int]:
    """How many of the first lines have as many fields as the first one, and how many these are; csv.Sniffer, on which
    pandas relies, takes a letter that happens to be frequent."""
    fields = [len(row) for row in islice(csv.reader(lines, delimiter=sep, skipinitialspace=True), 50)]
    return (fields.count(fields[0]) / len(fields) if fields[0] > 1 else 0.0), fields[0]


def ragged(path: Path, form: CsvForm) -> str:
    """The first line whose fields are more or fewer than the columns; empty where there is none."""
    with io.TextIOWrapper(opened(path, form.gzipped), form.encoding, "replace", newline="") as file:
        rows, before = csv.reader(file, delimiter=form.sep), 0
        for row in rows:
            if row and len(row) != len(form.header):
                has = f"{len(row)} field{'' if len(row) == 1 else 's'}"
                shown = form.sep.join(row)[:60]
                return f"line {before + 1} has {has}, but the header names {len(form.header)} columns: {shown!r}"
            before = rows.line_num
    return ""


def opened(path: Path, gzipped: bool) -> BinaryIO:
    return gzip.open(path) if gzipped else path.open("rb")  # type: ignore[return-value]


def for_arrow(encoding: str) -> str:
    """Arrow reads UTF-8 without conversion, and knows its byte-order mark."""
    return "utf8" if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig") else encoding


def wrong_encoding(path: Path, encoding: str) -> str:
    return f"{path} is not {encoding} text; name its encoding, such as latin-1, cp1252 or utf-16 (encoding, --encoding)"


def first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
