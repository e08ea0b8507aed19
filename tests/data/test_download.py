"""Fetching, against a local server that misbehaves as real ones do. No test sleeps: pooch's pauses
are recorded."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fairbound.data import _acs as acs
from fairbound.data._download import fetch

PATH = "/2018/1-Year/csv_pok.zip"
HEADER = "SERIALNO,ST,AGEP,COW,SCHL,MAR,OCCP,POBP,RELP,WKHP,SEX,RAC1P,PINCP,PWGTP,NOTE\n"
ROWS = "".join(
    f"2018HU{i:07},40,{20 + i % 60},1,21,1,10,40,0,40,{1 + i % 2},1,{90 * i},10,{i * i}\n"
    for i in range(2000)
)
CSV = HEADER + ROWS
PAGE = (
    b"<!DOCTYPE html><html><head><title>Access Denied</title></head><body>You don't have"
    b" permission.</body></html>"
)


def archive(text: str = CSV, name: str = "psam_p40.csv") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("ACS2018_PUMS_README.pdf", b"%PDF-1.6")
        packed.writestr(name, text)
    return out.getvalue()


GOOD = archive()


@dataclass
class Answer:
    """One reply of the server."""

    body: bytes = GOOD
    status: int = 200
    stop_after: int | None = None  # bytes sent before the connection breaks off


@dataclass
class Server:
    """Replies in the order of `answers`, the last one for ever; remembers what was asked for."""

    url: str
    answers: list[Answer] = field(default_factory=lambda: [Answer()])
    asked: list[str] = field(default_factory=list)  # paths

    def next(self) -> Answer:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that pooch would have waited between attempts."""
    waited: list[float] = []
    monkeypatch.setattr("pooch.core.time.sleep", waited.append)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return waited


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            answer = state.next()
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body[: answer.stop_after])

        def log_message(self, *args: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = Server(f"http://127.0.0.1:{httpd.server_port}")
    thread = threading.Thread(
        target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    yield state
    httpd.shutdown()
    httpd.server_close()
    thread.join()


class Bar:
    """A progress bar in pooch's form."""

    total = 0

    def __init__(self) -> None:
        self.done = 0

    def update(self, count: int) -> None:
        self.done += count

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def get(server: Server, folder: Path, **kwargs: Any) -> tuple[Path, ...]:
    return fetch(["OK"], folder=folder, base_url=server.url, **kwargs)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_good_file_is_unpacked_and_loaded(server: Server, tmp_path: Path) -> None:
    bar = Bar()
    (path,) = get(server, tmp_path, progress=bar)
    assert path == tmp_path / "2018" / "1-Year" / "psam_p40.csv"
    assert path.read_text() == CSV
    assert files(tmp_path) == ["psam_p40.csv"]
    assert server.asked == [PATH]
    assert bar.done == bar.total == len(GOOD)
    assert acs.load(["OK"], folder=tmp_path).rows == sum(90 * i > 100 for i in range(2000))


def test_a_damaged_file_that_is_here_is_replaced(server: Server, tmp_path: Path) -> None:
    (path,) = get(server, tmp_path)
    path.write_text(CSV[:-30])
    get(server, tmp_path)
    assert path.read_text() == CSV
    assert len(server.asked) == 2


def test_a_broken_download_is_tried_again(
    server: Server, tmp_path: Path, pauses: list[float]
) -> None:
    busy = [Answer(b"", status) for status in (503, 429)]
    server.answers = [Answer(stop_after=1000), *busy, Answer()]
    (path,) = get(server, tmp_path)
    assert path.read_text() == CSV
    assert pauses == [1, 2, 3]
    assert files(tmp_path) == ["psam_p40.csv"]


def test_an_interrupted_fetch_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.answers = [Answer(stop_after=1000)]
    with pytest.raises(
        ConnectionError, match=r"could not be fetched in 1 attempts: .*1000 bytes read"
    ):
        get(server, tmp_path, retries=0)
    assert files(tmp_path) == []

    class Interrupting(Bar):
        def update(self, count: int) -> None:
            raise KeyboardInterrupt

    server.answers = [Answer()]
    with pytest.raises(KeyboardInterrupt):
        get(server, tmp_path, progress=Interrupting())
    assert files(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        acs.load(["OK"], folder=tmp_path)


def test_a_damaged_zip_is_fetched_again(server: Server, tmp_path: Path) -> None:
    middle = len(GOOD) // 2
    damaged = GOOD[:middle] + bytes([GOOD[middle] ^ 0xFF]) + GOOD[middle + 1 :]
    server.answers = [Answer(body=damaged), Answer()]
    assert get(server, tmp_path)[0].read_text() == CSV
    server.answers = [Answer(body=damaged)]
    with pytest.raises(ConnectionError, match=r"cannot be used .*CRC"):
        get(server, tmp_path / "other", retries=1)
    assert files(tmp_path / "other") == []


@pytest.mark.parametrize("status", [403, 404])
def test_a_refusal_is_final_and_says_what_to_do(
    status: int, server: Server, tmp_path: Path
) -> None:
    server.answers = [Answer(PAGE, status)]
    with pytest.raises(ConnectionError) as error:
        get(server, tmp_path)
    said = str(error.value)
    for part in (
        f"answered {status}",
        "Access Denied",
        server.url + PATH,
        "csv_pok.zip",
        "psam_p40.csv",
    ):
        assert part in said
    assert str(tmp_path / "2018" / "1-Year") in said
    assert len(server.asked) == 1
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            archive(name="psam_p51.csv"),
            "no person file of OK in the zip file, only ACS2018_PUMS_README.pdf, psam_p51.csv",
        ),
        (archive(CSV.replace("COW", "KOH")), r"\(psam_p40.csv lacks .*COW.*manually"),
        (archive(CSV.replace("2018HU", "2017HU")), r"\(psam_p40.csv is of 2017"),
        (archive(CSV[:-30]), r"\(psam_p40.csv breaks off"),
        (b"", "sent no zip file but nothing readable"),
        (PAGE, "no zip file but a page that begins .Access Denied You don't have"),
    ],
    ids=["other state", "other columns", "other year", "cut short", "empty", "a page"],
)
def test_a_zip_of_something_else_is_refused(
    body: bytes, sentence: str, server: Server, tmp_path: Path
) -> None:
    get(server, tmp_path)[0].write_text(CSV[:-30])  # the bad file that is here stays what it was
    server.answers = [Answer(body)]
    with pytest.raises(ConnectionError, match=sentence):
        get(server, tmp_path)
    assert files(tmp_path) == ["psam_p40.csv"]
    assert (tmp_path / "2018" / "1-Year" / "psam_p40.csv").read_text() == CSV[:-30]


