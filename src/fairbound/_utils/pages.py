"""HTML pages in a single file that needs no network, now or later: Jinja2 templates, and figures that plotly draws.

`base.html` is the frame, with a policy by which the browser itself refuses whatever is not in the file; `page.css` and
`page.js` are the style and the script of every page, in light, in dark and on paper; `macros.html` has the parts that
pages share. Whatever a template shows is escaped, unless it says otherwise. plotly draws the figures from JSON that
lies beside each of them.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, NamedTuple

from fairbound._utils.optional import need


class TableCell(NamedTuple):
    """What `macros.table` shows."""

    text: str
    sort_key: float | str | None = None  # None: always last
    small: str = ""  # below the text
    is_alert: bool = False
    title: str = ""  # explains it
    href: str = ""  # where its text leads


def render(template: str, **values: Any) -> str:
    """A page from its template."""
    plotly = need("plotly.offline", "report", "The HTML page").get_plotlyjs()
    return str(_environment().get_template(template).render(plotly=plotly, **values))


@cache
def _environment() -> Any:
    jinja2 = need("jinja2", "report", "The HTML page")
    loader = jinja2.PackageLoader("fairbound._utils")
    return jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )


def figure_json(wide: Any, narrow: Any = None, min_width: int = 0) -> str:
    """A plotly figure for `macros.figure`: with another layout for small screens, or else the width that it needs.

    It may stand inside a script element: no "<" is left in it.
    """
    content = json.loads(wide.to_json())
    both = {"data": content["data"], "wide": content["layout"], "minWidth": min_width}
    if narrow is not None:
        both["narrow"] = json.loads(narrow.to_json())["layout"]
    return json.dumps(both, separators=(",", ":")).replace("<", "\\u003c")


def styled(figure: Any, height: int) -> Any:
    """A plotly figure in the colors of the page."""
    figure.update_layout(
        template="none", height=height, margin={"l": 64, "r": 24, "t": 40, "b": 50}, hovermode="closest",
        dragmode=False,
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 12, "color": "var(--ink)"},
        hoverlabel={"bgcolor": "var(--paper)", "bordercolor": "var(--faint)", "font": {"color": "var(--ink)"}},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": "var(--faint)", "activecolor": "var(--ink)"},
        uirevision="kept",  # what the legend hides stays hidden when the page is resized
    )  # fmt: skip
    axis = {"gridcolor": "var(--line)", "zeroline": False, "fixedrange": True, "automargin": True}
    figure.update_xaxes(**axis, linecolor="var(--faint)", showline=True, ticks="outside", tickcolor="var(--faint)")
    return figure.update_yaxes(**axis)
