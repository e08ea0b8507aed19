"""Writing files whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_text(path: Path | str, text: str) -> None:
    """Write beside the target, then rename: a reader never sees half a file, a full disk leaves the old one."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file, such as {path / 'out'}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} for {path.name}; make it, or name another")
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
