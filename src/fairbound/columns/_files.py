"""The columns of a CSV or parquet file, read by pyarrow: only those that are needed, and batch by
batch where the file is large. Of a CSV file, `csv.Sniffer` finds the separator and
charset-normalizer helps to find the encoding.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from fairbound._utils.optional import need
from fairbound._utils.sentences import did_you_mean

SEPARATORS = ",;\t|"
ASCII = bytes(range(128))
HEAD_BYTES = 1 << 16  # of a file, from which separator and header are detected
CHUNK_BYTES = 1 << 20  # of a file, read at a time to detect its encoding
# coherence with a language; above it 85 of 87 guesses were right on tables of Russian and Greek
# words
RECOGNIZED = 0.3
DECIMAL_COMMA = r"^[+-]?\d+(,\d+)?$"  # as much of the world writes numbers, with ; between them
PERCENT = r"^[+-]?\d+([.,]\d+)?\s?%$"
# times its size, or STREAMED_BYTES: tables shrink to a fifth, seldom to a fiftieth
MOST_UNPACKED = 50
STREAMED_BYTES = 1 << 28  # a larger CSV file is read batch by batch
BLOCK_BYTES = 1 << 24  # of a batch


def columns_of_file(
    path: Path,
    sep: str | None,
    missing: Sequence[str],
    encoding: str | None,
    only: Sequence[str] | None,
    threads: bool,
) -> tuple[list[str], list[Any], list[str], list[str]]:
    """Names, columns, notes, and the names of all columns."""
    start, notes = _first_bytes(path), list[str]()
    if start == b"PAR1" or path.suffix.lower() in (".parquet", ".pq"):
        table, header = _from_parquet(path, only, threads)
    else:
        file = CsvFile.of(path, sep, encoding)
        table, header = (
            _from_csv(file, missing, only, threads, notes),
            [name.strip() for name in file.header],
        )
        if encoding is None and file.encoding not in ("utf-8-sig", "utf-16"):
            notes.append(
                f"{path.name} is not UTF-8 text and was read as {file.encoding}; --encoding names"
                " another"
            )
    # of a pandas frame
    index = [name for name in table.column_names if name.startswith("__index_level_")]
    table = table.drop_columns(index)
    return [name.strip() for name in table.column_names], table.columns, notes, header


def _first_bytes(path: Path) -> bytes:
    if not path.exists():
        raise FileNotFoundError(_no_file(path))
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")
    with path.open("rb") as file:
        start = file.read(4)
    if not start:
        raise ValueError(f"{path} is empty")
    if start in (b"PK\x03\x04", b"\xd0\xcf\x11\xe0"):
        raise ValueError(
            f"{path} is a zip archive or an Excel file; unpack it, or save the sheet as CSV"
        )
    return start


def _no_file(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"there is no file {path}: the folder {folder} is not there"
    files = sorted(file.name for file in folder.iterdir() if file.is_file())
    near = did_you_mean(path.name, files)
    return f"there is no file {path}" + (f"; {near}" if near.startswith("did") else "")


def _from_parquet(path: Path, only: Sequence[str] | None, threads: bool) -> tuple[Any, list[str]]:
    parquet = need("pyarrow.parquet", "data", "Reading a parquet file")
    try:
        names = parquet.read_schema(path).names
        return parquet.read_table(path, columns=_present(only, names), use_threads=threads), list(
            names
        )
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged or incomplete ({path.stat().st_size} bytes), or no parquet file:"
            f" {_first_line(error)}"
        ) from error


def _present(only: Sequence[str] | None, names: Sequence[str]) -> list[str] | None:
    """The columns to read, as the file writes them; all of them, where one is there twice."""
    if only is None:
        return None
    wanted = [name for name in names if name.strip() in only]
    return wanted if wanted and len(set(map(str.strip, wanted))) == len(wanted) else None


# CSV files ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CsvFile:
    """A CSV file, and how it is written."""

    path: Path
    encoding: str
    sep: str
    header: list[str]

    @staticmethod
    def of(path: Path, sep: str | None, encoding: str | None) -> CsvFile:
        """The file; separator and encoding are detected where they are not given."""
        try:
            codecs.lookup(encoding or "utf-8")
        except LookupError as error:
            known = "usual ones are utf-8, latin-1, cp1252 and utf-16"
            raise ValueError(f"no encoding is called {encoding!r}; {known}") from error
        with _reading(path), _opened(path) as file:
            encoding = encoding or _encoding_of(file)
            file.seek(0)
            head = file.read(HEAD_BYTES)
        lines = head.decode(encoding, errors="replace").splitlines()
        whole_lines = lines[: -1 if len(head) == HEAD_BYTES else None]  # the last may be cut
        lines = [line for line in whole_lines if line.strip()]
        if not lines:
            raise ValueError(f"{path} is empty")
        if "\ufffd" in lines[0]:
            raise ValueError(_wrong_encoding(path, encoding))
        sep = sep or _separator_of(lines)
        return CsvFile(path, encoding, sep, next(csv.reader(lines, delimiter=sep)))

    def ragged(self) -> str:
        """The first line whose fields are more or fewer than the columns; empty where there is
        none."""
        with io.TextIOWrapper(_opened(self.path), self.encoding, "replace", newline="") as file:
            rows, lines_before = csv.reader(file, delimiter=self.sep), 0
            for row in rows:
                if row and len(row) != len(self.header):
                    fields = f"{len(row)} field{'' if len(row) == 1 else 's'}"
                    text = self.sep.join(row)[:60]
                    columns = f"the header names {len(self.header)} columns"
                    return f"line {lines_before + 1} has {fields}, but {columns}: {text!r}"
                lines_before = rows.line_num
        return ""


def _opened(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        gzipped = file.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], _Unpacked(path)) if gzipped else path.open("rb")


class _Unpacked(gzip.GzipFile):
    """A .gz file that is refused where it grows too large: a few bytes may unpack to more than the
    memory holds."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path, self.most = path, max(STREAMED_BYTES, MOST_UNPACKED * path.stat().st_size)

    def read(self, size: int | None = -1) -> bytes:
        return self._checked(super().read(size))

    def read1(self, size: int = -1) -> bytes:
        return self._checked(super().read1(size))

    def _checked(self, block: bytes) -> bytes:
        if self.tell() > self.most:
            raise ValueError(
                f"{self.path} unpacks to more than {self.most >> 20:,} MB, over {MOST_UNPACKED}"
                " times its size; if you trust it, unpack it yourself (gunzip) and name the"
                " unpacked file"
            )
        return block