def test_no_network_is_one_sentence(tmp_path: Path, pauses: list[float]) -> None:
    with pytest.raises(
        ConnectionError,
        match=r"could not be fetched in 3 attempts: .*refused.*; to place it manually",
    ):
        fetch(["OK"], folder=tmp_path, base_url="http://127.0.0.1:9", retries=2)
    assert pauses == [1, 2]


@pytest.mark.parametrize(
    ("name", "content"), [("csv_pok.zip", GOOD), ("psam_p40.csv", CSV.encode())]
)
def test_a_file_placed_manually_is_found(
    name: str, content: bytes, server: Server, tmp_path: Path
) -> None:
    server.answers = [Answer(PAGE, 403)]
    with pytest.raises(ConnectionError) as error:
        get(server, tmp_path)
    told = Path(str(error.value).rsplit(" into ", 1)[1])
    (told / name).write_bytes(content)
    assert acs.load(["OK"], folder=tmp_path).rows > 1900
    assert get(server, tmp_path) == (told / name,)
    assert len(server.asked) == 1


def test_files_go_where_load_looks(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRBOUND_DATA", str(tmp_path))
    (path,) = fetch(["OK"], base_url=server.url, retries=0)
    assert path.is_relative_to(tmp_path)
    assert acs.load(["OK"]).source == "acs:OK"


def test_all_names_are_checked_before_the_first_download(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no state is abbreviated 'VAA'"):
        fetch(["OK", "VAA"], folder=tmp_path, base_url=server.url)
    assert server.asked == []


def test_a_state_that_fails_does_not_keep_the_others(server: Server, tmp_path: Path) -> None:
    server.answers = [Answer(PAGE, 404), Answer(), Answer(PAGE)]
    with pytest.raises(ConnectionError) as error:
        fetch(["VA", "OK", "TX"], folder=tmp_path, base_url=server.url)
    said = str(error.value).splitlines()
    assert re.match(r"VA: http.*answered 404 .*csv_pva.zip", said[0])
    assert re.match(r"TX: http.*sent no zip file .*csv_ptx.zip", said[1])
    assert files(tmp_path) == ["psam_p40.csv"]


def test_failed_attempts_are_reported(server: Server, tmp_path: Path) -> None:
    lines: list[str] = []
    server.answers = [Answer(b"", 503), Answer()]
    get(server, tmp_path, report=lines.append)
    assert lines == [
        f"OK: {server.url}{PATH}",
        f"OK: 503 Server Error: Service Unavailable for url: {server.url}{PATH}",
    ]


def test_a_full_disk_is_a_sentence(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(
        OSError, match=r"1-Year cannot be written \(No space left on device\); free some space"
    ):
        get(server, tmp_path)
    assert files(tmp_path) == []
    assert len(server.asked) == 1


def patched(offset_in_entry: int, value: int) -> bytes:
    """The zip with a field of every entry of its directory, and of every local header,
    overwritten."""
    data = bytearray(GOOD)
    for mark, shift in ((b"PK\x01\x02", 2), (b"PK\x03\x04", 0)):
        at = data.find(mark)
        while at >= 0:
            data[at + offset_in_entry + shift] = value
            at = data.find(mark, at + 1)
    return bytes(data)


@pytest.mark.parametrize(
    "body", [patched(6, 1), patched(8, 97)], ids=["encrypted", "unknown compression"]
)
def test_a_zip_that_cannot_be_unpacked(body: bytes, server: Server, tmp_path: Path) -> None:
    server.answers = [Answer(body)]
    with pytest.raises(ConnectionError, match=r"cannot be used \(.*\); to place"):
        get(server, tmp_path)
    assert files(tmp_path) == []
    (tmp_path / "2018" / "1-Year" / "csv_pok.zip").write_bytes(body)
    with pytest.raises(
        ValueError, match=r"csv_pok.zip cannot be unpacked \(.*\); put the csv in it, unpacked"
    ):
        acs.load(["OK"], folder=tmp_path)


@pytest.mark.parametrize("name", ["data/psam_p40.csv", "PSAM_P40.CSV"])
def test_a_member_in_a_folder_or_in_capitals(name: str, server: Server, tmp_path: Path) -> None:
    server.answers = [Answer(archive(name=name))]
    assert get(server, tmp_path)[0] == tmp_path / "2018" / "1-Year" / "psam_p40.csv"


@pytest.mark.parametrize("url", ["foo", "ftp://example.org", "http://a b"])
def test_what_is_no_address(url: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"begins with https:// or http://, got '{url}'"):
        fetch(["OK"], folder=tmp_path, base_url=url)


def test_what_cannot_be_fetched(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot be written .*name another folder"):
        fetch(["OK"], folder=tmp_path / "file")
