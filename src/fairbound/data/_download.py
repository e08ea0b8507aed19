"""Person files of the American Community Survey from the Census Bureau, through pooch, checked
before they are used.

Pooch downloads the zip to a temporary name and tries again after failures. Only what has been
checked (the checksums of the zip, the person file within, its columns and its survey) takes its
name, in one rename, last: whatever happens on the way, the folder holds no half file under a name
that `fairbound.data._acs` reads.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairbound._utils.optional import need
from fairbound.data._acs import check_raw, person_file
from fairbound.data._acs_files import (
    archive_name,
    download_folder,
    raw_name,
    states_of,
    survey_year,
)

CENSUS = "https://www2.census.gov/programs-surveys/acs/data/pums"
TIMEOUT = 60.0  # seconds to wait for an answer
TRANSIENT_STATUS = frozenset({408, 425, 429})  # of the answers 4xx: another attempt may succeed

Survey = tuple[str, int, str]  # state, year, horizon


def fetch(
    states: Sequence[str],
    year: int = 2018,
    horizon: str = "1-Year",
    folder: str | Path | None = None,
    base_url: str = CENSUS,
    progress: Any = False,
    retries: int = 4,
    report: Callable[[str], None] = lambda line: None,
) -> tuple[Path, ...]:
    """Download the person file of each state to `<folder>/<year>/<horizon>/`, unless a valid one
    is there.

    A state that fails does not keep the others from coming; all that failed are named in the end.

    Args:
        states: postal abbreviations, such as "OK".
        year: of the survey.
        horizon: "1-Year" or "5-Year".
        folder: $FAIRBOUND_DATA or the user's cache if not given.
        base_url: where the Census Bureau, or a mirror, has the files.
        progress: a progress bar in pooch's (tqdm's) form, or True for one of tqdm.
        retries: how often a failure that may be temporary is tried again, after 1, 2, 3, ... s.
        report: called with a line when the download of a state begins, and when an attempt fails.
    """
    year, states = survey_year(year, horizon), states_of(states)
    if not re.fullmatch(r"https?://\S+", base_url):
        raise ValueError(
            f"an address begins with https:// or http://, got {base_url!r}; the usual one is"
            f" {CENSUS}"
        )
    place = download_folder() if folder is None else Path(folder).expanduser()
    directory = place / str(year) / horizon
    pooch = need("pooch", "data", "Fetching census files")
    pooch.get_logger().setLevel("WARNING")  # `report` says the same, with the state
    http = pooch.HTTPDownloader(progressbar=progress, timeout=TIMEOUT)
    url = f"{base_url.rstrip('/')}/{year}/{horizon}/"
    paths: list[Path] = []
    failures: list[str] = []
    for state in states:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            paths.append(_fetched(http, url, directory, (state, year, horizon), retries, report))
        except ConnectionError as error:
            failures.append(f"{state}: {error}")
        except OSError as error:  # a full disk, say: no state will fare better
            message = f"{directory} cannot be written ({error.strerror or error})"
            raise OSError(
                f"{message}; free some space, or name another folder, and fetch again"
            ) from error
    if failures:
        raise ConnectionError("\n".join(failures))
    return tuple(paths)


def _fetched(
    http: Any,
    url: str,
    directory: Path,
    survey: Survey,
    retries: int,
    report: Callable[[str], None],
) -> Path:
    """The person file, which is there or is downloaded; `http` is pooch's downloader."""
    state, member, archive = survey[0], raw_name(*survey[:2]), archive_name(survey[0])
    # the zip may have been placed manually
    for present in (directory / member, directory / archive):
        with suppress(ValueError, FileNotFoundError):
            check_raw(present, *survey)
            return present

    def download(address: str, output: str, pooch: Any) -> None:
        """What pooch calls: the bytes, and the person file unpacked beside them and checked."""
        try:
            http(address, output, pooch)
            _unpack(Path(output), Path(output).with_name(member), survey)
        except Exception as error:
            response: Any = getattr(error, "response", None)  # of an answer 4xx or 5xx
            status = 500 if response is None else response.status_code
            if status < 500 and status not in TRANSIENT_STATUS:
                raise ConnectionError(  # which pooch does not try again
                    f"answered {status} ({response.reason}): {_start(response.content)}"
                ) from error
            report(f"{state}: {_reason(error)}")
            raise

    report(f"{state}: {url}{archive}")
    no_answer = need("requests", "data", "Fetching census files").RequestException
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        files = need("pooch", "data", "").create(
            temporary, url, registry={archive: None}, retry_if_failed=retries
        )
        try:
            files.fetch(archive, downloader=download)
        except (ConnectionError, ValueError, no_answer) as error:
            final = isinstance(error, ConnectionError)
            failed = "" if final else f"could not be fetched in {retries + 1} attempts: "
            raise ConnectionError(
                f"{url}{archive} {failed}{_reason(error)}; to place it manually, open the address"
                f" in a browser and put {archive}, or the {member} in it, into {directory}"
            ) from error
        os.replace(Path(temporary) / member, directory / member)
    return directory / member


def _unpack(archive: Path, target: Path, survey: Survey) -> None:
    """The person file of the zip, or a ValueError, after which pooch tries again: the Census
    Bureau's site is known to answer with a page, status and all as if it were the file."""
    try:
        with zipfile.ZipFile(archive) as zipped:
            inside = person_file(zipped, survey[0])
            with zipped.open(inside) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out)  # compares the checksum
        check_raw(target, *survey)
    # a damaged zip; a password or an unsupported compression; and what `check_raw` refuses
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        RuntimeError,
        ValueError,
        FileNotFoundError,
    ) as error:
        with archive.open("rb") as arrived:
            start = arrived.read(2000)
        if not start.startswith(b"PK"):
            raise ValueError(f"sent no zip file but {_start(start)}") from error
        said = str(error).replace(str(target), target.name).replace(str(archive), "the zip file")
        raise ValueError(f"what arrived cannot be used ({said})") from error


def _reason(error: Exception) -> str:
    """Why there is no connection, without the chain of wrappers that requests puts around it."""
    inner = getattr(error.args[0], "reason", None) if error.args else None
    return str(error) if inner is None else str(inner).rpartition(": ")[2]


def _start(page: bytes) -> str:
    """The start of the response, without markup."""
    text = re.sub(
        r"(?s)<(script|style).*?</\1>|<[^>]*>", " ", page.decode("utf-8", errors="replace")
    )
    words = " ".join(text.split())[:120]
    return f"a page that begins {words!r}" if words else "nothing readable"
