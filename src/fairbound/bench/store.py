"""The store of benchmark results: each cell is computed once and kept under a name made from its content.

A cell is one run of an experiment. Its settings are all that decides the result: the experiment, the algorithm and its
hyper-parameters, seed, split, the checksum of the data and the hash of the code. `key(settings)` is the cell's name: a
benchmark that was killed finds what it has computed, and whatever changes gets another name.

    store.json             number of the format
    system-<name>.json     a machine and the software that computed here
    cells/<key>.parquet    one row: each table is a column that holds a list of records
    cells/<key>.damaged    a file that did not match its checksum, moved aside when the cell was computed again
    .<name>.<random>.part  being written, or left by a killed process

Nothing else writes results. A cell is a Parquet file of its own that any reader opens; tables, figures and the report
read the store.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from fairbound.extras import need

FORMAT = 1  # of the folder; a higher number is of a later fairbound
OLD = 24 * 3600.0  # seconds after which a part is surely left by a killed process: writing one takes seconds
PART = ".part"
KEY = re.compile("[0-9a-f]{64}")
SETTINGS = b"fairbound.settings"  # where a Parquet file's own metadata hold the settings
SEAL = hashlib.sha256().digest_size  # bytes
FOOTER_END = 8  # bytes that end a Parquet file: the footer's length and a magic number

# What decides results, relative to the package. The data count by their checksum, so loaders are not here.
DECIDING = (
    "core.py",
    "algorithms/**/*.py",
    "subproblems/**/*.py",
    "schedules.py",
    "problem.py",
    "sampling.py",
    "streams.py",
    "modules.py",
    "stacking.py",
    "stepping.py",
    "chunked.py",
    "runner.py",
    "fairness/cells.py",
    "fairness/constraints.py",
    "fairness/counts.py",
    "fairness/groups.py",
    "fairness/intervals.py",
    "fairness/regularisers.py",
    "fairness/scores.py",
    "data/dataset.py",
    "data/splits.py",
    "data/encoding.py",
    "data/outcomes.py",
    "bench/evaluate.py",
    "bench/execute.py",
    "bench/setting.py",
)

Column = NDArray[Any]  # (rows, ...): numbers, truth values or text
Settings = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Cell:
    """One result: what decided it, and its tables of columns of equal length.

    >>> Cell({"seed": 0}, {"records": {"f": np.zeros(3)}}).key[:8]
    'bd048884'
    """

    settings: Mapping[str, Any]
    tables: Mapping[str, Mapping[str, Column]]

    @property
    def key(self) -> str:
        return key(self.settings)


class Store:
    """A folder of cells. It is made when the first cell is put; until then it need not exist.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Store(folder)
    ...     name = store.put({"seed": 0}, {"records": {"f": np.array([0.7, 0.4])}})
    ...     store.has(name), store.get(name).tables["records"]["f"]
    (True, array([0.7, 0.4]))
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._cells = self.folder / "cells"
        self._prepared = False
        self._named: set[str] = set()  # damaged cells that a warning has named
        if self.folder.exists() and not self.folder.is_dir():
            raise NotADirectoryError(f"{self.folder} is a file; results are kept in a folder, name another")
        self._refuse_other_format()

    def has(self, key: str) -> bool:
        """Whether the cell is here, and sound."""
        return self._open(key) is not None

    def get(self, key: str) -> Cell | None:
        """The cell, or None where it is missing or damaged."""
        found = self._open(key)
        return None if found is None else Cell(found[0], _tables_of(found[1]))

    def keys(self) -> list[str]:
        """Of all sound cells, sorted."""
        return [name for name in self._names() if self.has(name)]

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Those that are still to be computed, each once, in the order given."""
        return [name for name in dict.fromkeys(keys) if not self.has(name)]

    def cells(self, where: Callable[[Settings], bool] | None = None) -> Iterator[Cell]:
        """All sound cells whose settings satisfy `where`, in the order of their keys; one at a time is in memory."""
        for name in self._names():
            found = self._open(name)
            if found is not None and (where is None or where(found[0])):
                yield Cell(found[0], _tables_of(found[1]))

    def put(self, settings: Mapping[str, Any], tables: Mapping[str, Mapping[str, Column]]) -> str:
        """Store one cell, in the place of what has its key; the key."""
        return self.put_many([Cell(settings, tables)])[0]

    def put_many(self, cells: Iterable[Cell]) -> list[str]:
        """Store cells of one stack, each in a file of its own; their keys. None appears before all are on the disk."""
        self._prepare()
        keys: list[str] = []
        with _parts(self.folder) as parts:
            for cell in cells:
                keys.append(cell.key)
                parts.write(self._path(keys[-1]), _seal(_parquet_of(cell)))
            for name in keys:
                self._set_damaged_aside(name)
            parts.rename()
        return keys

    def note_system(self, description: Mapping[str, Any]) -> None:
        """Keep what `system.describe` says, once for each system; its date is that of the first time."""
        self._prepare()
        name = f"system-{key(_dateless(description))[:12]}.json"
        if _json_in(self.folder / name) is None:
            self._write_json(name, description)

    def systems(self) -> list[Settings]:
        """The systems that computed here, the earliest first."""
        found = [_json_in(path) for path in self.folder.glob("system-*.json")]
        return sorted((one for one in found if one is not None), key=lambda one: (str(one.get("date")), key(one)))

    def _names(self) -> list[str]:
        return sorted(path.stem for path in self._cells.glob("*.parquet") if KEY.fullmatch(path.stem))

    def _path(self, key: str) -> Path:
        if not KEY.fullmatch(key):
            raise ValueError(f"a cell's key has 64 hexadecimal digits, as key(settings) gives; got {key!r}")
        return self._cells / f"{key}.parquet"

    def _open(self, key: str) -> tuple[Settings, Any] | None:
        """Settings and the Parquet file of a sound cell: the bytes that were checked, not a second look at the disk."""
        path = self._path(key)
        try:
            return _opened(path.read_bytes(), key)
        except FileNotFoundError:
            return None
        except _DamagedError as damage:
            self._name_once(path, damage)
            return None
        except OSError as error:
            raise OSError(f"{path} cannot be read ({error.strerror}); check the disk and who may read it") from error

    def _name_once(self, path: Path, damage: _DamagedError) -> None:
        if path.stem not in self._named:
            self._named.add(path.stem)
            warnings.warn(f"{path} is damaged: {damage}; it counts as missing and is to be recomputed", stacklevel=4)

    def _set_damaged_aside(self, key: str) -> None:
        path = self._path(key)
        if path.exists() and not self.has(key):
            with _sentences(self.folder), suppress(FileNotFoundError):  # another process was quicker
                os.replace(path, path.with_suffix(".damaged"))
            self._named.discard(key)  # what comes in its place may be damaged again

    def _prepare(self) -> None:
        """Before the first write: make the folder, say its format, and remove what killed processes left."""
        if self._prepared:
            return
        with _sentences(self.folder):
            self._cells.mkdir(parents=True, exist_ok=True)
        for part in (*self.folder.glob(f".*{PART}"), *self._cells.glob(f".*{PART}")):
            with suppress(OSError):  # another process finished or removed it
                if time.time() - part.stat().st_mtime > OLD:
                    part.unlink()
        if not (self.folder / "store.json").exists():
            self._write_json("store.json", {"format": FORMAT, "holds": "results of fairbound's benchmark"})
        self._prepared = True

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        with _parts(self.folder) as parts:
            parts.write(self.folder / name, (json.dumps(content, indent=2) + "\n").encode())
            parts.rename()

    def _refuse_other_format(self) -> None:
        path = self.folder / "store.json"
        if not path.exists():
            return
        said = (_json_in(path) or {}).get("format")
        if not isinstance(said, int) or said < 1:
            raise ValueError(
                f"{path} does not say which format the results have; remove that file if fairbound wrote the folder "
                "(each cell is checked when it is read), or name another folder"
            )
        if said > FORMAT:
            raise ValueError(
                f"{self.folder} holds results of format {said}, and this fairbound knows formats up to {FORMAT}; "
                "update fairbound (pip install -U fairbound), or name another folder"
            )


def key(settings: Mapping[str, Any]) -> str:
    """The name of the cell with these settings: SHA-256 of their canonical JSON.

    The order of entries does not matter, a tuple is a list, and numbers count by their value:

    >>> key({"tau": 1, "sizes": (8, 8)}) == key({"sizes": [8, 8], "tau": 1.0})
    True
    >>> key({"tau": float("nan")})
    Traceback (most recent call last):
    ValueError: settings.tau is nan; a setting that decides results is finite
    """
    return hashlib.sha256(_canonical_json(settings).encode()).hexdigest()


def checksum(columns: Mapping[str, Column]) -> str:
    """Of data: names and order of columns, shapes and values, whatever the platform's widths and order of bytes.

    >>> ages = [30, 40]
    >>> checksum({"AGEP": np.array(ages, dtype=">i2")}) == checksum({"AGEP": np.array(ages)})
    True
    """
    digest = hashlib.sha256()
    for name, column in columns.items():
        column = np.asarray(column)
        kind, parts = _portable(column, name)
        digest.update(json.dumps([name, kind, column.shape]).encode())
        for part in parts:
            digest.update(part)
    return digest.hexdigest()


def code_hash(*own: Path | str) -> str:
    """Of the source files that decide results, wherever they are installed; and of a user's `own`, by their content.

    >>> code_hash() == code_hash()
    True
    """
    return _hash_of_sources(Path(__file__).parents[1], own)


def _hash_of_sources(package: Path, own: Iterable[Path | str] = ()) -> str:
    sources: list[tuple[str, Path]] = []
    for pattern in DECIDING:
        found = sorted((path.relative_to(package).as_posix(), path) for path in package.glob(pattern))
        if not found:
            raise FileNotFoundError(f"{package} has no {pattern}, so results cannot be named; install fairbound again")
        sources += found
    digest = hashlib.sha256()
    for name, path in (*sources, *(("", Path(path)) for path in own)):
        text = path.read_bytes().replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        digest.update(json.dumps([name, len(text)]).encode() + text)
    return digest.hexdigest()


# Settings


def _canonical_json(settings: Mapping[str, Any]) -> str:
    return json.dumps(_canonical(settings, "settings"), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _canonical(value: Any, where: str) -> Any:
    """The same in JSON's own types, a float with a whole value as an integer; what has no one form is refused."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not isfinite(value):
            raise ValueError(f"{where} is {value}; a setting that decides results is finite")
        return int(value) if value.is_integer() else value
    if isinstance(value, list | tuple):
        return [_canonical(entry, f"{where}[{i}]") for i, entry in enumerate(value)]
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise ValueError(f"{where} has the entry {name!r}; settings are named with text, write {str(name)!r}")
        return {str(name): _canonical(entry, f"{where}.{name}") for name, entry in value.items()}
    raise ValueError(
        f"{where} is a {type(value).__name__}; settings are numbers, text, truth values, None, and lists and "
        "mappings of these"
    )


