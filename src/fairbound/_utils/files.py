"""Writing files whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path


def check_place(path: Path | str | None, inputs: Iterable[Path | str | None] = ()) -> None:
    """Refuse a file that cannot be written, or that is one of the inputs by any path or link,
    before a long computation; "-" and None are fine."""
    if path is None or str(path) == "-":
        return
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file, such as {path / 'out'}")
    for source in inputs:
        if source is not None and is_same_file(path, source):
            raise ValueError(
                f"the output {path} is the input {source}, which would be lost; name another file"
            )
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"there is no folder {path.parent} for {path.name}; make it, or name another"
        )
    try:  # where a file will be written beside this one, or into it
        if path.exists() and not path.is_file():
            with path.open("a"):
                pass
        else:
            tempfile.TemporaryFile(dir=path.resolve().parent).close()
    except OSError as error:
        raise _unwritable(path, error) from error


def check_folder(folder: Path, inputs: Iterable[Path | str]) -> None:
    """Refuse a folder of outputs that is a file, or in which an input lies: what is written there
    may replace it."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; name a folder")
    for source in map(Path, inputs):
        if source.is_file() and source.resolve().is_relative_to(folder.resolve()):
            raise ValueError(
                f"the input {source} lies in the output folder {folder}; name another folder"
            )


def is_same_file(a: Path | str, b: Path | str) -> bool:
    """Whether two paths lead to one file, through links or not; a file that is not there yet is
    known by its path."""
    try:
        return os.path.samefile(a, b)
    except OSError:  # one of them does not exist
        return Path(a).resolve() == Path(b).resolve()


def write_text(path: Path | str, text: str) -> None:
    """Write next to it, then rename: a reader never sees a partial file, a full disk keeps the old
    one. Through a link, its target is replaced; what is no regular file (a pipe, /dev/stdout) is
    written to."""
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        try:
            path.write_text(text, encoding="utf-8", errors="replace")
        except OSError as error:  # /dev/full, a pipe that nobody reads
            raise _unwritable(path, error) from error
        return
    path = path.resolve() if path.is_symlink() else path
    check_place(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        # file names may hold no text
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> OSError:
    return OSError(f"{path} cannot be written ({error.strerror}); name another file")