def _encoding_of(file: IO[bytes]) -> str:
    """UTF-8 or UTF-16 where the bytes are that; else an encoding in which charset-normalizer
    recognizes a language that is not Western; else latin-1, or cp1252 if the file has characters
    that latin-1 lacks."""
    if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    file.seek(0)
    high, sample = b"", b""  # the different bytes beyond ASCII, and some lines that have them
    while block := file.read(CHUNK_BYTES) + file.readline():
        try:
            block.decode("utf-8")
        except UnicodeDecodeError:
            high = bytes({*high, *block.translate(None, ASCII)})
            sample = (
                sample
                or b"\n".join(line for line in block.splitlines() if not line.isascii())[
                    :HEAD_BYTES
                ]
            )
    if not high:
        return "utf-8-sig"
    matches = need("charset_normalizer", "data", "Reading a CSV file that is not UTF-8").from_bytes(
        sample
    )
    candidates = ["cp1252", "latin-1"] if min(high) < 0xA0 else ["latin-1"]
    western = any("cp1252" in match.could_be_from_charset for match in matches)
    if (guess := matches.best()) and not western and guess.coherence > RECOGNIZED:
        candidates.insert(0, guess.encoding)
    return next(
        encoding for encoding in candidates if "\ufffd" not in high.decode(encoding, "replace")
    )


def _separator_of(lines: Sequence[str]) -> str:
    try:
        return csv.Sniffer().sniff("\n".join(lines[:50]), SEPARATORS).delimiter
    except csv.Error:  # one column, or too few rows to tell
        return max(SEPARATORS, key=lines[0].count)


