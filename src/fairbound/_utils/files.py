"""Writing files whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def check_place(path: Path | str | None) -> None:
    """Refuse a file that cannot be written, before a long computation; "-" and None are fine."""
    if path is None or str(path) == "-":
        return
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file, such as {path / 'out'}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} for {path.name}; make it, or name another")


def write_text(path: Path | str, text: str) -> None:
    """Write next to it, then rename: a reader never sees a partial file, a full disk keeps the old one. Through a
    link, its target is replaced; what is no regular file (a pipe, /dev/stdout) is written to."""
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_text(text, encoding="utf-8", errors="replace")
        return
    path = path.resolve() if path.is_symlink() else path
    check_place(path)
    try:
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise OSError(f"{path} cannot be written ({error.strerror}); name another file") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:  # file names may hold no text
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(beside, 0o666 & ~umask)
        os.replace(beside, path)
    except OSError as error:
        Path(beside).unlink(missing_ok=True)
        raise OSError(f"{path} cannot be written ({error.strerror}); name another file") from error
