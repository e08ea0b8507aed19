"""HTML pages in a single file that needs no network, now or later: the frame, tables to sort, pictures to hover.

`page.html` is the frame, with a policy by which the browser itself refuses whatever is not in the file; `page.css`
and `page.js` are the style and the script of every page, in light, in dark and on paper. plotly draws the pictures
from JSON that lies beside each of them. What a caller passes as `words` or names is escaped here; what is called `html`
or `content` is taken as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from html import escape
from importlib import resources
from string import Template

from fairbound._utils.optional import need

Cell = tuple[str, float | str | None]  # HTML, and what it is sorted by (None: always last)
SYNTHETIC = '<p class="banner"><strong>Synthetic data.</strong> These rows were generated; they describe no people.</p>'


def whole(title: str, content: str, style: str = "") -> str:
    """The page around its content; `style` is CSS of its own."""
    offline = need("plotly.offline", "report", "The HTML page")
    return filled(
        "page.html",
        title=escape(title),
        style=text("page.css") + style,
        body=content,
        plotly=offline.get_plotlyjs(),
        script=text("page.js"),
    )


def filled(file: str, **parts: str) -> str:
    """A template with its parts in their places."""
    return Template(text(file)).substitute(parts)


def text(file: str) -> str:
    """Of a template."""
    return resources.files("fairbound._utils").joinpath("templates", file).read_text(encoding="utf-8")


def section(name: str, heading: str, words: str, content: str) -> str:
    """Content below a heading such as h2, which `#name` leads to.

    >>> section("rates", "h2", "True & false", "<p>...</p>")
    '<section aria-labeledby="rates"><h2 id="rates">True &amp; false</h2><p>...</p></section>'
    """
    return f'<section aria-labeledby="{name}"><{heading} id="{name}">{escape(words)}</{heading}>{content}</section>'


def facts(said: Mapping[str, str]) -> str:
    """Names and what they are, side by side.

    >>> facts({"MiniBatch": "1,000"})
    '<dl class="facts"><div><dt>MiniBatch</dt><dd>1,000</dd></div></dl>'
    """
    listed = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in said.items())
    return f'<dl class="facts">{listed}</dl>'


def picture(words: str, json: str, *, waits: int | None = None) -> str:
    """A plotly figure: JSON with "data", layouts "wide" and, for small screens, "narrow", or the "least" width.

    Where it `waits`, with this height in pixels, it is drawn when a reader comes near it.
    """
    held = f' waits" style="min-height:{waits}px' if waits else ""
    return (
        f'<figure class="picture{held}"><div role="img" aria-label="{escape(words)}"></div>'
        f'<script type="application/json">{json}</script></figure>'
    )


def table(
    words: str,
    names: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    kind: str,
    titles: Mapping[str, str] | None = None,
    right: Collection[int] = (),
) -> str:
    """A table that is sorted by a click on a header; a wide one scrolls in its own box.

    `kind` is its class in the style, `titles` explain headers, the columns in `right` are aligned there.
    """
    explained = titles or {}
    aligned = ["right" if at in right else None for at in range(len(names))]
    head = "".join(
        f'<th scope="col"{_attribute("class", side)}{_attribute("title", explained.get(name))}>'
        f'<button type="button">{escape(name)}</button></th>'
        for name, side in zip(names, aligned, strict=True)
    )
    body = "".join(f"<tr>{_row(row, aligned)}</tr>" for row in rows)
    return (
        f'<div class="scroll {kind}" tabindex="0" role="region" aria-label="{escape(words)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(row: Sequence[Cell], aligned: Sequence[str | None]) -> str:
    (first, key), *others = row
    return f'<th scope="row"{_attribute("data-value", key)}>{first}</th>' + "".join(
        f"<td{_attribute('class', side)}{_attribute('data-value', value)}>{html}</td>"
        for (html, value), side in zip(others, aligned[1:], strict=True)
    )


def _attribute(name: str, value: float | str | None) -> str:
    return "" if value is None else f' {name}="{escape(str(value))}"'
