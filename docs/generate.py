"""What pages have from the code: the command line, the keys of files, public names; docstrings in
Sphinx's markup."""

import inspect
import re
from dataclasses import MISSING, Field, fields
from importlib import import_module

import torch
import typer
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from pydantic_core import PydanticUndefined
from typer.cli import get_docs_for_click

import fairbound
from fairbound.benchmark._entry import Entry, Paper
from fairbound.benchmark._study import Study
from fairbound.benchmark.board._entry_folder import EntryCard
from fairbound.benchmark.problems.table import SplitSpec, TableSpec
from fairbound.cli._app import app

FILES = {  # what a file is for: the tables of its keys
    "Studies": {"Keys of the file": Study, "`[[entries]]`": Entry, "`[entries.paper]`": Paper},
    "Problems": {"Keys of the file, or `[problem]` of a study": TableSpec, "`[split]`": SplitSpec},
    "Entries that are sent": {"`entry.toml` of a folder": EntryCard},
}
# the file's name, the command line
NOT_IN_FILES = {(Study, "name"), (TableSpec, "name"), (TableSpec, "folder")}
KINDS = {  # aliases of `user_files` and others, in words
    "Text": "text",
    "Count": "whole number, at least 1",
    "Size": "number, at least 0",
    "Notion": "name of a notion",
    "Part": "part of a split",
    "Pool": '"train" or "dual"',
    "Shares": "table of shares",
    "str": "text",
    "bool": "true or false",
    "Any": "any value",
    "Mapping[str, Any]": "table",
}
# may not be installed
OPTIONAL = {"integrations.keras", "integrations.lightning", "integrations.transformers"}


# Pages --------------------------------------------------------------------------------------------


def command_line() -> str:
    """Every command with its options, by typer's own introspection."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(
        obj=command, ctx=typer.Context(command, info_name="fairbound"), name="fairbound"
    )
    return text.partition("\n\n")[2]  # the page has its own title


def file_keys() -> str:
    """The keys of every file, from the dataclasses that read it."""
    parts = []
    for title, tables in FILES.items():
        parts.append(f"## {title}")
        for name, kind in tables.items():
            what = inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0]
            parts += [f"### {name}" if len(tables) > 1 else "", what, "\n".join(key_table(kind))]
    return "\n\n".join(parts)


def key_table(kind: type) -> list[str]:
    source = inspect.getsource(kind)
    rows = ["| key | what | default | |", "|---|---|---|---|"]
    for field in fields(kind):
        if (kind, field.name) in NOT_IN_FILES:
            continue
        said = cell(comment_on(field.name, source))
        rows.append(
            f"| `{field.name}` | {in_words(str(field.type))} | {default_of(field)} | {said} |"
        )
    return rows


def comment_on(field: str, source: str) -> str:
    """The comment beside a field of a dataclass, or the one above it."""
    above = re.search(rf"((?:^    # .*\n)+)    {field}: ", source, re.M)
    if above:
        return " ".join(line.strip(" #") for line in above[1].splitlines())
    comment = re.search(rf"^    {field}: .*?#(?! type: ignore)(?: noqa: \w+)?(.*)$", source, re.M)
    return comment[1].strip() if comment else ""


def in_words(kind: str) -> str:
    kind = kind.removesuffix(" | None")
    if listed := re.fullmatch(r"(?:Annotated\[)?tuple\[(.*?), \.\.\.\].*", kind):
        return f"list of: {in_words(listed[1])}"
    if kind.startswith("Annotated["):
        kind = kind.removeprefix("Annotated[").partition(",")[0]
    if kind.startswith("Mapping["):
        return "table"
    return KINDS.get(kind, cell(kind))


def default_of(field: Field) -> str:
    value = getattr(field.default, "default", field.default)
    return (
        ""
        if value in (MISSING, PydanticUndefined, None, "", ()) or value == Paper()
        else f"`{value}`"
    )


def cell(text: str) -> str:
    return text.strip().replace("|", "\\|")


def public_names() -> str:
    """The names of `from fairbound import ...`, with the first line of each one's docstring."""
    rows = ["| name | what it is |", "|---|---|"]
    for name in fairbound.__all__:
        thing = getattr(fairbound, name)
        module = inspect.ismodule(thing)
        role, where = ("mod", thing.__name__) if module else ("obj", f"fairbound.{name}")
        what = (
            inspect.getdoc(thing) if not isinstance(thing, dict) else "Every method, by its name."
        )
        rows.append(f"| {{py:{role}}}`{name} <{where}>` | {cell(first_paragraph(what or ''))} |")
    return "\n".join(rows)


def first_paragraph(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())