def _from_csv(
    file: CsvFile,
    missing: Sequence[str],
    only: Sequence[str] | None,
    threads: bool,
    notes: list[str],
) -> Any:
    """By pyarrow: pandas would fill short rows with NaN, rename a column that is there twice, and
    type it by chunks."""
    arrow_csv = need("pyarrow.csv", "data", "Reading a CSV file")
    # "1, ?, 2": a space after the comma is no part of the value
    marks = [*missing, *(" " + mark for mark in missing)]
    wanted = _present(only, file.header)
    # which arrow reads without conversion
    utf8 = codecs.lookup(file.encoding).name in ("utf-8", "utf-8-sig")
    options: dict[str, Any] = {
        "read_options": arrow_csv.ReadOptions(
            encoding="utf8" if utf8 else file.encoding, use_threads=threads
        ),
        "parse_options": arrow_csv.ParseOptions(delimiter=file.sep, newlines_in_values=True),
        "convert_options": arrow_csv.ConvertOptions(
            null_values=marks, strings_can_be_null=True, include_columns=wanted
        ),
    }
    with _reading(file.path, file.encoding):
        try:
            table = None if wanted is None else _streamed(file, options)
            if table is None:
                with _opened(file.path) as lines:
                    table = arrow_csv.read_csv(lines, **options)
            return _cleaned(table, file, notes)
        except KeyError:  # a header that is not as its first line reads
            return _from_csv(file, missing, None, threads, notes)
        except need("pyarrow", "data", "").ArrowInvalid as error:
            why = file.ragged() or _first_line(error)
            raise ValueError(f"{file.path} cannot be read as a table: {why}") from error


def _streamed(file: CsvFile, options: dict[str, Any]) -> Any:
    """The wanted columns of a large file, batch by batch, so that nothing else of it is held in
    memory; None where the file is small, or where a later batch has other values than the first,
    which decides the types.
    """
    arrow, arrow_csv = need("pyarrow", "data", ""), need("pyarrow.csv", "data", "")
    with _opened(file.path) as lines:
        # tables shrink so
        size = file.path.stat().st_size * (5 if isinstance(lines, gzip.GzipFile) else 1)
        if size <= STREAMED_BYTES:
            return None
        options["read_options"].block_size = BLOCK_BYTES
        try:
            with arrow_csv.open_csv(lines, **options) as reader:
                return reader.read_all()
        except arrow.ArrowInvalid:
            return None


def _cleaned(table: Any, file: CsvFile, notes: list[str]) -> Any:
    """Text without the spaces around it, and numbers such as 0,127 and 45% as numbers."""
    arrow, compute = need("pyarrow", "data", ""), need("pyarrow.compute", "data", "")
    for i, field in enumerate(table.schema):
        if arrow.types.is_binary(field.type):  # what the reader makes of text that is not UTF-8
            raise ValueError(_wrong_encoding(file.path, file.encoding))
        if arrow.types.is_string(field.type):
            text = compute.utf8_trim_whitespace(table.column(i))
            known = compute.any(compute.is_valid(text)).as_py()
            if known and compute.all(compute.match_substring_regex(text, PERCENT)).as_py():
                digits = compute.replace_substring(
                    compute.replace_substring_regex(text, r"\s?%", ""), ",", "."
                )
                column = compute.divide(digits.cast(arrow.float64()), 100.0)
                notes.append(
                    f"the column {field.name.strip()!r} has percentages: 45% was read as 0.45"
                )
            elif (
                file.sep != ","
                and compute.all(compute.match_substring_regex(text, DECIMAL_COMMA)).as_py()
            ):
                column = compute.replace_substring(text, ",", ".").cast(arrow.float64())
            else:
                column = text
            table = table.set_column(i, field.name, column)
    return table


# Sentences ----------------------------------------------------------------------------------------


@contextmanager
def _reading(path: Path, encoding: str = "UTF-8") -> Iterator[None]:
    """Whatever a reader says about a damaged file, as one sentence with its name."""
    try:
        yield
    except UnicodeError as error:
        raise ValueError(_wrong_encoding(path, encoding)) from error
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path} is damaged or incomplete: {_first_line(error)}") from error


def _wrong_encoding(path: Path, encoding: str) -> str:
    return (
        f"{path} is not {encoding} text; name its encoding, such as latin-1, cp1252 or utf-16"
        " (encoding, --encoding)"
    )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