def _dateless(description: Mapping[str, Any]) -> Settings:
    return {name: value for name, value in description.items() if name != "date"}


def _json_in(path: Path) -> Settings | None:
    """The mapping in a small file of ours, or None where it is missing or no longer one."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        raise OSError(f"{path} cannot be read ({error.strerror}); check the disk and who may read it") from error
    return found if isinstance(found, dict) else None


# Data


def _portable(column: Column, name: str) -> tuple[str, list[bytes | memoryview]]:
    """What a column is, and its values as bytes that are the same everywhere."""
    kind, size = column.dtype.kind, column.dtype.itemsize
    if kind == "b":
        return "b", [_bytes_of(column, "u1")]
    if kind == "i" or (kind == "u" and size < 8):  # the width of an integer is the platform's choice
        return "i", [_bytes_of(column, "<i8")]
    if kind == "u":
        return "u", [_bytes_of(column, "<u8")]
    if kind in "mM":
        return column.dtype.str[1:], [_bytes_of(column, "<i8")]  # with its unit
    if kind == "f" and size <= 8:
        missing = np.isnan(column)  # NaN has many bit patterns, and processors disagree on which
        return f"f{size}", [_bytes_of(np.where(missing, np.nan, column) if missing.any() else column, f"<f{size}")]
    if kind in "UO":
        return "text", _text_bytes(column, name)
    raise ValueError(f"column {name!r} holds {column.dtype}, which has no checksum; make it numbers or text")


def _bytes_of(column: Column, dtype: str) -> memoryview:
    flat: Column = np.ascontiguousarray(column.astype(dtype, copy=False)).reshape(-1)
    return flat.view(np.uint8).data


def _text_bytes(column: Column, name: str) -> list[bytes | memoryview]:
    """Text, and the truth values and None that a column of a Table may hold: type, length and text of each entry."""
    codes: dict[type, int] = {str: 0, type(None): 1, bool: 2}
    values = column.reshape(-1).tolist()
    unknown = set(map(type, values)) - set(codes)
    if unknown:
        shown = ", ".join(sorted(kind.__name__ for kind in unknown))
        raise ValueError(f"column {name!r} holds objects of type {shown}; make the table with read_table")
    texts = list(map(str, values))
    lengths = np.fromiter(map(len, texts), dtype="<i8", count=len(texts))
    return [
        bytes(map(codes.__getitem__, map(type, values))),
        lengths.view(np.uint8).data,
        "".join(texts).encode("utf-8", "surrogatepass"),
    ]


# A cell as a file


class _DamagedError(Exception):
    """Why a file is not what was once written."""


def _seal(parquet: bytes) -> bytes:
    """With its checksum between data and footer: readers go by the footer's offsets and never look there."""
    start = len(parquet) - _footer_length(parquet)
    return parquet[:start] + hashlib.sha256(parquet).digest() + parquet[start:]


