"""HTML pages in a single file that needs no network, now or later: Jinja2 templates with figures of
`drawing`.

`base.html` is the frame, with a policy by which the browser itself refuses whatever is not in the
file; `page.css` and `page.js` are the style and the script of every page, in light, in dark and on
paper; `macros.html` has the parts that pages share. Whatever a template shows is escaped, unless it
says otherwise.
"""

from __future__ import annotations

from functools import cache
from itertools import count
from typing import Any, NamedTuple

from fairbound._utils.optional import need
from fairbound.reports._figures import svg


class TableCell(NamedTuple):
    """What `macros.table` shows."""

    text: str
    sort_key: float | str | None = None  # None: always last
    small: str = ""  # below the text
    is_alert: bool = False
    shade: float | None = None  # of its ground, from 0 to 1
    href: str = ""  # where its text leads

    @property
    def key(self) -> str:
        """By which a table is sorted, with the digits that are shown; empty: always last."""
        if self.sort_key is None or isinstance(self.sort_key, str):
            return self.sort_key or ""
        return f"{self.sort_key:.4g}"


def render(template: str, **values: Any) -> str:
    """A page from its template."""
    environment = _environment()
    environment.figures = count()
    return str(environment.get_template(template).render(**values))


@cache
def _environment() -> Any:
    jinja2 = need("jinja2", "report", "The HTML page")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fairbound.reports"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["svg"] = lambda figure: svg(figure, f"f{next(environment.figures)}")
    return environment
