"""The columns of a CSV or parquet file, read by pyarrow: only those that are needed, and batch by
batch where the file is large.

A CSV file is read as text, and a column becomes numbers afterwards, where every entry is one and no
two entries are the same number: codes such as 100 and 1E2 stay text. `csv.Sniffer` finds the
separator and charset-normalizer helps to find the encoding.
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
from fairbound._utils.sentences import counted, did_you_mean
from fairbound.columns._column import EXACT, ColumnTypeError

SEPARATORS = ",;\t|"
ASCII = bytes(range(128))
HEAD_BYTES = 1 << 16  # of a file, from which separator and header are detected
CHUNK_BYTES = 1 << 20  # of a file, read at a time to detect its encoding
# coherence with a language; above it 85 of 87 guesses were right on tables of Russian and Greek
# words
RECOGNIZED = 0.3
# times its size, or STREAMED_BYTES: tables shrink to a fifth, seldom to a fiftieth
MOST_UNPACKED = 50
STREAMED_BYTES = 1 << 28  # a larger CSV file is read batch by batch
BLOCK_BYTES = 1 << 24  # of a batch
# different numbers, up to which a column may hold codes, whose writing matters
MOST_CODES = 50

_WHOLE = r"^[+-]?\d+$"
_PERCENT = r"^[+-]?\d+([.,]\d+)?\s?%$"
TRUTH = r"^(?i:true|false)$"
COMMA_DECIMAL = r"^[+-]?\d+(,\d+)?$"  # 0,5 as much of the world writes it
COMMAS_OF_THOUSANDS = r"^[+-]?(\d+|[1-9]\d{0,2}(,\d{3})+)(\.\d+)?$"
DOTS_OF_THOUSANDS = r"^[+-]?(\d+|[1-9]\d{0,2}(\.\d{3})+)(,\d+)?$"


@dataclass(frozen=True)
class FileSettings:
    """How a file is to be read."""

    sep: str | None = None  # of a CSV file; detected if None
    missing: Sequence[str] = ()  # the words that mark a missing value
    encoding: str | None = None  # of a CSV file; detected if None
    only: Sequence[str] | None = None  # the columns that are needed; all if None
    decimal: str | None = None  # "." or ","; detected if None
    threads: bool = True


@dataclass
class FileColumns:
    """What was read."""

    columns: dict[int, tuple[str, Any]]  # by position, as names may occur twice: name, arrow data
    header: list[str]  # names of all columns of the file
    notes: list[str]  # what was assumed
    errors: dict[str, str]  # columns whose numbers are ambiguous: why


def columns_of_file(path: Path, settings: FileSettings) -> FileColumns:
    """Read the columns of a CSV or parquet file."""
    start = _first_bytes(path)
    if start == b"PAR1" or path.suffix.lower() in (".parquet", ".pq"):
        table, header = _from_parquet(path, settings)
        read = FileColumns({}, header, [], {})
    else:
        file = CsvFile.of(path, settings)
        read = FileColumns({}, [name.strip() for name in file.header], [], {})
        table = _from_csv(file, settings, read)
        if settings.encoding is None and not file.encoding.startswith("utf"):
            read.notes.append(
                f"{path.name} is not UTF-8 text and was read as {file.encoding}; `encoding` names"
                " another"
            )
    for i, name in enumerate(table.column_names):
        if not name.startswith("__index_level_"):  # of a pandas frame
            read.columns[i] = (name.strip(), table.column(i))
    return read


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


def _from_parquet(path: Path, settings: FileSettings) -> tuple[Any, list[str]]:
    parquet = need("pyarrow.parquet", "data", "Reading a parquet file")
    try:
        with parquet.ParquetFile(path) as file:
            names = list(file.schema_arrow.names)
            wanted = _present(settings.only, names)
            unpacked = 8 * file.metadata.num_rows * len(names if wanted is None else wanted)
            _refuse_large(path, unpacked)
            return file.read(columns=wanted, use_threads=settings.threads), names
    except (OSError, ValueError) as error:
        if isinstance(error, TooLargeError):
            raise
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


class TooLargeError(ValueError):
    """A small file that would fill the memory."""


def _refuse_large(path: Path, unpacked: int) -> None:
    """Refuse a file that unpacks to far more than its size: a few bytes may hold more than the
    memory does."""
    most = max(STREAMED_BYTES, MOST_UNPACKED * path.stat().st_size)
    if unpacked > most:
        raise TooLargeError(
            f"{path} unpacks to more than {most >> 20:,} MB, over {MOST_UNPACKED} times its size;"
            " if you trust it, unpack it yourself and name the unpacked file"
        )


# CSV files ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CsvFile:
    """A CSV file, and how it is written."""

    path: Path
    encoding: str
    sep: str
    header: list[str]
    skipped: int  # lines before the header: 1 where the first says sep=;

    @staticmethod
    def of(path: Path, settings: FileSettings) -> CsvFile:
        """The file; separator and encoding are detected where they are not given."""
        encoding = settings.encoding
        try:
            codecs.lookup(encoding or "utf-8")
        except LookupError as error:
            known = "usual ones are utf-8, latin-1, cp1252 and utf-16"
            raise ValueError(f"no encoding is called {encoding!r}; {known}") from error
        with _reading(path), _opened(path) as file:
            encoding = encoding or _encoding_of(file)
            file.seek(0)
            head = file.read(HEAD_BYTES)
        lines = head.decode(encoding, errors="replace").splitlines(keepends=True)
        # the last may be cut
        lines = [line for line in lines[: -1 if len(head) == HEAD_BYTES else None] if line.strip()]
        sep, skipped = settings.sep, 0
        if lines and lines[0].lower().startswith("sep=") and len(lines[0].strip()) <= 5:
            sep, skipped, lines = sep or lines[0][4], 1, lines[1:]
        if not lines:
            raise ValueError(f"{path} is empty")
        if "\ufffd" in lines[0]:
            raise ValueError(_wrong_encoding(path, encoding))
        sep = sep or _separator_of(lines)
        return CsvFile(path, encoding, sep, next(csv.reader(lines, delimiter=sep)), skipped)

    def ragged(self) -> str:
        """The first line whose fields are more or fewer than the columns; empty where there is
        none."""
        with io.TextIOWrapper(_opened(self.path), self.encoding, "replace", newline="") as file:
            rows, lines_before = csv.reader(file, delimiter=self.sep), 0
            for row in rows:
                if row and len(row) != len(self.header) and lines_before >= self.skipped:
                    return (
                        f"line {lines_before + 1} has {counted(len(row), 'field')}, but the header"
                        f" names {counted(len(self.header), 'column')}: {self.sep.join(row)[:60]!r}"
                    )
                lines_before = rows.line_num
        return ""


def _opened(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        gzipped = file.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], _Unpacked(path)) if gzipped else path.open("rb")


class _Unpacked(gzip.GzipFile):
    """A .gz file that is refused where it grows too large."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def read(self, size: int | None = -1) -> bytes:
        block = super().read(size)
        _refuse_large(self.path, self.tell())
        return block

    def read1(self, size: int = -1) -> bytes:
        block = super().read1(size)
        _refuse_large(self.path, self.tell())
        return block


