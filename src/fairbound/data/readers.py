"""Whatever the user has becomes columns: a CSV or parquet file, a data frame, arrays, lists or tensors.

A column is a numpy vector of numbers or booleans with NaN where one is missing, or of text (objects) with None
where it is missing. An empty field of a CSV file is missing, and so are the words in `MISSING_MARKS`; "None" is not
among them, since surveys use it as an answer.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fairbound._utils.optional import need
from fairbound.constraints.subgroups import is_missing, no_column
from fairbound.data.columns import ColumnTypeError, column_of
from fairbound.data.table import Table

MISSING_MARKS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")
SEPARATORS = ",;\t|"
DECIMAL_COMMA = r"^[+-]?\d+(,\d+)?$"  # as much of the world writes numbers, with ; between them
HEAD_BYTES = 1 << 16  # of a file, from which the separator is detected
STREAMED_BYTES = 1 << 28  # a larger CSV file is read batch by batch
BLOCK_BYTES = 1 << 24  # of a batch
CHUNK_BYTES = 1 << 20  # of a file, read at a time to detect its encoding
C1_BYTES = frozenset(range(0x80, 0xA0))  # control characters in latin-1, but quotes, dashes and the euro in cp1252
NOT_IN_CP1252 = frozenset((0x81, 0x8D, 0x8F, 0x90, 0x9D))
READABLE = (
    "the path of a CSV or parquet file, a pandas or polars DataFrame, or a dict of columns (for arrays X and y, use "
    "table_of)"
)


class ColumnsRead(dict[str, NDArray[Any]]):
    """Columns by name, and, of those that could not be read, why: asking for one says it."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, str] = {}  # name -> a sentence
        self.notes: list[str] = []  # what was assumed in reading
        self.header: list[str] = []  # of a file, whose columns were not all read

    def __contains__(self, name: object) -> bool:
        if name in self.errors:
            raise ValueError(self.errors[str(name)])
        return super().__contains__(name)

    def __missing__(self, name: str) -> NDArray[Any]:
        raise ValueError(self.errors[name]) if name in self.errors else KeyError(name)


def read_table(
    source: Any,
    *,
    label: str,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    sep: str | None = None,
    positive: Any = None,
    missing: Sequence[str] = MISSING_MARKS,
) -> Table:
    """A table from a file, a data frame or a dict of columns.

    `features` are the columns that a model may see: by default all but the label and `drop`. Columns that are no
    features stay in the table, e.g. as protected attributes. `sep` and `missing`, the words that mark a missing
    value, are for CSV files; the separator is found where it is not given. `positive` is the label's value that counts
    as 1, where that is not evident.

    >>> table = read_table({"age": [30, 40], "id": [7, 8], "rich": ["no", "yes"]}, label="rich", drop=["id"])
    >>> table.features, table.rows
    (('age',), 2)
    """
    columns = read_columns(source, sep=sep, missing=missing)
    for name in (label, *_listed(features or ())):
        if name not in columns:
            raise ValueError(no_column(name, columns))
    for name in _listed(drop):
        if name not in columns.errors and name not in columns:
            raise ValueError(no_column(name, columns))
    for name, why in columns.errors.items():
        if features is None and name not in _listed(drop):
            raise ValueError(f"{why}; convert it, or drop it: drop=[{name!r}]")
    listed = [name for name in columns if name != label] if features is None else _listed(features)
    chosen = tuple(name for name in listed if name not in _listed(drop))
    if not chosen:
        raise ValueError(f"no feature is left beside the label {label!r}")
    if "" in chosen:
        raise ValueError("a column has no name (a row index that was written with the table?); drop it: drop=['']")
    return Table(columns, label, chosen, _name_of(source), positive)


