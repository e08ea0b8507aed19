"""Check the built site: every internal link and anchor, and every page in a browser at two widths;
the search.

    python tools/check_site.py docs/_build/html

The browser is headless Chromium; where there is none, the links alone are checked, and a line says
so. Pages are opened as files, so nothing that they need may come from the network.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from browsing import CHROMIUM, Seen, browsed_in_turn  # noqa: E402

WIDTHS = (1400, 390)
SEARCHED = "verdict"
WIDER = """(() => {  // of the page, and of text that is cut off at its right; on a narrow screen code scrolls
  const text = "h1, h2, h3, h4, dt, p" + (innerWidth < 1400 ? "" : ", pre");
  const parts = [document.documentElement, ...document.querySelectorAll(`.bd-article :is(${text})`)];
  return Math.max(...parts.filter(one => one.clientWidth).map(one => one.scrollWidth - one.clientWidth));
})()"""
FOUND = """(async () => {
  const hits = () => document.querySelectorAll("#search-results li a").length;
  for (let i = 0; i < 100 && !hits(); i++) await new Promise(done => setTimeout(done, 50));
  return hits();
})()"""


class Page(HTMLParser):
    """What a page links to, and the anchors that it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {"", "top"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value or "")


def pages_of(site: Path) -> list[Path]:
    # templates of the theme
    return [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]


def broken_links(site: Path) -> Iterator[str]:
    """A sentence for every internal link without a target."""
    pages = {path: Page(path) for path in pages_of(site)}
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            name = path.relative_to(site)
            if not target.exists():
                yield f"{name} links to {link}, which does not exist"
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{name} links to {link}, whose anchor does not exist"


def errors(seen: Seen) -> list[str]:
    """Without what the theme's script logs of its own work."""
    return [
        complaint for complaint in seen.complaints if not complaint.startswith('{"type": "log"')
    ]


def faults_in_browser(site: Path) -> Iterator[str]:
    """A sentence for every page with a script error, a request to the network or a horizontal
    scroll bar."""
    addresses = [path.as_uri() for path in pages_of(site) if "_modules" not in path.parts]
    with tempfile.TemporaryDirectory() as profile:
        for width in WIDTHS:
            for address, seen in browsed_in_turn(addresses, WIDER, Path(profile), width=width):
                name = f"{address.removeprefix(site.as_uri())} at {width} pixels"
                outside = [
                    one for one in seen.requests if not one.startswith(("file:", "data:", "blob:"))
                ]
                yield from (f"{name}: {error}" for error in errors(seen))
                yield from (f"{name} asks for {one}" for one in outside)
                if seen.found > 1:
                    yield f"{name} is {seen.found} pixels too wide"
        search = f"{(site / 'search.html').as_uri()}?q={SEARCHED}"
        for _, seen in browsed_in_turn([search], FOUND, Path(profile), width=WIDTHS[0]):
            yield from (f"search: {error}" for error in errors(seen))
            if not seen.found:
                yield f"the search for {SEARCHED!r} finds nothing"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("site", type=Path)
    site = parser.parse_args().site.resolve()
    faults = list(broken_links(site))
    if CHROMIUM is None:
        print("no chromium here: pages are not opened")
    else:
        faults += faults_in_browser(site)
    print("\n".join(faults) or f"{len(pages_of(site))} pages, no faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