def _encoding_of(file: IO[bytes]) -> str:
    """UTF-8 or UTF-16 where the bytes are that; else an encoding in which charset-normalizer
    recognizes a language that is not Western; else latin-1, or cp1252 if the file has characters
    that latin-1 lacks."""
    start = file.read(1000)
    if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    for first, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):  # without a mark
        if start[first::2].count(0) > 0.8 * len(start[first::2]) > 0:
            return encoding
    file.seek(0)
    high, sample = b"", b""  # the different bytes beyond ASCII, and some lines that have them
    while block := file.read(CHUNK_BYTES) + file.readline():
        try:
            block.decode("utf-8")
        except UnicodeDecodeError:
            high = bytes({*high, *block.translate(None, ASCII)})
            lines = [line for line in block.splitlines() if not line.isascii()]
            sample = sample or b"\n".join(lines)[:HEAD_BYTES]
    if not high:
        return "utf-8-sig"
    purpose = "Reading a CSV file that is not UTF-8"
    matches = need("charset_normalizer", "data", purpose).from_bytes(sample)
    candidates = ["cp1252", "latin-1"] if min(high) < 0xA0 else ["latin-1"]
    western = any("cp1252" in match.could_be_from_charset for match in matches)
    if (guess := matches.best()) and not western and guess.coherence > RECOGNIZED:
        candidates.insert(0, guess.encoding)
    return next(name for name in candidates if "\ufffd" not in high.decode(name, "replace"))


def _separator_of(lines: Sequence[str]) -> str:
    try:
        return csv.Sniffer().sniff("".join(lines[:50]), SEPARATORS).delimiter
    except csv.Error:  # one column, or too few rows to tell
        return max(SEPARATORS, key=lines[0].count)


def _from_csv(file: CsvFile, settings: FileSettings, read: FileColumns) -> Any:
    """Read by pyarrow: pandas would fill short rows with NaN and rename a column named twice."""
    arrow, arrow_csv = need("pyarrow", "data", ""), need("pyarrow.csv", "data", "Reading CSV")
    # "1, ?, 2": a space after the comma is no part of the value
    marks = [*settings.missing, *(" " + mark for mark in settings.missing)]
    wanted = _present(settings.only, file.header)
    # which arrow reads without conversion
    utf8 = codecs.lookup(file.encoding).name in ("utf-8", "utf-8-sig")
    options: dict[str, Any] = {
        "read_options": arrow_csv.ReadOptions(
            encoding="utf8" if utf8 else file.encoding,
            use_threads=settings.threads,
            skip_rows=file.skipped,
        ),
        "parse_options": arrow_csv.ParseOptions(delimiter=file.sep, newlines_in_values=True),
        "convert_options": arrow_csv.ConvertOptions(
            null_values=marks,
            strings_can_be_null=True,
            include_columns=wanted,
            column_types=dict.fromkeys(file.header, arrow.string()),
        ),
    }
    with _reading(file.path, file.encoding):
        try:
            table = _streamed(file, options) if wanted is not None else None
            if table is None:
                with _opened(file.path) as lines:
                    table = arrow_csv.read_csv(lines, **options)
        except arrow.ArrowInvalid as error:
            if "UTF8" in str(error):
                raise ValueError(_wrong_encoding(file.path, file.encoding)) from error
            why = file.ragged() or _first_line(error)
            raise ValueError(f"{file.path} cannot be read as a table: {why}") from error
        for i, field in enumerate(table.schema):
            try:
                column = _typed(table.column(i), field.name.strip(), file.sep, settings, read.notes)
            except ColumnTypeError as error:
                read.errors[field.name.strip()] = str(error)
                continue
            table = table.set_column(i, field.name, column)
    return table