def _unsealed(data: bytes) -> bytes:
    """The file as it was before `_seal`. Checked before anything parses it: a parser of damaged bytes may crash."""
    if not data:
        raise _DamagedError("it is empty")
    end = len(data) - _footer_length(data)
    if end < SEAL:
        raise _DamagedError(f"its {len(data)} bytes are no Parquet file of this store")
    parquet = data[: end - SEAL] + data[end:]
    if hashlib.sha256(parquet).digest() != data[end - SEAL : end]:
        raise _DamagedError("its content does not match the checksum in it")
    return parquet


def _footer_length(data: bytes) -> int:
    """With the bytes that follow it."""
    return int.from_bytes(data[-FOOTER_END:-4], "little") + FOOTER_END


def _opened(data: bytes, name: str) -> tuple[Settings, Any]:
    """Settings, and the Parquet file whose tables are not decoded yet."""
    arrow = need("pyarrow", "data", "Reading results")
    parquet = need("pyarrow.parquet", "data", "Reading results")
    # From memory and without read-ahead: threads that read Python's files can abort the process when it ends
    # (pyarrow 26, about one exit in ten)
    file = parquet.ParquetFile(arrow.BufferReader(_unsealed(data)), pre_buffer=False)
    settings: Settings = json.loads((file.schema_arrow.metadata or {}).get(SETTINGS, b"{}"))
    if key(settings) != name:
        raise _DamagedError(f"its settings are those of {key(settings)}")
    return settings, file