def api(modules: str) -> str:
    """What modules have: first the names that are imported from `fairbound`, then the rest of each
    module."""
    names = {name: getattr(fairbound, name) for name in fairbound.__all__}
    names = {name: thing for name, thing in names.items() if not inspect.ismodule(thing)}
    top, rest = [], []
    for path in modules.split():
        module = None if path in OPTIONAL else import_module(f"fairbound.{path}")
        top += [autodoc(name, names[name]) for name in names if fairbound._HOME[name] == path]
        known = [name for name, thing in names.items() if getattr(module, name, None) is thing]
        imported = (
            "   :imported-members:\n"
            if hasattr(module, "__path__") or path.endswith("keras")
            else ""
        )
        made = (
            f".. automodule:: fairbound.{path}\n{imported}   :exclude-members: {', '.join(known)}"
        )
        rest.append(f"## fairbound.{path}\n\n{evaluated(made)}")
    return "\n\n".join([evaluated("\n\n".join(top)), *rest] if top else rest)


def autodoc(name: str, thing: object) -> str:
    if isinstance(thing, dict):
        example = f'`fairbound.{name}["SSLALM"]` is `SSLALM`'
        return f".. py:data:: fairbound.{name}\n\n   Every method, by its name: {example}."
    return f".. auto{'class' if inspect.isclass(thing) else 'function'}:: fairbound.{name}"


def evaluated(text: str) -> str:
    return f"```{{eval-rst}}\n{text}\n```"


TEXTS = {
    "<!-- generated: command line -->": command_line,
    "<!-- generated: keys of files -->": file_keys,
    "<!-- generated: public names -->": public_names,
}


# Docstrings ---------------------------------------------------------------------------------------


def as_rst(app, what, name, thing, options, lines) -> None:
    """Docstrings are plain text: `code` in backticks, formulas indented by four. In place, as
    Sphinx asks for."""
    lines += fields_as_args(thing) if what == "class" and "Args:" not in lines else []
    blocks = re.split(r"\n\s*\n", "\n".join(lines))
    inside = False  # a section as Args:, whose items are indented
    made = []
    for block in blocks:
        first = block.lstrip("\n").split("\n")[0]
        inside = bool(
            re.fullmatch(r"(Args|Returns|Raises|Yields|Attributes|Example|Examples|Note):", first)
        ) or (inside and first.startswith(" "))
        if first.lstrip().startswith(">>>"):
            made.append(block)
        elif first.startswith("    ") and not inside:
            made.append(".. code-block:: text\n\n" + block)
        else:
            made.append(plain(block, inside))
    lines[:] = "\n\n".join(made).split("\n")


def fields_as_args(kind: type) -> list[str]:
    """The comments on the fields of a dataclass or NamedTuple, as a section."""
    names = getattr(kind, "__dataclass_fields__", getattr(kind, "_fields", ()))
    comments = {
        name: comment_on(name, inspect.getsource(kind))
        for name in names
        if not name.startswith("_")
    }
    return [
        "",
        "Args:",
        *(f"    {name}: {said[:1].upper()}{said[1:]}." for name, said in comments.items() if said),
        "",
    ]


def plain(block: str, inside: bool) -> str:
    out: list[str] = []
    for line in block.split("\n"):
        formula = line.startswith("    ") and not inside
        if formula and out and not out[-1].startswith("    "):
            out += ["", ".. code-block:: text", ""]
        elif out and out[-1].startswith("    ") and not formula and not inside:
            out.append("")
        out.append(line if formula else inline(line))
    return "\n".join(out)


def inline(line: str) -> str:
    """Backticks are code; outside of them nothing is markup."""
    parts = line.split("`")
    if len(parts) % 2 == 0:  # code over two lines
        return re.sub(r"([*|`])", r"\\\1", line)
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = f"``{part}``" if part.strip() else ""
        else:
            text = re.sub(r"([*|])", r"\\\1", part)
            parts[i] = re.sub(r"(?<=\w)_(?!\w)", r"\\_", text)
            if i and parts[i][:1].isalnum():
                parts[i] = "\\ " + parts[i]
    return "".join(parts)


def typeset(translator, node) -> None:
    """LaTeX as MathML, which browsers draw by themselves: no script and no font to fetch."""
    block = isinstance(node, nodes.math_block)
    made = tex2mathml(node.astext(), as_block=block)
    translator.body.append(f'<div class="math">{made}</div>' if block else made)
    raise nodes.SkipNode


# The gallery --------------------------------------------------------------------------------------


GALLERY = (
    "pytorch_loop",
    "sklearn_pipeline",
    "convolution",
    "own_table",
    "fine_tuning",
    "kl_bound",
    "physics_informed",
    "many_subgroups",
    "own_algorithm",
    "lightning_module",
    "transformers_trainer",
    "accelerate_loop",
    "keras_model",
    "distributed",
    "sharded_benchmark",
)


class PlaceInGallery:
    """The order of the examples; one that is not listed is an error."""

    def __init__(self, folder: str) -> None:
        pass

    def __call__(self, file: str) -> int:
        return GALLERY.index(file.removesuffix(".py"))


def restore_torch(gallery, file) -> None:
    """Examples set the number of threads and seeds; the next one begins as a script does."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
