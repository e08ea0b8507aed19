"""A result as a file: one row of Parquet, with a checksum of its content beside pyarrow's of every
page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbound._utils.optional import need
from fairbound.benchmark._fingerprint import canonical_json, checksum, key

SETTINGS = b"fairbound.settings"  # where a Parquet file's own metadata hold the settings
MADE = b"fairbound.made"  # and who computed it
# and of all that; pages have their own, their headers and the footer do not
CHECKSUM = b"fairbound.checksum"

Settings = dict[str, Any]
StoredColumn = NDArray[Any]  # (rows, ...): numbers, truth values or text


@dataclass(frozen=True, eq=False)
class StoredResult:
    """One result: what was asked, and its tables of columns of equal length.

    >>> StoredResult({"seed": 0}, {"records": {"f": np.zeros(3)}}).key[:8]
    'bd048884'
    """

    settings: Mapping[str, Any]
    tables: Mapping[str, Mapping[str, StoredColumn]]
    # by which code and device, in how many seconds: `made_by`
    made: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return key(self.settings)

    @property
    def checksum(self) -> str:
        """Checksum of everything in it."""
        columns = {
            f"{name} {column}": values
            for name, table in self.tables.items()
            for column, values in table.items()
        }
        return key({"settings": self.settings, "made": self.made, "tables": checksum(columns)})


class DamagedError(Exception):
    """Why a file is not what was once written."""


def opened(data: bytes, name: str) -> StoredResult:
    """The result in a file, whose content matches its checksums and whose settings match its
    name."""
    arrow = need("pyarrow", "data", "Reading results")
    parquet = need("pyarrow.parquet", "data", "Reading results")
    try:
        # From memory and without read-ahead: threads that read Python's files can abort the process
        # when it ends (pyarrow 26, about one exit in ten)
        file = parquet.ParquetFile(
            arrow.BufferReader(data), pre_buffer=False, page_checksum_verification=True
        )
        content = file.read(use_threads=False)
        metadata = content.schema.metadata or {}
        settings, made = (json.loads(metadata.get(place, b"{}")) for place in (SETTINGS, MADE))
        found, named = StoredResult(settings, _tables_of(content), made), key(settings)
        if metadata.get(CHECKSUM) != found.checksum.encode():
            raise ValueError("its content does not match its checksum")
    except (arrow.ArrowException, OSError, ValueError, AttributeError) as error:
        words = str(error).splitlines()[0] if data else "it is empty"
        raise DamagedError(f"its {len(data)} bytes are not a valid result ({words})") from error
    if named != name:
        raise DamagedError(f"its settings are those of {named}")
    return found


def parquet_of(result: StoredResult) -> bytes:
    arrow = need("pyarrow", "data", "Storing results")
    parquet = need("pyarrow.parquet", "data", "Storing results")
    if not result.tables:
        raise ValueError("the result has no table; it needs at least one")
    columns = {name: _records(table, name, arrow) for name, table in result.tables.items()}
    metadata = {SETTINGS: canonical_json(result.settings), MADE: canonical_json(result.made)}
    content = arrow.table(columns)
    as_read = StoredResult(result.settings, _tables_of(content), result.made)
    table = content.replace_schema_metadata(metadata | {CHECKSUM: as_read.checksum})
    sink = arrow.BufferOutputStream()
    # Floats that do not repeat are a third larger with a dictionary; statistics of one row are
    # useless
    parquet.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,
    )
    return bytes(sink.getvalue())


def files_of(results: Iterable[StoredResult]) -> dict[str, bytes]:
    """The files of results, by key."""
    return {result.key: parquet_of(result) for result in results}


def _records(table: Mapping[str, StoredColumn], name: str, arrow: Any) -> Any:
    """A table as one list of records."""
    columns = {column: np.asarray(values) for column, values in table.items()}
    lengths = {column: len(values) if values.ndim else None for column, values in columns.items()}
    if not columns or len(set(lengths.values())) > 1 or None in lengths.values():
        shown = (
            ", ".join(f"{column} {values.shape}" for column, values in columns.items())
            or "no columns"
        )
        raise ValueError(f"table {name!r} has {shown}; a table has columns of one length")
    entries = [_arrow_of(values, f"{name}.{column}", arrow) for column, values in columns.items()]
    records = arrow.StructArray.from_arrays(entries, names=list(columns))
    return arrow.ListArray.from_arrays(arrow.array([0, len(records)], arrow.int32()), records)


def _arrow_of(values: StoredColumn, name: str, arrow: Any) -> Any:
    """An entry for each row: a value, or an array of fixed size."""
    kind, size = values.dtype.kind, values.dtype.itemsize
    flat = values.reshape(-1)
    if kind == "U" or (kind == "O" and all(isinstance(value, str) for value in flat)):
        entries = arrow.array(flat.tolist(), arrow.string())
    elif kind in "biu" or (kind == "f" and size in (4, 8)):
        # Arrow supports no other order
        entries = arrow.array(flat.astype(flat.dtype.newbyteorder("="), copy=False))
    else:
        raise ValueError(
            f"column {name} holds {values.dtype}; the store keeps whole numbers, float32, float64,"
            " truth values, text"
        )
    for axis in reversed(range(1, values.ndim)):
        if values.shape[axis]:
            entries = arrow.FixedSizeListArray.from_arrays(entries, values.shape[axis])
        else:  # no constraints, say: Arrow has no fixed size 0
            ends = arrow.array([0] * (prod(values.shape[:axis]) + 1), arrow.int32())
            entries = arrow.ListArray.from_arrays(ends, entries)
    return entries


def _tables_of(content: Any) -> dict[str, dict[str, StoredColumn]]:
    tables = {}
    for name in content.column_names:
        records = content.column(name).combine_chunks().flatten()
        fields = (field.name for field in records.type)
        tables[name] = dict(zip(fields, map(_numpy_of, records.flatten()), strict=True))
    return tables


def _numpy_of(entries: Any) -> StoredColumn:
    """(rows, ...), a copy that may be written to."""
    shape = [len(entries)]
    while hasattr(entries.type, "value_field"):  # lists
        shape.append(getattr(entries.type, "list_size", 0))
        entries = entries.flatten()
    flat = entries.to_numpy(zero_copy_only=False)
    array: StoredColumn = flat.astype(str) if flat.dtype.kind == "O" else np.array(flat)
    return array.reshape(shape)