def _parquet_of(cell: Cell) -> bytes:
    arrow = need("pyarrow", "data", "Storing results")
    parquet = need("pyarrow.parquet", "data", "Storing results")
    if not cell.tables:
        raise ValueError("the cell has no table; a result has at least one")
    columns = {name: _records(table, name, arrow) for name, table in cell.tables.items()}
    table = arrow.table(columns).replace_schema_metadata({SETTINGS: _canonical_json(cell.settings)})
    sink = arrow.BufferOutputStream()
    # Floats that do not repeat are a third larger with a dictionary; statistics of one row help nobody
    parquet.write_table(table, sink, compression="zstd", use_dictionary=False, write_statistics=False)
    return bytes(sink.getvalue())


def _records(table: Mapping[str, Column], name: str, arrow: Any) -> Any:
    """A table as one list of records."""
    columns = {column: np.asarray(values) for column, values in table.items()}
    lengths = {column: len(values) if values.ndim else None for column, values in columns.items()}
    if not columns or len(set(lengths.values())) > 1 or None in lengths.values():
        shown = ", ".join(f"{column} {values.shape}" for column, values in columns.items()) or "no columns"
        raise ValueError(f"table {name!r} has {shown}; a table has columns of one length")
    entries = [_arrow_of(values, f"{name}.{column}", arrow) for column, values in columns.items()]
    records = arrow.StructArray.from_arrays(entries, names=list(columns))
    return arrow.ListArray.from_arrays(arrow.array([0, len(records)], arrow.int32()), records)