def table_of(
    X: Any,
    y: Any,
    *,
    groups: Any = None,
    names: Sequence[str] | None = None,
    label: str = "label",
    positive: Any = None,
    source: str = "arrays",
) -> Table:
    """A table from inputs (rows, columns) and labels (rows,): numpy, torch, lists, or a data frame as X.

    `groups` is one protected column, then called "group", or a dict of them; they are no features.

    >>> table_of(np.zeros((4, 2)), [0, 1, 0, 1], groups={"sex": [0, 0, 1, 1]}, names=["age", "hours"]).features
    ('age', 'hours')
    """
    inputs = _columns_of_matrix(X, names)
    protected = groups if isinstance(groups, Mapping) else {} if groups is None else {"group": groups}
    parts = {**{name: column_of(values, name) for name, values in protected.items()}, label: column_of(_flat(y), label)}
    for name in parts:
        if name in inputs:
            raise ValueError(f"{name!r} is a column of X already; give it another name")
    if label in protected:
        raise ValueError(f"{label!r} names the label and a protected column; give one of them another name")
    return Table({**inputs, **parts}, label, tuple(inputs), source, positive)


def read_columns(
    source: Any,
    *,
    sep: str | None = None,
    missing: Sequence[str] = MISSING_MARKS,
    encoding: str | None = None,
    only: Sequence[str] | None = None,
    threads: bool = True,
) -> ColumnsRead:
    """The columns of a file, a data frame or a dict, by name. What is neither numbers nor text, or is there twice with
    different values, is refused when asked for, so that an unused column raises no error. `encoding` is that of a CSV
    file; where it is not given, it is UTF-8 or UTF-16, else latin-1 (cp1252), and a note says so. `only` names the
    columns of a file that are needed: a file that is larger than memory is then streamed, and these are kept.

    >>> read_columns({"age": [30, None], "job": ["nurse", "clerk"]})["age"]
    array([30., nan])
    """
    columns = ColumnsRead()
    if isinstance(source, str | os.PathLike):
        names, values, columns.notes, columns.header = _from_file(
            Path(source), sep, _listed(missing), encoding, None if only is None else _listed(only), threads
        )
    elif isinstance(source, Mapping):
        names, values = list(source), list(source.values())
    else:
        names, values = _from_frame(source)
    for name, column in zip(map(str, names), values, strict=True):
        try:
            _add(columns, name, column_of(column, name), _name_of(source))
        except ColumnTypeError as error:
            columns.errors[name] = str(error)
    if columns.errors and not columns:
        raise ValueError("; ".join(columns.errors.values()))
    lengths = {name: len(column) for name, column in columns.items()}
    if not columns or not max(lengths.values()):
        raise ValueError(f"{_name_of(source)} has no {'rows' if columns else 'columns'}")
    if len(set(lengths.values())) > 1:
        shortest, longest = min(lengths, key=lengths.__getitem__), max(lengths, key=lengths.__getitem__)
        raise ValueError(
            f"the columns differ in length: {shortest!r} has {lengths[shortest]} rows, {longest!r} {lengths[longest]}"
        )
    return columns


def _add(columns: ColumnsRead, name: str, column: NDArray[Any], where: str) -> None:
    """One more column; the same values under the same name are one column."""
    if name in columns.errors:
        return
    if name not in columns.keys():  # noqa: SIM118, `in` asks for the column
        columns[name] = column
        return
    there = columns[name]
    row = 0 if there.dtype.kind != column.dtype.kind and len(there) else _first_difference(there, column)
    if row is not None:
        del columns[name]
        columns.errors[name] = (
            f"{where} has the column {name!r} more than once, with different values (row {row}: {there[row]!s} and "
            f"{column[row]!s}); rename or remove one"
        )


def _first_difference(a: NDArray[Any], b: NDArray[Any]) -> int | None:
    same = np.asarray(a == b, dtype=bool) | (is_missing(a) & is_missing(b))
    return None if same.all() else int((~same).argmax())


# Files ----------------------------------------------------------------------------------------------------------------


