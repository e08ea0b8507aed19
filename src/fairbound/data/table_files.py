"""The columns of a CSV or parquet file, read by pyarrow: only those that are needed, and batch by batch where the file
is large."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fairbound._utils.optional import need
from fairbound.data.csv_form import CsvForm, first_line, for_arrow, form_of, ragged, wrong_encoding

DECIMAL_COMMA = r"^[+-]?\d+(,\d+)?$"  # as much of the world writes numbers, with ; between them
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
        form = form_of(path, start, sep, encoding)
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
            f"{path} is damaged or incomplete ({path.stat().st_size} bytes), or no parquet file: {first_line(error)}"
        ) from error


def _from_csv(path: Path, form: CsvForm, missing: Sequence[str], only: Sequence[str] | None, threads: bool) -> Any:
    """By pyarrow: pandas would fill short rows with NaN, rename a column that is there twice, and type it by chunks."""
    arrow = need("pyarrow", "data", "Reading a CSV file")
    arrow_csv = need("pyarrow.csv", "data", "Reading a CSV file")
    marks = [*missing, *(" " + mark for mark in missing)]  # "1, ?, 2": a space after the comma is no part of the value
    wanted = _present(only, form.header)
    options: dict[str, Any] = {
        "read_options": arrow_csv.ReadOptions(encoding=for_arrow(form.encoding), use_threads=threads),
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
        raise ValueError(wrong_encoding(path, form.encoding)) from error
    except OSError as error:
        raise ValueError(f"{path} is damaged or incomplete: {first_line(error)}") from error
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as a table: {ragged(path, form) or first_line(error)}") from error
    return _cleaned(table, path, form)


def _streamed(path: Path, form: CsvForm, options: dict[str, Any]) -> Any:
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


def _present(only: Sequence[str] | None, there: Sequence[str]) -> list[str] | None:
    """The columns to read, as the file writes them; all of them, where one is there twice."""
    if only is None:
        return None
    wanted = [name for name in there if name.strip() in only]
    return wanted if wanted and len(set(map(str.strip, wanted))) == len(wanted) else None


def _cleaned(table: Any, path: Path, form: CsvForm) -> Any:
    """Text without the spaces around it, and numbers such as 0,127 as numbers."""
    arrow = need("pyarrow", "data", "Reading a CSV file")
    compute = need("pyarrow.compute", "data", "Reading a CSV file")
    for i, field in enumerate(table.schema):
        if arrow.types.is_binary(field.type):  # what the reader makes of text that is not UTF-8
            raise ValueError(wrong_encoding(path, form.encoding))
        if arrow.types.is_dictionary(field.type):
            if arrow.types.is_binary(field.type.value_type):
                raise ValueError(wrong_encoding(path, form.encoding))
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