def _arrow_of(values: Column, name: str, arrow: Any) -> Any:
    """An entry for each row: a value, or an array of fixed size."""
    kind, size = values.dtype.kind, values.dtype.itemsize
    flat = values.reshape(-1)
    if kind == "U" or (kind == "O" and all(isinstance(value, str) for value in flat)):
        entries = arrow.array(flat.tolist(), arrow.string())
    elif kind in "biu" or (kind == "f" and size in (4, 8)):
        entries = arrow.array(flat.astype(flat.dtype.newbyteorder("="), copy=False))  # Arrow knows no other order
    else:
        raise ValueError(
            f"column {name} holds {values.dtype}; the store keeps whole numbers, float32, float64, truth values, text"
        )
    for axis in reversed(range(1, values.ndim)):
        if values.shape[axis]:
            entries = arrow.FixedSizeListArray.from_arrays(entries, values.shape[axis])
        else:  # no constraints, say: Arrow has no fixed size 0
            ends = arrow.array([0] * (prod(values.shape[:axis]) + 1), arrow.int32())
            entries = arrow.ListArray.from_arrays(ends, entries)
    return entries


def _tables_of(file: Any) -> dict[str, dict[str, Column]]:
    content = file.read(use_threads=False)
    tables = {}
    for name in content.column_names:
        records = content.column(name).combine_chunks().flatten()
        fields = (field.name for field in records.type)
        tables[name] = dict(zip(fields, map(_numpy_of, records.flatten()), strict=True))
    return tables


def _numpy_of(entries: Any) -> Column:
    """(rows, ...), a copy that may be written to."""
    shape = [len(entries)]
    while hasattr(entries.type, "value_field"):  # lists
        shape.append(getattr(entries.type, "list_size", 0))
        entries = entries.flatten()
    flat = entries.to_numpy(zero_copy_only=False)
    array: Column = flat.astype(str) if flat.dtype.kind == "O" else np.array(flat)
    return array.reshape(shape)


# Files written whole or not at all


class _Parts:
    """Files that are first written beside their targets and then renamed, so that nobody sees half of one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.targets: dict[Path, Path] = {}  # of each part

    def write(self, target: Path, data: bytes) -> None:
        part = target.with_name(f".{target.name}.{uuid4().hex}{PART}")
        self.targets[part] = target
        with _sentences(self.folder), open(part, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # else the name may reach the disk before the content

    def rename(self) -> None:
        with _sentences(self.folder):
            for part, target in self.targets.items():
                os.replace(part, target)
            for folder in {target.parent for target in self.targets.values()}:
                _sync(folder)

    def remove(self) -> None:
        for part in self.targets:
            with suppress(OSError):  # renamed, or on a disk that takes no more changes
                part.unlink()


@contextmanager
def _parts(folder: Path) -> Iterator[_Parts]:
    parts = _Parts(folder)
    try:
        yield parts
    finally:
        parts.remove()


def _sync(folder: Path) -> None:
    """The new names, to the disk."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _sentences(folder: Path) -> Iterator[None]:
    """What went wrong with a write, in words."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            said = "no space is left; free some and start again, stored cells are not computed again"
        elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            said = f"it may not be written to ({error.strerror}); change that, or name another folder"
        else:
            said = f"{error.strerror or error}; name another folder, stored cells are not lost"
        raise OSError(f"results cannot be stored in {folder}: {said}") from error
