"""Check of the built site: links have targets, and no page loads external resources."""

from __future__ import annotations

from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Tags and attributes that a browser fetches when it shows a page.
LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("link", "href"), ("object", "data")}
# Relations of links that are not fetched.
QUIET = {"canonical", "next", "prev", "index", "search", "author", "genindex"}


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, bool]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        for key, value in values.items():
            if key in ("href", "src", "data") and value:
                self.links.append((value, (tag, key) in LOADED and values.get("rel", "") not in QUIET))


def find_problems(site: Path) -> list[str]:
    """Return the broken links of a folder of HTML, one line each."""
    pages = {path.resolve(): _Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    pages_by_problem: dict[str, list[str]] = defaultdict(list)
    for path, page in pages.items():
        for link, loaded in page.links:
            parts = urlsplit(link)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                if loaded:
                    pages_by_problem[f"{link} is loaded from another host"].append(path.name)
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                pages_by_problem[f"{link} has no target"].append(path.name)
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                pages_by_problem[f"{link} has no such anchor on its page"].append(path.name)
    return [f"{what} ({', '.join(sorted(set(where))[:3])})" for what, where in sorted(pages_by_problem.items())]
