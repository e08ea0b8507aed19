"""Build the sdist and the wheel, and try the wheel in a clean environment of every Python that is
there.

    python tools/try_package.py                          # every Python with the newest torch; the
    first with the oldest python tools/try_package.py --only 3.11 --torch 2.6  # one of them

The wheel is built from the sdist, so that an sdist that lacks a file fails. A trial is
`package_trial.py`, run from a folder outside the repository after `pip install
fairbound-*.whl[report]` without constraints.txt: what a user gets today. pip's own settings choose
the index (PIP_EXTRA_INDEX_URL: the CPU builds of torch, which are some GB smaller).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MINORS = ("3.11", "3.12", "3.13", "3.14")
OLDEST_TORCH = "2.6"
NO_WHEEL = ("No matching distribution found", "Could not find a version", "ResolutionImpossible")


class NothingToTryError(Exception):
    """There is nothing to try: no interpreter, no wheel of torch."""


def main() -> None:
    settings = arguments()
    with tempfile.TemporaryDirectory(prefix="fairbound-package-") as folder:
        wheel = build(Path(folder))
        outcomes = [attempt(wheel, minor, torch, Path(folder)) for minor, torch in trials(settings)]
    if "passed" not in outcomes:
        sys.exit("no trial passed")
    sys.exit(1 if "FAILED" in outcomes else 0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", action="append", choices=MINORS, help="a Python; may be given several times"
    )
    parser.add_argument(
        "--torch", action="append", help="a version of torch such as 2.6, or newest; several times"
    )
    return parser.parse_args()


def trials(settings: argparse.Namespace) -> list[tuple[str, str]]:
    """(Python, torch) to try; by default the oldest torch on the first Python that is there."""
    minors = settings.only or list(MINORS)
    if settings.torch:
        return [(minor, torch) for minor in minors for torch in settings.torch]
    first = next((minor for minor in minors if interpreter(minor)), minors[0])
    return [(first, OLDEST_TORCH), *((minor, "newest") for minor in minors)]


def build(folder: Path) -> Path:
    """The wheel, in dist/; every file of the package that git knows must be in it."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    run([sys.executable, "-m", "build", "--outdir", str(ROOT / "dist"), str(ROOT)], folder)
    (wheel,) = (ROOT / "dist").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "src/fairbound"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    absent = [
        name
        for name in tracked
        if name.removeprefix("src/") not in names and (ROOT / name).exists()
    ]
    if absent:
        sys.exit(
            f"the wheel lacks {len(absent)} files of the package, {', '.join(absent[:5])}; see"
            " pyproject.toml"
        )
    print(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
    return wheel


def attempt(wheel: Path, minor: str, torch: str, folder: Path) -> str:
    """Try, and say in one line how it ended."""
    start, what = time.monotonic(), f"Python {minor}, torch {torch}"
    try:
        outcome, detail = "passed", trial(wheel, minor, torch, folder / f"{minor}-{torch}")
    except NothingToTryError as reason:
        outcome, detail = "skipped", str(reason)
    except subprocess.CalledProcessError as error:
        outcome, detail = "FAILED", "\n" + "\n".join(error.output.splitlines()[-30:])
    print(f"{what}: {outcome} in {time.monotonic() - start:.0f} s, {detail}", flush=True)
    return outcome


def trial(wheel: Path, minor: str, torch: str, folder: Path) -> str:
    """Install and run; environment and files are deleted at the end, since each has some GB."""
    python = interpreter(minor)
    if python is None:
        raise NothingToTryError(f"there is no Python {minor} here")
    run([python, "-m", "venv", str(folder / "env")], folder.parent)
    own = str(folder / "env" / ("Scripts" if os.name == "nt" else "bin") / "python")
    try:
        extra, note = install(own, wheel, torch, folder)
        shutil.copy(ROOT / "tools" / "package_trial.py", folder)
        said = run([own, "-I", "package_trial.py", *extra], folder)
        return ", ".join([note, *said.splitlines()[-2:]] if note else said.splitlines()[-2:])
    finally:
        shutil.rmtree(folder)


def install(python: str, wheel: Path, torch: str, folder: Path) -> tuple[list[str], str]:
    """With the extra `report`, or without it where one of its packages has no wheel for this
    Python."""
    pin = (
        []
        if torch == "newest"
        else [f"torch=={torch}.*" if torch.count(".") == 1 else f"torch=={torch}"]
    )
    command = [python, "-m", "pip", "install", "-q", "--only-binary", ":all:", "--no-compile", *pin]
    for extra in (["report"], []):
        try:
            run([*command, f"{wheel}[{','.join(extra)}]" if extra else str(wheel)], folder)
            return extra, "" if extra else "without extras (one of their packages has no wheel)"
        except subprocess.CalledProcessError as error:
            if not any(sign in error.output for sign in NO_WHEEL):
                raise
            reason = next(
                line for line in error.output.splitlines() if any(sign in line for sign in NO_WHEEL)
            )
    raise NothingToTryError(f"it does not install from wheels ({reason.strip()})")


def interpreter(minor: str) -> str | None:
    """A Python of that version that starts: this one, one on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    managed = sorted(str(path) for path in pyenv.glob(f"{minor}.*/bin/python"))
    for python in filter(None, (sys.executable, shutil.which(f"python{minor}"), *managed)):
        asked = subprocess.run(
            [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True
        )
        if asked.stdout.decode().strip() == minor:
            return python
    return None


def run(command: list[str], folder: Path) -> str:
    """Output and errors together; nothing of this environment's packages reaches the command."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=clean,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return done.stdout


if __name__ == "__main__":
    main()
