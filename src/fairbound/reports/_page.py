"""Sections of sentences, tables and figures, as text for a terminal or as one HTML page in a single
file that needs no network, now or later.

What a section may hold:

- a sentence (text), or a `Line` of a certain kind;
- facts (a dictionary of words), points (a list of words) or words of a template (`Words`);
- a ReportTable, a matplotlib figure, whose label is its caption, or a `Choice` of figures;
- a `PageSection`.

`page.html` is the template of every page, with a policy by which the browser itself refuses
whatever is not in the file; `page.css` and `page.js` are its style and script, in light, in dark
and on paper. Whatever it shows is escaped, and hidden characters are written out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from textwrap import fill
from typing import Any, NamedTuple

from fairbound._utils.optional import need
from fairbound.reports._figures import svg
from fairbound.reports._table import WIDTH, ReportTable
from fairbound.reports._words import visible

INTERVAL = re.compile(r"\[([-+.\d]+), ([-+.\d]+)\]")
SYNTHETIC = "These examples are generated data and describe no real persons."


class Line(NamedTuple):
    """A sentence of its own kind (a class of page.css), after words in bold and before links."""

    text: str
    kind: str = ""
    lead: str = ""
    links: Mapping[str, str] = {}  # words -> where they lead


class Words(NamedTuple):
    """What a template says that has words alone, such as how to read a page."""

    template: str
    values: Mapping[str, Any] = {}


class Choice(NamedTuple):
    """Sections of which a reader chooses one; without JavaScript all are shown."""

    title: str
    name: str
    options: Mapping[str, PageSection]  # by the values of the menu


class Home(NamedTuple):
    """What a page shows unless a section of the kind "part" is asked for by its address."""

    body: Sequence[Any]


@dataclass(frozen=True, kw_only=True)
class PageSection:
    """A heading and what stands below it."""

    title: str
    body: Sequence[Any]
    name: str = ""  # its address on the page; by default a number
    is_folded: bool = False
    kind: str = ""  # a class of page.css
    links: Mapping[str, str] = field(default_factory=dict)  # names of rows -> where they lead


def synthetic_banner() -> Line:
    """The warning that data are synthetic."""
    return Line(SYNTHETIC, "banner", "Synthetic data.")


def as_text(body: Iterable[Any], width: int = WIDTH) -> str:
    """Sentences and tables for a terminal; of a section, what stands in it unless it is folded."""
    return "\n".join(line for part in text_parts(body, width) for line in part if line)


def text_parts(body: Iterable[Any], width: int = WIDTH) -> Iterator[tuple[str, str]]:
    """A heading, or nothing, and the text below it, for every sentence and table."""
    for part in body:
        if isinstance(part, str | Line):
            words = part if isinstance(part, str) else f"{part.lead} {part.text}".strip()
            yield "", in_lines(words, width)
        elif isinstance(part, ReportTable):
            yield in_lines(part.title, width), (part.short or part).to_text(width)
            yield from text_parts(part.notes, width)
        elif isinstance(part, PageSection) and not part.is_folded:
            yield from text_parts(part.body, width)


def in_lines(words: str, width: int = WIDTH) -> str:
    """A sentence in lines of this many letters, none of which ends within an interval."""
    text = INTERVAL.sub("[\\1,\N{NO-BREAK SPACE}\\2]", visible(words))
    return fill(text, width, break_on_hyphens=False).replace("\N{NO-BREAK SPACE}", " ")


def page(
    title: str,
    body: Iterable[Any],
    *,
    above: str = "",
    below: str = "",
    footer: str = "",
) -> str:
    """The HTML page.

    Args:
        title: heading of the page.
        body: what it shows, in order.
        above: a line above the heading.
        below: a line below it.
        footer: what its last line says besides.
    """
    environment = _environment()
    environment.numbers = count()
    shown = environment.get_template("page.html").render(
        title=title, body=list(body), above=above, below=below, footer=footer
    )
    return str(shown)


def _finished(value: Any) -> Any:
    return value if type(value) is not str or value.isprintable() else visible(value)


@cache
def _environment() -> Any:
    jinja2 = need("jinja2", "report", "The HTML page")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fairbound.reports"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finished,
    )
    kinds: dict[str, type] = {
        "table": ReportTable,
        "section": PageSection,
        "line": Line,
        "choice": Choice,
    }
    kinds |= {"home": Home, "words": Words}
    for name, kind in kinds.items():
        environment.tests[name] = lambda value, kind=kind: isinstance(value, kind)
    environment.tests["figure"] = lambda value: hasattr(value, "subfigs")
    environment.globals["number"] = lambda: next(environment.numbers)
    environment.filters["svg"] = lambda figure: svg(figure, f"f{next(environment.numbers)}")
    return environment
