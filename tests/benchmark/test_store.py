"""The store: names that depend on content alone, results that are whole or missing, sentences when
a disk refuses."""

from __future__ import annotations

import errno
import inspect
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import fairbound
from fairbound.benchmark import _result_file as result_file
from fairbound.benchmark import _store as store_module
from fairbound.benchmark._environment import cpu_model, describe
from fairbound.benchmark._fingerprint import key
from fairbound.benchmark._result_file import StoredResult
from fairbound.benchmark._store import Store

PACKAGE = Path(fairbound.__file__).parent
FEW = examples(max_examples=50, deadline=None)  # a busy disk is no failure
BY_KILL = pytest.mark.skipif(os.name != "posix", reason="kill -9 is of POSIX systems")

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
SETTINGS = st.dictionaries(st.text(max_size=5), VALUES, max_size=4)

# A process of the tests is quick: the package without what its __init__ imports (torch takes
# seconds)
PROCESS = """
from __future__ import annotations
import itertools, os, signal, sys, types
from typing import Any
import numpy as np
sys.modules["fairbound"] = types.ModuleType("fairbound")
sys.modules["fairbound"].__path__ = [sys.argv[1]]
from fairbound.benchmark import _fingerprint as fingerprint, _result_file as result_file
from fairbound.benchmark import _store as store_module
from fairbound.benchmark._result_file import StoredResult
from fairbound.benchmark._fingerprint import checksum, code_hash, key
from fairbound.benchmark._store import Store
"""


def example(i: int, rows: int = 5) -> tuple[dict[str, Any], dict[str, dict[str, np.ndarray]]]:
    """Settings and tables of result i. Processes of the tests below run this very source."""
    rng = np.random.default_rng(i)
    records = {"step": np.arange(rows), "f": rng.normal(size=rows), "c": rng.normal(size=(rows, 2))}
    return {"experiment": "example", "tau": 0.1, "seed": i}, {
        "records": records,
        "end": {"x": rng.normal(size=3)},
    }


