"""The store of benchmark results: each is computed once and kept under a name made from what decides it.

A result is that of one run of an experiment. Its settings are all that decides it: the experiment, the algorithm and
its hyper-parameters, seed, split, the checksum of the data and the hash of the code. `key(settings)` is its name: a
benchmark that was killed finds what it has computed, and whatever changes gets another name.

    store.json             number of the format
    system-<name>.json     a machine and the software that computed here
    times-<name>.json      seconds per step of each row of an experiment, with their system and a checksum
    runs/<key>.parquet     one row: each table is a column that holds a list of records
    runs/<key>.damaged     a file that did not match its checksum, moved aside when the run was computed again
    work/                  what is being computed and what failed (`work_log`)
    checkpoints/           of long batches of runs that are being computed
    .<name>.<random>.part  being written, or left by a killed process

Nothing else writes results. A result is a separate Parquet file that any reader opens; tables, figures and the
report read the store.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from fairbound.benchmark.fingerprint import key
from fairbound.benchmark.result_file import (
    Column,
    DamagedError,
    Settings,
    StoredResult,
    made_in,
    opened,
    sealed_files,
    tables_of,
)

FORMAT = 1  # of the folder; a higher number is of a later fairbound
STALE_AFTER_S = 24 * 3600.0  # a part this old was left by a killed process: writing one takes seconds
PART = ".part"
KEY = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One row's step: drawing its mini-batches and updating; nothing is evaluated.

    >>> Timing(wall=0.004, cpu=0.003, spread=0.0001, plain=0.001, steps=500).steps_in(60)
    15000
    """

    wall: float  # seconds a step, the median over rounds
    cpu: float  # the same in seconds of the processor, which other programs disturb less
    spread: float  # interquartile range of `cpu` over rounds, in seconds
    plain: float  # cpu seconds of a plain SGD step that passes as many examples through the model
    steps: int  # that were timed

    def steps_in(self, seconds: float) -> int:
        """How many steps this machine makes in that many seconds."""
        return int(seconds / self.wall)

    @property
    def times_plain(self) -> float:
        """What the step costs beside a plain SGD step on as many examples."""
        return self.cpu / self.plain


class UnwritableError(OSError):
    """Why results cannot be stored; whoever computes further ones would lose them."""


