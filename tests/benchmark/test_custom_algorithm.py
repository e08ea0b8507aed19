"""A method of the user's own: found by the name of its file, refused with sentences, trained like
the others."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from methods import classification

from fairbound.benchmark._custom_algorithm import (
    CustomAlgorithm,
    load_custom_algorithm,
    tried_algorithm,
)
from fairbound.benchmark._study import Study, load_study
from fairbound.core import Algorithm
from fairbound.training._hyperparams import structure
from fairbound.training._runner import run

METHOD = '''
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fairbound.core import Algorithm, Draw


class State(NamedTuple):
    v: Tensor  # (n,) velocity


@dataclass(frozen=True, kw_only=True)
class HeavyPenalty(Algorithm[State]):
    """Momentum on f + weight |max(c, 0)|^2 / 2."""

    tau: float = 0.05
    weight: float = 5.0
    keep: float = 0.5
    nesterov: bool = False

    def init(self, x, m, first=None, equality=None):
        return State(v=x.new_zeros(x.shape))

    def update(self, x, state, draw):
        (sample,) = draw.unpack(self)
        e = sample(x)
        v = self.keep * state.v - self.tau * e.grad(f=1.0, c=self.weight * e.c.clamp(min=0))
        return v, State(v)

    def primal_step(self, state):
        return self.tau


class Abstract(Algorithm[State]):
    def init(self, x, m, first=None, equality=None):
        return None


class Bare(Algorithm[State]):
    tau: float = 0.05

    def init(self, x, m, first=None, equality=None):
        return None

    def update(self, x, state, draw):
        return x, state

    def primal_step(self, state):
        return self.tau


@dataclass
class Melted(Bare):
    eta: float = 0.05


class Heavier(HeavyPenalty):
    weight: float = 50.0  # a class attribute without the decorator: the method would still use 5


@dataclass(frozen=True, kw_only=True)
class Open(Bare):
    tau: float = 0.05
    eta: float


@dataclass(frozen=True, kw_only=True)
class Strict(Bare):
    tau: float = 0.05

    def __post_init__(self):
        if self.tau > 1:
            raise ValueError(f"tau must be at most 1, got {self.tau}")


@dataclass(frozen=True, kw_only=True)
class Greedy(Bare):
    tau: float = 0.05

    @property
    def evaluates(self):
        return ("c",)


@dataclass(frozen=True, kw_only=True)
class Broken(HeavyPenalty):
    def update(self, x, state, draw):
        return x / 0 if state is None else 1 / 0, state


@dataclass(frozen=True, kw_only=True)
class Single(HeavyPenalty):
    def update(self, x, state, draw):
        return x.double(), state


def function():
    return 1


NUMBER = 3
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_file.py"
    path.write_text(METHOD)
    return path


def refused(text: str, error: type[Exception] = ValueError) -> str:
    """The sentence."""
    with pytest.raises(error) as caught:
        tried_algorithm(text)
    return str(caught.value)


def test_a_file_and_a_class(file: Path) -> None:
    custom = load_custom_algorithm(f"{file}:HeavyPenalty")
    assert (custom.name, custom.path, custom.settings) == ("HeavyPenalty", file, {})
    assert issubclass(custom.method, Algorithm)
    assert repr(custom.method()) == "HeavyPenalty(tau=0.05, weight=5.0, keep=0.5, nesterov=False)"


def test_settings(file: Path) -> None:
    custom = load_custom_algorithm(f" {file}:HeavyPenalty( tau=1, weight = -2.5e0, nesterov=True) ")
    assert custom.settings == {"tau": 1.0, "weight": -2.5, "nesterov": True}
    # else it would be structure, and no grid over it would stack
    assert type(custom.settings["tau"]) is float
    assert custom.name == "HeavyPenalty(tau=1.0, weight=-2.5, nesterov=True)"
    assert load_custom_algorithm(f"{file}:HeavyPenalty()").name == "HeavyPenalty"


def test_it_trains_in_a_stack(file: Path) -> None:
    """Two weights in one stack equal two runs alone, and a heavier penalty leaves less
    violation."""
    problem, sampler, x0 = classification()
    methods = [
        load_custom_algorithm(f"{file}:HeavyPenalty(tau=0.02, weight={weight})")
        for weight in (0, 20)
    ]
    made = [custom.method(**custom.settings) for custom in methods]
    assert structure(made[0]) == structure(made[1])
    start = x0[:1].repeat(2, 1)
    combine = run(problem, made, sampler.seeded(3, 3), start, 150).result()
    for i, method in enumerate(made):
        alone = run(problem, method, sampler.seeded(3), start[:1], 150).result()
        assert torch.allclose(combine.x[i], alone.x[0], atol=1e-10)
    rows = sampler.split.train
    free, held = problem.evaluate(combine.x, rows).c.clamp(min=0).amax(1).tolist()
    assert held < free / 2
    assert problem.evaluate(combine.x, rows).loss[0] < problem.evaluate(start, rows).loss[0]


def test_the_same_file_is_the_same_class_and_a_changed_one_another(
    file: Path, tmp_path: Path
) -> None:
    first = load_custom_algorithm(f"{file}:HeavyPenalty").method
    assert load_custom_algorithm(f"{file}:HeavyPenalty(tau=0.2)").method is first
    assert pickle.loads(pickle.dumps(first())) == first()
    # as many bytes, in the same second
    file.write_text(METHOD.replace("tau: float = 0.05", "tau: float = 0.07"))
    assert load_custom_algorithm(f"{file}:HeavyPenalty").method().tau == 0.07
    assert first().tau == 0.05
    copy = tmp_path / "copy.py"
    copy.write_text(METHOD)
    assert load_custom_algorithm(f"{copy}:HeavyPenalty").method is not first
    assert not (tmp_path / "__pycache__").exists()


@pytest.mark.parametrize(
    "text", ["my_file.py", "MyMethod", "my_file.py:", ":MyMethod", "my_file.py:3", "my.py:A(1"]
)
def test_no_file_and_class(text: str) -> None:
    assert (
        refused(text) == "a method of your own is named FILE:CLASS, such as my_file.py:MyMethod or"
        f" my_file.py:MyMethod(tau=0.1); got {text!r}"
    )


def test_a_file_without_a_class_lists_its_methods(file: Path, tmp_path: Path) -> None:
    assert f"; write {file}:HeavyPenalty or {file}:Abstract or" in refused(str(file))
    (tmp_path / "empty.py").write_text("from fairbound.core import Algorithm\n")
    assert "empty.py', which has no class that derives from fairbound.core.Algorithm" in refused(
        f"{tmp_path}/empty.py"
    )


def test_no_such_file_or_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = refused("absent.py:MyMethod", FileNotFoundError)
    assert said.startswith(
        f"there is no file absent.py (seen from {tmp_path}); a method of your own is named FILE:"
    )
    (tmp_path / "folder.py").mkdir()
    assert refused("folder.py:MyMethod", OSError).startswith(
        "folder.py cannot be read (Is a directory);"
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("HeavyPenalti", "{file} has no 'HeavyPenalti'; did you mean HeavyPenalty?"),
        ("function", "{file}: function is <function function at 0x"),
        (
            "NUMBER",
            "{file}: NUMBER is 3; a method is a class that derives from fairbound.core.Algorithm",
        ),
        ("State", "; a method is a class that derives from fairbound.core.Algorithm"),
        (
            "Abstract",
            "{file}: Abstract does not define primal_step and update, as every Algorithm does",
        ),
        (
            "Bare",
            (
                "{file}: Bare is not a frozen dataclass; write @dataclass(frozen=True,"
                " kw_only=True) above it"
            ),
        ),
        (
            "Melted",
            (
                "{file}: Melted is not a frozen dataclass; write @dataclass(frozen=True,"
                " kw_only=True) above it"
            ),
        ),
        (
            "Heavier",
            (
                "{file}: Heavier is not a frozen dataclass; write @dataclass(frozen=True,"
                " kw_only=True) above it"
            ),
        ),
        (
            "Open",
            "{file}: the field 'eta' of Open has no default; give it one, such as eta: float = 0.1",
        ),
        ("Strict(tau=2)", "{file}: Strict(tau=2.0) cannot be made: tau must be at most 1, got 2.0"),
        (
            "Greedy",
            (
                "{file}: Greedy.evaluates must be a tuple with 'f', 'c' or 'fc' for each mini-batch"
                " of a step"
            ),
        ),
        ("Broken", "{file}, line 92: a first step of Broken raised ZeroDivisionError: "),
        (
            "Single",
            (
                "{file}: Single.update returns a step of torch.float64, and the point is"
                " torch.float32; make new"
            ),
        ),
        ("HeavyPenalty(taw=2)", "my_file.py:HeavyPenalty has no setting 'taw'; did you mean tau?"),
        (
            "HeavyPenalty(tau='a')",
            "my_file.py:HeavyPenalty: tau must be a number, True or False, got 'a'",
        ),
        (
            "HeavyPenalty(tau=NUMBER)",
            "my_file.py:HeavyPenalty: tau must be a number, True or False, got NUMBER",
        ),
        (
            "HeavyPenalty(tau=None)",
            "my_file.py:HeavyPenalty: tau must be a number, True or False, got None",
        ),
        (
            "HeavyPenalty(0.1)",
            "my_file.py:HeavyPenalty: settings are named, such as (tau=0.1, eta=0.5); got (0.1)",
        ),
        (
            "HeavyPenalty(**{})",
            "my_file.py:HeavyPenalty: settings are named, such as (tau=0.1, eta=0.5); got (**{})",
        ),
        (
            "HeavyPenalty(tau=1)(2)",
            "HeavyPenalty: settings are named, such as (tau=0.1, eta=0.5); got (tau=1)(2)",
        ),
        (
            "HeavyPenalty(tau=)",
            "my_file.py:HeavyPenalty: (tau=) is not a list of settings as (tau=0.1, eta=0.5): ",
        ),
        (
            "HeavyPenalty(tau=1,tau=2)",
            "my_file.py:HeavyPenalty: tau is given twice in (tau=1,tau=2)",
        ),
    ],
)
def test_what_is_refused(file: Path, name: str, said: str) -> None:
    assert said.replace("{file}", str(file)) in refused(f"{file}:{name}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "import torch\n\nimport nowhere_to_be_found\n",
            "line 3: the file cannot be loaded: ModuleNotFoundError: No",
        ),
        ("x = 1\nclass A:\n    def f(self:\n", "line 3: the file cannot be loaded: SyntaxError: "),
        (
            "def f():\n    return 1 / 0\n\n\nf()\n",
            "line 2: the file cannot be loaded: ZeroDivisionError: division by",
        ),
        ("import sys\nsys.exit('bye')\n", "line 2: the file cannot be loaded: SystemExit: bye"),
        ("import json\njson.loads('{')\n", "line 2: the file cannot be loaded: JSONDecodeError: "),
    ],
)
def test_a_file_that_cannot_be_loaded(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    before = set(sys.modules)
    assert f"{path}, {said}" in refused(f"{path}:A", ImportError)
    assert not [name for name in set(sys.modules) - before if name.startswith("fairbound_custom")]


# In a study ---------------------------------------------------------------------------------------


@pytest.fixture
def custom(file: Path) -> CustomAlgorithm:
    return load_custom_algorithm(f"{file}:HeavyPenalty(weight=2)")


def with_custom(study: Study, custom: CustomAlgorithm) -> Study:
    return study.with_entries([study.custom_entry(custom)])


def test_a_further_entry(custom: CustomAlgorithm) -> None:
    study = load_study("paper-ok-race")
    more = with_custom(study, custom)
    assert more.entries[:-1] == study.entries
    entry = more.entries[-1]
    assert (entry.name, entry.reference) == ("HeavyPenalty(weight=2.0)", "your own: my_file.py")
    # the problem's
    assert (entry.batch, entry.notion, entry.bound, entry.steps) == (None, None, None, 10_000)
    assert entry.algorithm(10_000) == custom.method(weight=2.0)


def test_as_many_steps_as_which_entry(custom: CustomAlgorithm) -> None:
    study = load_study("paper-ok-race")
    others = replace(
        study, entries=tuple(entry for entry in study.entries if entry.method != "SSLALM")
    )
    assert others.custom_entry(custom).steps == 30_000  # 20,000 and 700 are as common
    few = replace(
        others, entries=tuple(entry for entry in others.entries if "batch 64" not in entry.name)
    )
    assert few.custom_entry(custom).steps == 20_000
    assert load_study("board").custom_entry(custom).steps is None


def test_two_of_the_users_own_and_a_name_that_is_taken(custom: CustomAlgorithm, file: Path) -> None:
    more = with_custom(load_study("paper-ok-race"), custom)
    other = load_custom_algorithm(f"{file}:HeavyPenalty(weight=3)")
    assert [entry.name for entry in with_custom(more, other).entries[-2:]] == [
        custom.name,
        other.name,
    ]
    with pytest.raises(ValueError, match=r"2 entries.*'HeavyPenalty\(weight=2.0\)'"):
        with_custom(more, custom)