@contextmanager
def child(code: str, *args: object, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has said it is ready, and runs the code; `args` are sys.argv[2:]."""
    source = f"{PROCESS}{inspect.getsource(example)}\nprint('ready', flush=True)\n{code}"
    command = [sys.executable, "-c", source, str(PACKAGE), *map(str, args)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | env
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()  # where the test failed; it has ended otherwise


def assert_is_example(result: StoredResult | None, i: int, rows: int = 5) -> None:
    assert result is not None
    settings, tables = example(i, rows)
    assert result.settings == settings
    assert_same_tables(result.tables, tables)


def assert_same_tables(found: Any, put: Any) -> None:
    """To the bit, NaN included."""
    assert list(found) == list(put)
    for name, table in put.items():
        assert list(found[name]) == list(table)
        for column, values in table.items():
            assert found[name][column].dtype == values.dtype
            assert found[name][column].shape == values.shape
            assert found[name][column].tobytes() == values.tobytes()


def files_of(store: Store, pattern: str = "*") -> list[Path]:
    return sorted(path for path in store.folder.rglob(pattern) if path.is_file())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


@pytest.fixture
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# Results


def test_round_trip_to_the_bit(store: Store) -> None:
    patterns = np.array(
        [0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001, 0x8000000000000000, 1],
        np.uint64,
    )
    # NaNs, -0, tiny, infinite
    floats = np.concatenate([patterns.view(np.float64), [np.inf, -np.inf, 5e-324, 0.1]])
    tables = {
        "records": {
            "f": floats,
            # the largest, inf, NaNs
            "single": np.arange(0x7F7FFFFC, 0x7F800005, dtype=np.uint32).view(np.float32),
            "c": np.stack([floats, floats[::-1]], 1),
            "losses": np.random.default_rng(0).normal(size=(9, 3, 2)),
            "step": np.arange(9) + 2**62,
            "small": np.arange(9, dtype=np.int8),
            "large": np.full(9, 2**64 - 1, dtype=np.uint64),
            "ok": np.arange(9) % 2 == 0,
            "part": np.array(["train", "test", "é", "", "a.b", "x\ny", "0", "nan", "None"]),
        },
        "one row": {"x": np.zeros((1, 4))},
        "no rows": {"x": np.zeros((0, 4)), "name": np.array([], dtype="U1")},
        "no constraints": {"c": np.zeros((3, 0)), "z": np.zeros((3, 2, 0), dtype=np.float32)},
    }
    found = store.get(store.put({"seed": 0}, tables))
    assert found is not None
    assert_same_tables(found.tables, tables)
    found.tables["records"]["f"][0] = 1.0  # may be written to


@FEW
@given(SETTINGS)
def test_settings_come_back(tmp_path_factory: pytest.TempPathFactory, settings: Any) -> None:
    store = Store(tmp_path_factory.getbasetemp() / "settings")
    found = store.get(store.put(settings, {"end": {"x": np.zeros(1)}}))
    assert found is not None
    assert found.key == key(found.settings) == key(settings)


def test_form_in_memory_does_not_matter(store: Store) -> None:
    wide = np.arange(24.0).reshape(4, 6)
    table = {
        "a": wide[:, ::2].T.T,
        "b": wide.T[:4, ::-1],
        "c": wide[::-1, 0].astype(">f8"),
        "d": np.arange(8)[::2],
    }
    found = store.get(store.put({}, {"t": table}))
    assert found is not None
    for name, values in table.items():
        np.testing.assert_array_equal(found.tables["t"][name], values)


def test_what_is_stored_is_found_again(store: Store) -> None:
    assert store.keys() == []
    keys = store.put_many(StoredResult(*example(i)) for i in (2, 0, 1))
    assert keys == [key(example(i)[0]) for i in (2, 0, 1)]
    again = Store(store.folder)
    assert again.keys() == sorted(keys)
    unknown = key({"seed": 99})
    assert [again.has(name) for name in (*keys, unknown)] == [True, True, True, False]
    assert again.get(unknown) is None
    assert again.missing([unknown, *keys, unknown]) == [unknown]
    assert [result.key for result in again.results()] == sorted(keys)
    assert [
        result.settings["seed"] for result in again.results(lambda settings: settings["seed"] == 1)
    ] == [1]
    for i in range(3):
        assert_is_example(again.get(key(example(i)[0])), i)


def test_reading_makes_no_folder(store: Store) -> None:
    assert store.missing([key({})]) == [key({})]
    assert list(store.results()) == []
    assert store.systems() == []
    assert not store.folder.exists()


def test_a_sound_result_stays_unless_other_code_computed_it(store: Store) -> None:
    """Of two processes that compute a result the first one's file stays as it is; that of other
    code replaces it."""

    def put(x: float, code: str) -> list[str]:
        return store.put_many(
            [StoredResult({"seed": 0}, {"end": {"x": np.array([x])}}, {"code": code})]
        )

    (name,) = put(1.0, "a")
    (path,) = (store.folder / "runs").iterdir()
    before = path.stat().st_ino, path.stat().st_mtime_ns
    assert put(2.0, "a") == [name]
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == before
    assert store.missing([name]) == store.missing([name], "a") == []
    assert store.missing([name], "b") == [name]
    put(3.0, "b")
    found = store.get(name)
    assert found is not None
    assert (found.tables["end"]["x"].tolist(), found.made) == ([3.0], {"code": "b"})
    assert len(files_of(store)) == 2  # the result and store.json


def test_studies_are_kept_by_name(store: Store) -> None:
    assert store.studies() == {}
    store.note_study("mine-1", {"title": "Mine"})
    store.note_study("mine-2", {"title": "Mine too"})
    store.note_study("mine-1", {"title": "Mine, again"})
    assert Store(store.folder).studies("mine-1*") == {"mine-1": {"title": "Mine, again"}}
    assert list(store.studies()) == ["mine-1", "mine-2"]


def test_other_readers_open_a_result(store: Store) -> None:
    """The checksum inside is in nobody's way."""
    polars, pandas = pytest.importorskip("polars"), pytest.importorskip("pandas")
    store.put_many(StoredResult(*example(i)) for i in range(2))
    files = files_of(store, "*.parquet")
    f = example(json.loads(polars.read_parquet_metadata(files[0])["fairbound.settings"])["seed"])[
        1
    ]["records"]["f"]
    assert (
        polars.read_parquet(files[0])["records"].explode().struct.field("f").to_list() == f.tolist()
    )
    assert [record["f"] for record in pandas.read_parquet(files[0])["records"][0]] == f.tolist()


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({}, "the result has no table"),
        ({"t": {}}, "table 't' has no columns"),
        (
            {"t": {"a": np.zeros(2), "b": np.zeros(3)}},
            r"table 't' has a \(2,\), b \(3,\); .* one length",
        ),
        ({"t": {"a": np.float64(1.0)}}, r"table 't' has a \(\); .* one length"),
        (
            {"t": {"a": np.zeros(2, dtype=complex)}},
            r"column t\.a holds complex128; the store keeps",
        ),
        ({"t": {"a": np.zeros(2, dtype=np.float16)}}, r"column t\.a holds float16"),
        ({"t": {"a": np.array(["x", None], dtype=object)}}, r"column t\.a holds object"),
    ],
)
def test_tables_that_cannot_be_kept_are_refused(store: Store, tables: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        store.put_many([StoredResult(*example(0)), StoredResult({"seed": 1}, tables)])
    assert store.keys() == []
    assert files_of(store, "*.part") == []


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "A" * 64, "0" * 63])
def test_what_is_no_key_is_refused(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        store.has(name)


def test_a_batch_of_results_is_synced_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file, and the folder of all of them: waiting for the disk is what storing costs."""
    store.put(*example(0))
    synced: list[Path] = []
    monkeypatch.setattr(store_module, "_sync", synced.append)
    keys = store.put_many(StoredResult(*example(i)) for i in range(100))
    assert synced == [store.folder / "runs"]
    assert store.missing(keys) == []
    assert sum(len(result.tables["records"]["f"]) for result in store.results()) == 500


# Damage


def stored(store: Store) -> tuple[str, Path]:
    name = store.put(*example(0))
    return name, store.folder / "runs" / f"{name}.parquet"


def as_others_write_it(path: Path) -> None:
    import pandas

    pandas.DataFrame({"x": [1.0]}).to_parquet(path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "one byte": lambda path: path.write_bytes(b"P"),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "only the end": lambda path: path.write_bytes(path.read_bytes()[-100:]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "one byte changed": lambda path: path.write_bytes(
        path.read_bytes()[:99] + b"~" + path.read_bytes()[100:]
    ),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "text": lambda path: path.write_text("not a Parquet file, but long enough to be one " * 10),
    "by others": as_others_write_it,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_noticed_named_once_and_moved_aside(store: Store, damage: str) -> None:
    name, path = stored(store)
    other = store.put(*example(1))
    DAMAGE[damage](path)
    damaged = path.read_bytes()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert not store.has(name)
        assert store.get(name) is None
        assert store.keys() == [other]
        assert store.missing([name, other]) == [name]
        assert [result.key for result in store.results()] == [other]
        assert store.put(*example(0)) == name
    (warning,) = said
    assert f"{path} is damaged: " in str(warning.message)
    assert_is_example(store.get(name), 0)
    assert path.with_suffix(".damaged").read_bytes() == damaged
    assert store.missing([name, other]) == []


def test_damage_that_nobody_looked_at_is_moved_aside_too(store: Store) -> None:
    name, path = stored(store)
    path.write_bytes(b"")
    with pytest.warns(UserWarning, match="it is empty"):
        Store(store.folder).put(*example(0))
    assert path.with_suffix(".damaged").exists()
    assert_is_example(store.get(name), 0)


def test_no_flipped_bit_changes_a_result(store: Store) -> None:
    """The file is refused, or (in what Parquet writes for itself, such as its version) nothing is
    read of the bit."""
    result = StoredResult(*example(0), {"code": "a", "seconds": 0.5})
    sound, refused = result_file.parquet_of(result), 0
    for at in range(len(sound)):
        flipped = bytearray(sound)
        flipped[at] ^= 1 << at % 8
        try:
            found = result_file.opened(bytes(flipped), result.key)
        except result_file.DamagedError:
            refused += 1
        else:
            assert_is_example(found, 0)
            assert found.made == result.made
    assert refused > len(sound) / 2


def test_a_result_under_the_name_of_another_is_damage(store: Store) -> None:
    name, path = stored(store)
    other = key({"seed": 7})
    path.rename(path.with_name(f"{other}.parquet"))
    with pytest.warns(UserWarning, match=rf"{other}.parquet.*settings.*of {name}"):
        assert store.keys() == []


def test_other_files_are_left_alone(store: Store, no_warnings: None) -> None:
    name, path = stored(store)
    for other in ("notes.txt", "mine.parquet", f"{key({})}.damaged", f".{name}.parquet.0.part"):
        path.with_name(other).write_text("not ours to read")
    assert store.keys() == [name]
    store.put(*example(1))
    assert len(store.keys()) == 2
    assert path.with_name("mine.parquet").exists()


def test_old_parts_are_removed_and_fresh_ones_kept(store: Store) -> None:
    _, path = stored(store)
    for folder in (path.parent, store.folder):
        for name, age in (("old", store_module.STALE_AFTER_S + 60), ("fresh", 60)):
            part = folder / f".{name}.part"
            part.write_bytes(b"half a result")
            os.utime(part, (time.time() - age,) * 2)
    Store(store.folder).put(*example(1))
    assert [part.name for part in files_of(store, "*.part")] == [".fresh.part"] * 2


# Kills, and two at once


@BY_KILL
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_killed_at_a_random_moment_and_resumed(store: Store, seed: int, no_warnings: None) -> None:
    rows, wanted = 20_000, 12
    code = "store = Store(sys.argv[2])\nfor i in itertools.count(): store.put(*example(i, 20_000))"
    with child(code, store.folder) as process:
        time.sleep(random.Random(seed).uniform(0.3, 0.9))
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    resumed = Store(store.folder)
    # each of them sound
    assert resumed.keys() == sorted(path.stem for path in files_of(store, "*.parquet"))
    numbers = {key(example(i)[0]): i for i in range(wanted)}
    missing = resumed.missing(numbers)
    resumed.put_many(StoredResult(*example(numbers[name], rows)) for name in missing)
    for name, i in numbers.items():
        assert_is_example(resumed.get(name), i, rows)


@BY_KILL
def test_killed_at_each_step_of_a_write(store: Store, no_warnings: None) -> None:
    """Half the bytes written; all of them, not yet renamed; renamed, the name not yet on the
    disk."""
    code = """
def die(*args): os.kill(os.getpid(), signal.SIGKILL)
class Half:
    def __init__(self, path, mode): self.file = open(path, mode)
    def __enter__(self): return self
    def __exit__(self, *args): pass
    def write(self, data): self.file.write(data[:len(data) // 2]); self.file.flush(); die()
store = Store(sys.argv[2])
store.put(*example(0))
for i, (place, name, how) in enumerate(
    [(store_module, "open", Half), (os, "replace", die), (store_module, "_sync", die)], start=1
):
    if (pid := os.fork()) == 0:
        setattr(place, name, how)
        store.put(*example(i))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
    with child(code, store.folder) as process:
        assert process.communicate()[0].split() == ["-9", "-9", "-9"]
    keys = [key(example(i)[0]) for i in range(4)]
    assert store.missing(keys) == keys[1:3]  # what was renamed is whole
    parts = files_of(store, "*.part")
    assert [keys[1] in part.name or keys[2] in part.name for part in parts] == [True, True]
    store.put_many(StoredResult(*example(i)) for i in (1, 2))
    for i in range(4):
        assert_is_example(store.get(keys[i]), i)


@BY_KILL
def test_two_write_the_same_results_while_a_third_reads(store: Store, no_warnings: None) -> None:
    code = """
store = Store(sys.argv[2])
for _ in range(5):
    store.put_many(StoredResult(*example(i, 500)) for i in range(8))
"""
    keys = [key(example(i)[0]) for i in range(8)]
    evaluates = 0
    with child(code, store.folder) as one, child(code, store.folder) as two:
        while one.poll() is None or two.poll() is None:
            for i, name in enumerate(keys):
                result = store.get(name)
                if result is not None:
                    assert_is_example(result, i, 500)
                    evaluates += 1
        assert (one.wait(), two.wait()) == (0, 0)
    assert evaluates > 0
    assert store.missing(keys) == []
    assert files_of(store, "*.part") == []


# Disks and folders that refuse


def refusing(code: int) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return refuse


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (errno.ENOSPC, "no space is left; free some and start again"),
        (errno.EDQUOT, "no space is left; free some and start again"),
        (
            errno.EROFS,
            r"may not be written to \(Read-only file system\); change that, or name another folder",
        ),
        (
            errno.EACCES,
            r"may not be written to \(Permission denied\); change that, or name another folder",
        ),
        (errno.EIO, "Input/output error; name another folder, stored runs are not lost"),
    ],
)
@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_a_disk_that_refuses_gives_a_sentence(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int, said: str, call: str
) -> None:
    name = store.put(*example(0))
    place = store_module if call == "open" else os
    with monkeypatch.context() as patch:
        patch.setattr(place, call, refusing(code), raising=False)
        with pytest.raises(OSError, match=said) as raised:
            store.put_many(
                [
                    StoredResult({"seed": 0, **example(0)[0]}, example(5)[1]),
                    StoredResult(*example(1)),
                ]
            )
    assert str(raised.value).startswith(f"results cannot be stored in {store.folder}: ")
    assert raised.value.__cause__ is not None
    assert store.keys() == [name]
    assert_is_example(store.get(name), 0)  # what was there is there
    assert files_of(store, "*.part") == []


def test_a_folder_that_cannot_be_made_gives_a_sentence(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "mkdir", refusing(errno.EROFS))
    with pytest.raises(OSError, match=r"cannot .*results: .*Read-only"):
        store.put(*example(0))


def test_a_file_that_cannot_be_read_is_not_taken_for_damage(store: Store) -> None:
    name, path = stored(store)
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match=r"directory\).*check the disk"):
        store.has(name)


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "results"
    file.write_text("")
    with pytest.raises(NotADirectoryError, match=r"results .*file.*folder"):
        Store(file)
    with pytest.raises(OSError, match=r"results.*inside: .*directory"):
        Store(file / "inside").put(*example(0))


