"""Person files of the American Community Survey from the Census Bureau, checked before they are believed.

A file is downloaded to `csv_pok.zip.part`, and resumed from there after an interruption. Only what has been checked
(length, checksums, the person file within, its columns) is unpacked beside it, and takes its name, in one rename, last:
whatever happens on the way, the folder holds no half file under a name that `fairbound.data.acs` reads.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

from fairbound.data.acs_files import archive_name, home, raw_name, states_of, survey_year
from fairbound.data.pums import check_raw, person_file

CENSUS = "https://www2.census.gov/programs-surveys/acs/data/pums"
CHUNK = 1 << 18  # bytes between two calls of `progress`
LONGEST_PAUSE = 120.0  # seconds; also when a server asks for more
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})  # answers that may be another in a moment
TrainingState = Callable[[int, int | None], None]  # bytes that are here, bytes in all where the server said


class _PassingError(Exception):
    """A failure worth another attempt, after `pause` seconds where the server asked for a pause."""

    def __init__(self, said: str, pause: float | None = None) -> None:
        super().__init__(said)
        self.pause = pause


@dataclass(frozen=True)
class _Download:
    """One file: where it comes from and where it goes."""

    state: str
    year: int
    horizon: str
    base_url: str
    directory: Path  # <folder>/<year>/<horizon>

    @property
    def url(self) -> str:
        return f"{self.base_url.rstrip('/')}/{self.year}/{self.horizon}/{archive_name(self.state)}"

    @property
    def member(self) -> str:
        return raw_name(self.state, self.year)

    @property
    def target(self) -> Path:
        return self.directory / self.member

    @property
    def archive(self) -> Path:  # not written by us, but it may have been placed by hand
        return self.directory / archive_name(self.state)

    @property
    def part(self) -> Path:
        return self.directory / (archive_name(self.state) + ".part")

    @property
    def by_hand(self) -> str:
        return (
            f"to place it by hand, open {self.url} in a browser and put {self.archive.name}, "
            f"or the {self.member} in it, into {self.directory}"
        )


def fetch(
    states: Sequence[str],
    year: int = 2018,
    horizon: str = "1-Year",
    folder: str | Path | None = None,
    base_url: str = CENSUS,
    progress: TrainingState | None = None,
    retries: int = 4,
    timeout: float = 60.0,
    pause: Callable[[float], None] = time.sleep,
    say: Callable[[str], None] | None = None,
) -> tuple[Path, ...]:
    """The person file of each state, downloaded to `<folder>/<year>/<horizon>/` unless a sound one is there.

    folder: $FAIRBOUND_DATA or the user's cache unless given. progress: called with (bytes here, bytes in all or None).
    say: called with a line when the download of a state begins, and when it has to wait. A failure that may pass is
    tried again `retries` times, after 1, 2, 4, ... seconds, or what the server asks for. A state that cannot be had
    does not keep the others from coming; all that failed are named in the end.
    """
    year, states = survey_year(year, horizon), states_of(states)
    if not re.fullmatch(r"https?://\S+", base_url):
        raise ValueError(f"an address begins with https:// or http://, got {base_url!r}; the usual one is {CENSUS}")
    if retries < 0:
        raise ValueError(f"retries must be 0 or more, got {retries}")
    directory = (home() if folder is None else Path(folder).expanduser()) / str(year) / horizon
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"{directory} cannot be made ({error.strerror}); name another folder to fetch into") from error
    downloads = [_Download(state, year, horizon, base_url, directory) for state in states]
    return _all_of(downloads, lambda download: _fetched(download, progress, retries, timeout, pause, say or _silent))


def _all_of(downloads: Sequence[_Download], fetched: Callable[[_Download], Path]) -> tuple[Path, ...]:
    """Every file, or one sentence about all that failed. Other errors, such as a full disk, end it at once."""
    paths: list[Path] = []
    failures: dict[str, Exception] = {}
    for download in downloads:
        try:
            paths.append(fetched(download))
        except (ConnectionError, ValueError) as error:
            failures[download.state] = error
    if len(downloads) > 1 and failures:
        said = "\n".join(f"{state}: {error}" for state, error in failures.items())
        raise ConnectionError(f"{len(failures)} of {len(downloads)} states could not be fetched\n{said}")
    for failure in failures.values():
        raise failure
    return tuple(paths)


def _silent(line: str) -> None:
    pass


def _fetched(
    download: _Download,
    progress: TrainingState | None,
    retries: int,
    timeout: float,
    pause: Callable[[float], None],
    say: Callable[[str], None],
) -> Path:
    for present in (download.target, download.archive):
        if present.is_file() and _is_sound(download, present):
            return present
    say(f"{download.state}: {download.url}")
    attempt = 0
    while True:
        try:
            _receive(download, progress, timeout)
            return _installed(download)
        except _PassingError as failure:
            if attempt == retries:
                raise ConnectionError(
                    f"{download.url} could not be fetched in {retries + 1} attempts: {failure}; {download.by_hand}"
                ) from failure
            seconds = min(2.0**attempt if failure.pause is None else failure.pause, LONGEST_PAUSE)
            say(f"{download.state}: {failure}; retrying in {seconds:.0f} s")
            pause(seconds)
            attempt += 1


def _is_sound(download: _Download, path: Path) -> bool:
    try:
        check_raw(path, download.state, download.year, download.horizon)
    except (ValueError, FileNotFoundError):
        return False
    return True


# ------------------------------------------------------------------------------------------------------- receiving


def _receive(download: _Download, progress: TrainingState | None, timeout: float) -> None:
    """The rest of the file, appended to the part that is here."""
    have = download.part.stat().st_size if download.part.exists() else 0
    headers = {"User-Agent": "fairbound", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(download.url, headers=headers)
    try:
        answer = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        with error:
            return _judge(error, download, have)
    except (OSError, http.client.HTTPException) as error:  # no network, a reset, a timeout
        raise _PassingError(_said(error)) from error
    with answer:
        _save(answer, download.part, have, progress)


def _save(answer: http.client.HTTPResponse, part: Path, have: int, progress: TrainingState | None) -> None:
    """Write what comes; a server that ignores or misreads the range sends all of it again."""
    told = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
    if answer.status == 206 and not (told and int(told[1]) == have):
        part.unlink(missing_ok=True)  # a server may send a part that nobody asked for
        raise _PassingError("the server resumed at another byte than asked for")
    length = answer.headers.get("Content-Length")
    done = have if answer.status == 206 else 0
    total = done + int(length) if length and length.isdigit() else None  # nonsense is no length: the zip has checksums
    with _writing(part), part.open("ab" if done else "wb") as out:
        while chunk := _next(answer):
            out.write(chunk)
            done += len(chunk)
            if progress:
                progress(done, total)
    if total is not None and done < total:
        raise _PassingError(f"the connection broke off after {done:,} of {total:,} bytes")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A full or failing disk as a sentence; what has come so far stays for the next time."""
    try:
        yield
    except OSError as error:
        said = f"{path} cannot be written ({error.strerror or error})"
        raise OSError(f"{said}; make room, or name another folder, and fetch again") from error