def _streamed(file: CsvFile, options: dict[str, Any]) -> Any:
    """The wanted columns of a large file, batch by batch, so that nothing else of it is held in
    memory; None where the file is small."""
    arrow_csv = need("pyarrow.csv", "data", "")
    with _opened(file.path) as lines:
        # tables shrink so
        size = file.path.stat().st_size * (5 if isinstance(lines, gzip.GzipFile) else 1)
        if size <= STREAMED_BYTES:
            return None
        options["read_options"].block_size = BLOCK_BYTES
        with arrow_csv.open_csv(lines, **options) as reader:
            return reader.read_all()


# Text becomes numbers -----------------------------------------------------------------------------


def _typed(text: Any, name: str, sep: str, settings: FileSettings, notes: list[str]) -> Any:
    """A column of text as numbers or truth values, where every entry is one; else without the
    spaces around it."""
    arrow, compute = need("pyarrow", "data", ""), need("pyarrow.compute", "data", "")

    def all_match(pattern: str) -> bool:
        return bool(compute.all(compute.match_substring_regex(text, pattern)).as_py())

    def without(part: str, *, comma: str = ",") -> Any:
        plain = compute.replace_substring_regex(text, part, "")
        return compute.replace_substring(plain, comma, ".").cast(arrow.float64())

    text = compute.utf8_trim_whitespace(text)
    if text.null_count == len(text):
        return text.cast(arrow.float64())
    if all_match(TRUTH):
        return compute.equal(compute.utf8_lower(text), "true")
    if all_match(_PERCENT):
        notes.append(f"the column {name!r} has percentages: 45% was read as 0.45")
        return compute.divide(without(r"\s?%"), 100.0)
    numbers = _cast(text, arrow.int64()) or _cast(text, arrow.float64())
    dotted = compute.match_substring(text, ".")
    if numbers is not None and settings.decimal != ",":
        some_dotted = compute.any(dotted).as_py() and not compute.all(dotted).as_py()
        # 1.250 beside 999, in a file of a country that may write thousands so
        may_be_thousands = sep != "," and some_dotted and all_match(DOTS_OF_THOUSANDS)
        if may_be_thousands and settings.decimal is None:
            raise _ambiguous(name, text, dotted)
        return _unless_codes(numbers, text, name, all_match(_WHOLE), notes)
    commas = compute.match_substring(text, ",")
    if settings.decimal is None and all_match(COMMA_DECIMAL) and all_match(COMMAS_OF_THOUSANDS):
        raise _ambiguous(name, text, commas)
    if settings.decimal != "." and all_match(DOTS_OF_THOUSANDS + "|" + COMMA_DECIMAL):
        notes.append(f"the column {name!r} has decimal commas: 1.234,5 would be read as 1234.5")
        return without(r"\.")
    if settings.decimal != "," and all_match(COMMAS_OF_THOUSANDS):
        notes.append(f"the column {name!r} has commas of thousands: 1,234 was read as 1234")
        return without(",", comma=".")
    return text


def _cast(text: Any, kind: Any) -> Any:
    try:
        return text.cast(kind)
    except need("pyarrow", "data", "").ArrowInvalid:
        return None


def _unless_codes(numbers: Any, text: Any, name: str, whole: bool, notes: list[str]) -> Any:
    """The numbers; or the text, where numbers would make one code of two."""
    compute = need("pyarrow.compute", "data", "")
    if whole and str(numbers.type) == "double":  # beyond 64 bits
        largest = compute.max(compute.abs(numbers)).as_py()
        return text if largest > EXACT else numbers
    different = compute.count_distinct(numbers).as_py()
    if different <= MOST_CODES and compute.count_distinct(text).as_py() > different:
        notes.append(
            f"the column {name!r} writes one number in several ways, such as 01 and 1, and was read"
            " as text"
        )
        return text
    return numbers


def _ambiguous(name: str, text: Any, marked: Any) -> ColumnTypeError:
    example = text.filter(marked)[0].as_py()
    digits = example.replace(",", "").replace(".", "")
    point = example.replace(",", ".")
    return ColumnTypeError(
        f"column {name!r} has {example!r}, which may be {digits} or {point}; say which mark begins"
        " the decimals: `decimal='.'` or `decimal=','`"
    )


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
        " (`encoding`)"
    )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