def test_the_format_is_kept_and_a_later_one_refused(store: Store) -> None:
    stored(store)
    path = store.folder / "store.json"
    assert json.loads(path.read_text())["format"] == store_module.FORMAT == 1
    path.write_text('{"format": 2}')
    with pytest.raises(ValueError, match=r"format 2.* 1; update"):
        Store(store.folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "one"}', '{"format": 0}', "\x00"])
def test_a_format_that_is_not_said_is_refused(store: Store, text: str) -> None:
    stored(store)
    path = store.folder / "store.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"store\.json.*format .*remove"):
        Store(store.folder)
    path.unlink()
    assert len(Store(store.folder).keys()) == 1


# Systems


def test_systems_are_noted_once_each(store: Store) -> None:
    first = describe("2025-01-02")
    store.note_system(first)
    store.note_system(describe("2025-01-03"))
    assert store.systems() == [first]
    other = first | {"date": "2025-01-01", "cpu": "another"}
    Store(store.folder).note_system(other)
    store.note_system(first)
    assert store.systems() == [other, first]


def test_a_damaged_note_is_written_again(store: Store) -> None:
    store.note_system(describe("2025-01-02"))
    (path,) = files_of(store, "system-*.json")
    path.write_text('{"cpu": ')
    assert store.systems() == []
    store.note_system(describe("2025-01-03"))
    assert store.systems() == [describe("2025-01-03")]


def test_a_system_is_described() -> None:
    import torch

    said = describe("2025-01-02", device="cpu")
    assert said["torch"] == torch.__version__
    assert said["fairbound"] == fairbound.__version__
    assert said["python"] == ".".join(map(str, sys.version_info[:3]))
    assert said["numpy"] == np.__version__
    assert 1 <= int(said["cpus"]) <= (os.cpu_count() or 1)
    assert said["device"] == "cpu"
    assert json.loads(json.dumps(said)) == said


def test_the_processor_is_named_where_the_system_knows(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(
        "processor\t: 0\nmodel name\t: Example 9000 @ 1 GHz\nprocessor\t: 1\nmodel name\t: Other\n"
    )
    assert cpu_model(info) == "Example 9000 @ 1 GHz"
    info.write_text("processor\t: 0\nBogoMIPS\t: 50.00\n")
    assert cpu_model(info) == cpu_model(tmp_path / "none") != ""