def _next(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.read(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _PassingError(_said(error)) from error


def _said(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error) or type(error).__name__


def _judge(error: urllib.error.HTTPError, download: _Download, have: int) -> None:
    """An answer other than success: what we have is all of it, or try again, or give up."""
    if error.code == 416:  # nothing after the bytes that we have
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return
        download.part.unlink()
        raise _PassingError("the part that was here does not fit the file any more") from error
    if error.code in PASSING:
        raise _PassingError(f"status {error.code} ({error.reason})", _asked_pause(error)) from error
    raise ConnectionError(
        f"{download.url} answered {error.code} ({error.reason}): {_words(error.read(2000))}; {download.by_hand}"
    ) from error


def _asked_pause(error: urllib.error.HTTPError) -> float | None:
    """Retry-After, in seconds or as a date."""
    asked = error.headers.get("Retry-After", "")
    if asked.isdigit():
        return float(asked)
    try:
        return max(0.0, parsedate_to_datetime(asked).timestamp() - time.time())
    except ValueError:
        return None


# ----------------------------------------------------------------------------------------- checking and installing


def _installed(download: _Download) -> Path:
    """The person file of the zip that arrived, checked and in its place. A part that is wrong goes; one that could not
    be unpacked, for want of room, stays for the next time."""
    fresh = download.directory / f".{os.getpid()}.{download.member}"
    try:
        _refuse_no_zip(download)
        _unpack(download, fresh)
        check_raw(fresh, download.state, download.year, download.horizon)
        os.replace(fresh, download.target)
    except _PassingError:
        download.part.unlink()
        raise
    except ValueError as error:
        download.part.unlink()
        said = str(error).replace(str(fresh), f"{download.member} in {download.url}")
        raise ValueError(f"{said}; {download.by_hand}") from error
    finally:
        fresh.unlink(missing_ok=True)
    download.part.unlink()
    return download.target


def _refuse_no_zip(download: _Download) -> None:
    """The Census Bureau's site is known to answer with a page, status and all as if it were the file."""
    with download.part.open("rb") as start:
        began = start.read(2000)
    if not began.startswith(b"PK\x03\x04"):
        raise ValueError(f"{download.url} sent no zip file but {_words(began)}")


def _unpack(download: _Download, fresh: Path) -> None:
    try:
        with zipfile.ZipFile(download.part) as archive:
            damaged = archive.testzip()  # reads every byte and compares checksums
            if damaged:
                raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")
            member = person_file(archive, download.state)
            if member is None:
                inside = ", ".join(archive.namelist()[:5])
                raise ValueError(f"{download.url} has no {download.member} in it, only {inside}")
            with archive.open(member) as source, _writing(fresh), fresh.open("wb") as out:
                shutil.copyfileobj(source, out, CHUNK)
    except RuntimeError as error:  # a password, or a compression that Python does not know
        raise ValueError(f"the zip file of {download.url} cannot be unpacked ({error})") from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise _PassingError(f"the zip file that arrived is damaged ({error})") from error


def _words(page: bytes) -> str:
    """The first words of what arrived, without markup."""
    text = re.sub(r"(?s)<(script|style).*?</\1>|<[^>]*>", " ", page.decode("utf-8", errors="replace"))
    words = " ".join(text.split())[:120]
    return f"a page that begins {words!r}" if words else "nothing readable"