class Store:
    """A folder of results. It is made when the first one is put; until then it need not exist.

    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Store(folder)
    ...     name = store.put({"seed": 0}, {"records": {"f": np.array([0.7, 0.4])}})
    ...     store.has(name), store.get(name).tables["records"]["f"]
    (True, array([0.7, 0.4]))
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._runs = self.folder / "runs"
        self._prepared = False
        self._named: set[str] = set()  # damaged results that a warning has named
        if self.folder.exists() and not self.folder.is_dir():
            raise NotADirectoryError(f"{self.folder} is a file; results are kept in a folder, name another")
        self._refuse_other_format()

    def has(self, key: str) -> bool:
        """Whether the result is here, and sound."""
        return self._open(key) is not None

    def get(self, key: str) -> StoredResult | None:
        """The result, or None where it is missing or damaged."""
        found = self._open(key)
        return None if found is None else _result(*found)

    def keys(self) -> list[str]:
        """Of all sound results, sorted."""
        return [name for name in self._names() if self.has(name)]

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Those that are still to be computed, each once, in the order given."""
        return [name for name in dict.fromkeys(keys) if not self.has(name)]

    def results(self, where: Callable[[Settings], bool] | None = None) -> Iterator[StoredResult]:
        """All sound results whose settings satisfy `where`, in the order of their keys; one at a time is in memory."""
        for name in self._names():
            found = self._open(name)
            if found is not None and (where is None or where(found[0])):
                yield _result(*found)

    def put(self, settings: Mapping[str, Any], tables: Mapping[str, Mapping[str, Column]]) -> str:
        """Store one result, unless a sound one has its key; the key."""
        return self.put_many([StoredResult(settings, tables)])[0]

    def put_many(self, results: Iterable[StoredResult]) -> list[str]:
        """Store a batch of results, each in a separate file; their keys. None appears before all are on the disk."""
        return self.put_files(sealed_files(results))

    def put_files(self, files: Mapping[str, bytes]) -> list[str]:
        """The same for results that another process has sealed, by key.

        What is there stays: a name decides its content, and another process may have been quicker.
        """
        self._prepare()
        new = self.missing(files)
        with _parts(self.folder) as parts:
            for name in new:
                parts.write(self._path(name), files[name])
            for name in new:
                self._set_damaged_aside(name)
            parts.rename()
        return list(files)

    def file(self, key: str) -> bytes | None:
        """A sound result as it is on the disk, or None where it is missing or damaged."""
        return self._path(key).read_bytes() if self.has(key) else None

    def count(self) -> int:
        """Of all results, sound or not."""
        return len(self._names())

    def is_named(self, key: str) -> bool:
        """Whether there is a file for the result, sound or not: quick, for counting."""
        return self._path(key).exists()

    def checkpoint(self, key: str) -> Path:
        """The file for the checkpoint of a batch of that name."""
        folder = self.folder / "checkpoints"
        with _sentences(self.folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{key}.pt"

    def note_system(self, description: Mapping[str, Any]) -> None:
        """Keep what `environment.describe` says, once for each system; its date is that of the first time."""
        self._prepare()
        name = f"system-{key(_dateless(description))[:12]}.json"
        if _json_in(self.folder / name) is None:
            self._write_json(name, description)

    def systems(self) -> list[Settings]:
        """The systems that computed here, the earliest first."""
        found = [_json_in(path) for path in self.folder.glob("system-*.json")]
        return sorted((one for one in found if one is not None), key=lambda one: (str(one.get("date")), key(one)))

    def note_times(self, experiment: str, system: Mapping[str, Any], times: Mapping[str, Timing]) -> None:
        """Keep the seconds that a step of each row takes, in the place of earlier ones; `system` is what took them."""
        self._prepare()
        content = {"system": dict(system), "rows": {row: asdict(timing) for row, timing in times.items()}}
        self._write_json(f"times-{experiment}.json", content | {"checksum": key(content)})

    def times(self, experiment: str) -> dict[str, Timing] | None:
        """The seconds by row, or None where none are kept or their file is damaged."""
        found = self._noted_times(experiment)
        return None if found is None else found[1]

    def timed_on(self, experiment: str) -> Settings | None:
        """The system that took them, as `environment.describe` says it."""
        found = self._noted_times(experiment)
        return None if found is None else found[0]

    def _noted_times(self, experiment: str) -> tuple[Settings, dict[str, Timing]] | None:
        path = self.folder / f"times-{experiment}.json"
        if not path.exists():
            return None
        try:
            return _times_in(_json_in(path))
        except DamagedError as damage:
            warnings.warn(
                f"{path} is damaged: {damage}; it counts as missing, measure again with `fairbound time`", stacklevel=3
            )
            return None

    def _names(self) -> list[str]:
        return sorted(path.stem for path in self._runs.glob("*.parquet") if KEY.fullmatch(path.stem))

    def _path(self, key: str) -> Path:
        if not KEY.fullmatch(key):
            raise ValueError(f"the key of a result has 64 hexadecimal digits, as key(settings) gives; got {key!r}")
        return self._runs / f"{key}.parquet"

    def _open(self, key: str) -> tuple[Settings, Any] | None:
        """Settings and the Parquet file of a sound result: the bytes that were checked, not read a second time."""
        path = self._path(key)
        try:
            return opened(path.read_bytes(), key)
        except FileNotFoundError:
            return None
        except DamagedError as damage:
            self._name_once(path, damage)
            return None
        except OSError as error:
            raise OSError(f"{path} cannot be read ({error.strerror}); check the disk and who may read it") from error

    def _name_once(self, path: Path, damage: DamagedError) -> None:
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
            self._runs.mkdir(parents=True, exist_ok=True)
        for part in (*self.folder.glob(f".*{PART}"), *self._runs.glob(f".*{PART}")):
            with suppress(OSError):  # another process finished or removed it
                if time.time() - part.stat().st_mtime > STALE_AFTER_S:
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
        version = (_json_in(path) or {}).get("format")
        if not isinstance(version, int) or version < 1:
            raise ValueError(
                f"{path} does not say which format the results have; remove that file if fairbound wrote the folder "
                "(each result is checked when it is read), or name another folder"
            )
        if version > FORMAT:
            raise ValueError(
                f"{self.folder} holds results of format {version}, and this fairbound reads formats up to {FORMAT}; "
                "update fairbound (pip install -U fairbound), or name another folder"
            )


def _result(settings: Settings, file: Any) -> StoredResult:
    return StoredResult(settings, tables_of(file), made_in(file))


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


def _times_in(found: Settings | None) -> tuple[Settings, dict[str, Timing]]:
    if found is None:
        raise DamagedError("it holds no JSON of this store")
    checksum = found.pop("checksum", None)
    try:
        if checksum != key(found):
            raise DamagedError("its content does not match the checksum in it")
        return found["system"], {row: Timing(**entry) for row, entry in found["rows"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # not finite, or of another version
        raise DamagedError(f"its content is not what this fairbound writes ({error})") from error


# Files written whole or not at all


class _Parts:
    """Files that are first written beside their targets and then renamed, so that no reader sees a partial file."""

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
    """A readable message for a failed write."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = "no space is left; free some and start again, stored runs are not computed again"
        elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            message = f"it may not be written to ({error.strerror}); change that, or name another folder"
        else:
            message = f"{error.strerror or error}; name another folder, stored runs are not lost"
        raise UnwritableError(f"results cannot be stored in {folder}: {message}") from error
