"""The store of benchmark results: each is computed once and kept under a name made from what was
asked.

`key(settings)` is a result's name: the problem, the entry and its settings, seed, split, length,
and the data's checksum. The code that computed it stands in the file: whatever is refactored, the
store still serves what it has, and says by which code it was computed. A result of other code
replaces one of the same name.

    store.json             number of the format
    system-<name>.json     a machine and the software that computed here
    studies/<name>.json
            a study that was run: its entries, the cards of its problems, the keys of its runs
    runs/<key>.parquet     one row: each table is a column that holds a list of records
    runs/<key>.damaged
            a file that did not match its checksums, moved aside when the run was computed again
    work/                  what failed (`work_log`)
    checkpoints/           of long batches of runs that are being computed
    .<name>.<random>.part
            being written, or says that a command computes here; or left by a killed process

Nothing else writes results. A result is a separate Parquet file that any reader opens; tables,
figures and pages read the store.
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
from pathlib import Path
from typing import Any
from uuid import uuid4

from fairbound.benchmark._fingerprint import key
from fairbound.benchmark._result_file import (
    DamagedError,
    Settings,
    StoredColumn,
    StoredResult,
    files_of,
    opened,
)

FORMAT = 1  # of the folder; a higher number is of a later fairbound
# a part this old was left by a killed process: writing one takes seconds
STALE_AFTER_S = 24 * 3600.0
PART = ".part"
KEY = re.compile("[0-9a-f]{64}")


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
            raise NotADirectoryError(f"{self.folder} is a file; name a folder")
        self._refuse_other_format()

    def has(self, key: str) -> bool:
        """Whether the result is here, and sound."""
        return self.get(key) is not None

    def get(self, key: str) -> StoredResult | None:
        """The result, or None where it is missing or damaged."""
        path = self._path(key)
        try:
            return opened(path.read_bytes(), key)
        except FileNotFoundError:
            return None
        except DamagedError as damage:
            self._name_once(path, damage)
            return None
        except OSError as error:
            raise OSError(
                f"{path} cannot be read ({error.strerror}); check the disk and who may read it"
            ) from error

    def keys(self) -> list[str]:
        """Keys of all sound results, sorted."""
        return [name for name in self._names() if self.has(name)]

    def missing(self, keys: Iterable[str], code: str | None = None) -> list[str]:
        """Keys that are still to be computed, each once, in the order given; with `code` also those
        of other code."""
        return [name for name in dict.fromkeys(keys) if self.is_missing(name, code)]

    def is_missing(self, key: str, code: str | None = None) -> bool:
        found = self.get(key)
        return found is None or (code is not None and found.made.get("code") != code)

    def results(self, where: Callable[[Settings], bool] | None = None) -> Iterator[StoredResult]:
        """All sound results whose settings satisfy `where`, in the order of their keys; one at a
        time is in memory."""
        for name in self._names():
            found = self.get(name)
            if found is not None and (where is None or where(dict(found.settings))):
                yield found

    def put(
        self, settings: Mapping[str, Any], tables: Mapping[str, Mapping[str, StoredColumn]]
    ) -> str:
        """Store one result, unless a sound one of the same code has its key; the key."""
        return self.put_many([StoredResult(settings, tables)])[0]

    def put_many(self, results: Iterable[StoredResult]) -> list[str]:
        """Store a batch of results, each in a separate file; their keys. None appears before all
        are on the disk."""
        return self.put_files(files_of(results))

    def put_files(self, files: Mapping[str, bytes]) -> list[str]:
        """The same for results that another process has written, by key.

        What is there stays unless it was computed by other code: another process may have been
        quicker.
        """
        self._prepare()
        new = [
            name
            for name, data in files.items()
            if self.is_missing(name, opened(data, name).made.get("code"))
        ]
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
        """Number of all results, sound or not."""
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

    @contextmanager
    def in_use(self) -> Iterator[Path]:
        """A file that is there while a command computes: a worker that sees it shares the
        folder."""
        self._prepare()
        marker = self.folder / f".command.{uuid4().hex}{PART}"
        with _sentences(self.folder):
            marker.touch()
        try:
            yield marker
        finally:
            with suppress(OSError):
                marker.unlink(missing_ok=True)

    def note_system(self, description: Mapping[str, Any]) -> None:
        """Keep what `environment.describe` says, once for each system; its date is that of the
        first time."""
        self._prepare()
        dateless = {name: value for name, value in description.items() if name != "date"}
        name = f"system-{key(dateless)[:12]}.json"
        if _json_in(self.folder / name) is None:
            self._write_json(name, description)

    def systems(self) -> list[Settings]:
        """The systems that computed here, the earliest first."""
        found = [_json_in(path) for path in self.folder.glob("system-*.json")]
        return sorted(
            (one for one in found if one is not None),
            key=lambda one: (str(one.get("date")), key(one)),
        )

    def note_study(self, name: str, content: Mapping[str, Any]) -> None:
        """Keep a study as it was asked (`stored_study`), in the place of an earlier one of that
        name."""
        self._prepare()
        with _sentences(self.folder):
            (self.folder / "studies").mkdir(exist_ok=True)
        if _json_in(self.folder / "studies" / f"{name}.json") != content:
            self._write_json(f"studies/{name}.json", content)

    def studies(self, pattern: str = "*") -> dict[str, Settings]:
        """The studies that were run here and whose names match, by name."""
        found = {
            path.stem: _json_in(path)
            for path in sorted((self.folder / "studies").glob(f"{pattern}.json"))
        }
        return {name: content for name, content in found.items() if content is not None}

    def _names(self) -> list[str]:
        return sorted(
            path.stem for path in self._runs.glob("*.parquet") if KEY.fullmatch(path.stem)
        )

    def _path(self, key: str) -> Path:
        if not KEY.fullmatch(key):
            raise ValueError(
                "the key of a result has 64 hexadecimal digits, as key(settings) gives; got"
                f" {key!r}"
            )
        return self._runs / f"{key}.parquet"

    def _name_once(self, path: Path, damage: DamagedError) -> None:
        if path.stem not in self._named:
            self._named.add(path.stem)
            warnings.warn(
                f"{path} is damaged: {damage}; it counts as missing and is to be recomputed",
                stacklevel=4,
            )

    def _set_damaged_aside(self, key: str) -> None:
        path = self._path(key)
        if path.exists() and not self.has(key):
            # another process was quicker
            with _sentences(self.folder), suppress(FileNotFoundError):
                os.replace(path, path.with_suffix(".damaged"))
            self._named.discard(key)  # what comes in its place may be damaged again

    def _prepare(self) -> None:
        """Prepare the first write: make the folder, say its format, and remove what killed
        processes left."""
        if self._prepared:
            return
        with _sentences(self.folder):
            self._runs.mkdir(parents=True, exist_ok=True)
        for part in (*self.folder.glob(f".*{PART}"), *self._runs.glob(f".*{PART}")):
            with suppress(OSError):  # another process finished or removed it
                if time.time() - part.stat().st_mtime > STALE_AFTER_S:
                    part.unlink()
        if not (self.folder / "store.json").exists():
            self._write_json(
                "store.json", {"format": FORMAT, "holds": "results of fairbound's benchmark"}
            )
        self._prepared = True

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        with _parts(self.folder) as parts:
            parts.write(self.folder / name, (json.dumps(content, indent=1) + "\n").encode())
            parts.rename()

    def _refuse_other_format(self) -> None:
        path = self.folder / "store.json"
        if not path.exists():
            return
        version = (_json_in(path) or {}).get("format")
        if not isinstance(version, int) or version < 1:
            raise ValueError(
                f"{path} does not say which format the results have; remove that file if fairbound"
                " wrote the folder (each result is checked when it is read), or name another"
                " folder"
            )
        if version > FORMAT:
            raise ValueError(
                f"{self.folder} holds results of format {version}, and this fairbound reads formats"
                f" up to {FORMAT}; update fairbound (pip install -U fairbound), or name another"
                " folder"
            )


def _json_in(path: Path) -> Settings | None:
    """The mapping in a small file of ours, or None where it is missing or no longer one."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        raise OSError(
            f"{path} cannot be read ({error.strerror}); check the disk and who may read it"
        ) from error
    return found if isinstance(found, dict) else None


# Files written whole or not at all


class _Parts:
    """Files that are first written beside their targets and then renamed, so that no reader sees a
    partial file."""

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
            message = (
                "no space is left; free some and start again, stored runs are not computed again"
            )
        elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            message = (
                f"it may not be written to ({error.strerror}); change that, or name another folder"
            )
        else:
            message = f"{error.strerror or error}; name another folder, stored runs are not lost"
        raise UnwritableError(f"results cannot be stored in {folder}: {message}") from error