def _from_file(
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
        form = _form(path, start, sep, encoding)
        table, notes, header = (
            _from_csv(path, form, missing, only, threads),
            form.notes,
            [name.strip() for name in form.header],
        )
    kept = [i for i, name in enumerate(table.column_names) if not name.startswith("__index_level_")]  # pandas' own
    return [table.column_names[i].strip() for i in kept], [table.column(i) for i in kept], notes, header


def _first_bytes(path: Path) -> bytes:
    if not path.exists():
        raise FileNotFoundError(_no_file(path))
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")
    with path.open("rb") as file:
        start = file.read(4)
    if not start:
        raise ValueError(f"{path} is empty")
    if start == b"PK\x03\x04":
        raise ValueError(f"{path} is a zip archive or an Excel file; unpack it, or save the sheet as CSV")
    return start


def _no_file(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"there is no file {path}: the folder {folder} is not there"
    files = sorted(file.name for file in folder.iterdir() if file.is_file())
    close = get_close_matches(path.name, files, n=3, cutoff=0.5)
    return f"there is no file {path}" + (f"; did you mean {' or '.join(close)}?" if close else "")


def _from_parquet(path: Path, only: Sequence[str] | None, threads: bool) -> tuple[Any, list[str]]:
    parquet = need("pyarrow.parquet", "data", "Reading a parquet file")
    try:
        there = parquet.read_schema(path).names
        return parquet.read_table(path, columns=_present(only, there), use_threads=threads), list(there)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged or incomplete ({path.stat().st_size} bytes), or no parquet file: {_first_line(error)}"
        ) from error


class _Form(NamedTuple):
    """How a CSV file is written."""

    gzipped: bool
    encoding: str
    sep: str
    header: list[str]
    notes: list[str]


def _form(path: Path, start: bytes, sep: str | None, encoding: str | None) -> _Form:
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
    return _Form(gzipped, encoding, sep, header, notes)


def _present(only: Sequence[str] | None, there: Sequence[str]) -> list[str] | None:
    """The columns to read, as the file writes them; all of them, where one is there twice."""
    if only is None:
        return None
    wanted = [name for name in there if name.strip() in only]
    return wanted if wanted and len(set(map(str.strip, wanted))) == len(wanted) else None


def _from_csv(path: Path, form: _Form, missing: Sequence[str], only: Sequence[str] | None, threads: bool) -> Any:
    """By pyarrow: pandas would fill short rows with NaN, rename a column that is there twice, and type it by chunks."""
    arrow = need("pyarrow", "data", "Reading a CSV file")
    arrow_csv = need("pyarrow.csv", "data", "Reading a CSV file")
    marks = [*missing, *(" " + mark for mark in missing)]  # "1, ?, 2": a space after the comma is no part of the value
    wanted = _present(only, form.header)
    options: dict[str, Any] = {
        "read_options": arrow_csv.ReadOptions(encoding=_for_arrow(form.encoding), use_threads=threads),
        "parse_options": arrow_csv.ParseOptions(delimiter=form.sep, newlines_in_values=True),
        "convert_options": arrow_csv.ConvertOptions(
            null_values=marks, strings_can_be_null=True, include_columns=wanted, auto_dict_encode=True
        ),
    }
    try:
        with arrow.input_stream(str(path), compression="gzip" if form.gzipped else None) as file:
            if wanted is not None and path.stat().st_size * (5 if form.gzipped else 1) > STREAMED_BYTES:
                table = _streamed(path, form, options)
            else:
                table = arrow_csv.read_csv(file, **options)
    except KeyError:  # a header that is not as its first line reads
        return _from_csv(path, form, missing, None, threads)
    except UnicodeError as error:
        raise ValueError(_wrong_encoding(path, form.encoding)) from error
    except OSError as error:
        raise ValueError(f"{path} is damaged or incomplete: {_first_line(error)}") from error
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as a table: {_ragged(path, form) or _first_line(error)}") from error
    return _cleaned(table, path, form)


def _streamed(path: Path, form: _Form, options: dict[str, Any]) -> Any:
    """The wanted columns, batch by batch: nothing else of the file is held in memory. Types are those of the first
    batch; where a later one has other values, whole numbers become numbers, numbers text, and reading starts again."""
    arrow, arrow_csv = need("pyarrow", "data", ""), need("pyarrow.csv", "data", "")
    options["read_options"].block_size = BLOCK_BYTES
    types: dict[str, Any] = {}
    while True:
        options["convert_options"].column_types = types
        schema = None
        try:
            with (
                arrow.input_stream(str(path), compression="gzip" if form.gzipped else None) as file,
                arrow_csv.open_csv(file, **options) as reader,
            ):
                schema = reader.schema
                return arrow.Table.from_batches(list(reader), schema)
        except arrow.ArrowInvalid as error:
            found = re.search(r"CSV column #(\d+): .*CSV conversion error", str(error))
            if found is None or schema is None:
                raise
            name = form.header[int(found[1])]
            name = next(own for own in schema.names if own.strip() == name.strip())
            was = types.get(name, schema.field(name).type)
            types[name] = arrow.float64() if arrow.types.is_integer(was) else arrow.string()
            if arrow.types.is_string(was):
                raise


def _for_arrow(encoding: str) -> str:
    """Arrow reads UTF-8 without conversion, and knows its byte-order mark."""
    return "utf8" if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig") else encoding


def _opened(path: Path, gzipped: bool) -> BinaryIO:
    return gzip.open(path) if gzipped else path.open("rb")  # type: ignore[return-value]


def _encoding_of(path: Path, gzipped: bool) -> str:
    """UTF-8 or UTF-16 where that is what it is; else cp1252, or latin-1 where it holds what cp1252 lacks."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    unicode, high = True, frozenset[int]()
    try:
        with _opened(path, gzipped) as file:
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
        raise ValueError(f"{path} is damaged or incomplete: {_first_line(error)}") from error
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


def _wrong_encoding(path: Path, encoding: str) -> str:
    return f"{path} is not {encoding} text; name its encoding, such as latin-1, cp1252 or utf-16 (encoding, --encoding)"


def _first_lines(path: Path, gzipped: bool, encoding: str) -> list[str]:
    try:
        with _opened(path, gzipped) as file:
            data = file.read(HEAD_BYTES)
    except (EOFError, OSError) as error:
        raise ValueError(f"{path} is damaged or incomplete: {_first_line(error)}") from error
    lines = data.decode(encoding, errors="replace").splitlines()
    lines = [line for line in lines[: -1 if len(data) == HEAD_BYTES else None] if line.strip()]  # the last may be cut
    if not lines:
        raise ValueError(f"{path} is empty")
    if "\ufffd" in lines[0]:
        raise ValueError(_wrong_encoding(path, encoding))
    return lines


def _ragged(path: Path, form: _Form) -> str:
    """The first line whose fields are more or fewer than the columns; empty where there is none."""
    with io.TextIOWrapper(_opened(path, form.gzipped), form.encoding, "replace", newline="") as file:
        rows, before = csv.reader(file, delimiter=form.sep), 0
        for row in rows:
            if row and len(row) != len(form.header):
                has = f"{len(row)} field{'' if len(row) == 1 else 's'}"
                shown = form.sep.join(row)[:60]
                return f"line {before + 1} has {has}, but the header names {len(form.header)} columns: {shown!r}"
            before = rows.line_num
    return ""


def _agreement(lines: Sequence[str], sep: str) -> tuple[float, int]:
    """How many of the first lines have as many fields as the first one, and how many these are; csv.Sniffer, on which
    pandas relies, takes a letter that happens to be frequent."""
    fields = [len(row) for row in islice(csv.reader(lines, delimiter=sep, skipinitialspace=True), 50)]
    return (fields.count(fields[0]) / len(fields) if fields[0] > 1 else 0.0), fields[0]


def _cleaned(table: Any, path: Path, form: _Form) -> Any:
    """Text without the spaces around it, and numbers such as 0,127 as numbers."""
    arrow = need("pyarrow", "data", "Reading a CSV file")
    compute = need("pyarrow.compute", "data", "Reading a CSV file")
    for i, field in enumerate(table.schema):
        if arrow.types.is_binary(field.type):  # what the reader makes of text that is not UTF-8
            raise ValueError(_wrong_encoding(path, form.encoding))
        if arrow.types.is_dictionary(field.type):
            if arrow.types.is_binary(field.type.value_type):
                raise ValueError(_wrong_encoding(path, form.encoding))
            parts = [(one.indices, compute.utf8_trim_whitespace(one.dictionary)) for one in table.column(i).chunks]
            if form.sep == "," or not all(_decimal_commas(levels) for _, levels in parts):
                column = [arrow.DictionaryArray.from_arrays(*part) for part in parts]
                table = table.set_column(i, field.name, arrow.chunked_array(column, type=field.type))
                continue
        if arrow.types.is_string(field.type) or arrow.types.is_dictionary(field.type):
            text = compute.utf8_trim_whitespace(table.column(i).cast(arrow.string()))
            if form.sep != "," and _decimal_commas(text):
                text = compute.replace_substring(text, ",", ".").cast(arrow.float64())
            table = table.set_column(i, field.name, text)
    return table


def _decimal_commas(text: Any) -> bool:
    compute = need("pyarrow.compute", "data", "Reading a CSV file")
    return bool(compute.all(compute.match_substring_regex(text, DECIMAL_COMMA)).as_py())


# Values in Python -----------------------------------------------------------------------------------------------------


def _from_frame(source: Any) -> tuple[list[str], list[Any]]:
    narwhals = need("narwhals", "data", "Reading a data frame")
    if hasattr(source, "collect"):
        raise ValueError(f"{_name_of(source)} is lazy; collect() it first")
    if not hasattr(source, "columns"):
        raise ValueError(f"cannot read {_name_of(source)}; give {READABLE}")
    if hasattr(source, "iloc") and not source.columns.is_unique:  # pandas allows names twice, narwhals does not
        return source.columns.tolist(), [source.iloc[:, i] for i in range(source.shape[1])]
    try:
        frame = narwhals.from_native(source, eager_only=True)
    except TypeError as error:
        raise ValueError(f"cannot read {_name_of(source)}; give {READABLE}") from error
    return list(frame.columns), [series.to_native() for series in frame.iter_columns()]


def _columns_of_matrix(X: Any, names: Sequence[str] | None) -> dict[str, NDArray[Any]]:
    if isinstance(X, Mapping) or hasattr(X, "columns"):
        read = read_columns(X)
        for why in read.errors.values():
            raise ValueError(f"{why}; convert it, or drop it from X")
        columns = list(read.items())
    else:
        matrix = X.detach().cpu().numpy() if isinstance(X, Tensor) else np.asarray(X)
        if matrix.ndim != 2:
            raise ValueError(f"X has shape {matrix.shape}; give (rows, columns)")
        columns = [(f"x{j}", column_of(matrix[:, j], f"x{j}")) for j in range(matrix.shape[1])]
    if names is None:
        return dict(columns)
    if len(names) != len(columns):
        raise ValueError(f"X has {len(columns)} columns but {len(names)} names")
    _refuse_twice(names, "X")
    return {name: column for name, (_, column) in zip(names, columns, strict=True)}


def _flat(y: Any) -> Any:
    """Labels of shape (rows, 1) as a vector."""
    return y.reshape(-1) if isinstance(y, Tensor | np.ndarray) and y.ndim == 2 and y.shape[1] == 1 else y


# Sentences ------------------------------------------------------------------------------------------------------------


def _refuse_twice(names: Sequence[Any], where: str) -> None:
    twice = [str(name) for name, count in Counter(map(str, names)).items() if count > 1]
    if twice:
        raise ValueError(f"{where} has the column {', '.join(map(repr, twice))} more than once; rename or remove one")


def _name_of(source: Any) -> str:
    if isinstance(source, str | os.PathLike):
        return Path(source).name
    if isinstance(source, Mapping):
        return "a dict of columns"
    return f"a {type(source).__module__.partition('.')[0]} {type(source).__name__}"


def _listed(names: Sequence[str]) -> tuple[str, ...]:
    """One name, or several."""
    return (names,) if isinstance(names, str) else tuple(names)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
