"""Whether every link of the built site leads somewhere, and nothing in it asks another machine for anything."""

from __future__ import annotations

from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("link", "href"), ("object", "data")}
"""What a browser fetches as it shows a page, without being asked."""
QUIET = {"canonical", "next", "prev", "index", "search", "author", "genindex"}
"""Relations of links that are not fetched."""


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, bool]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.anchors |= {given[key] for key in ("id", "name") if key in given}
        for key, value in given.items():
            if key in ("href", "src", "data") and value:
                self.links.append((value, (tag, key) in LOADED and given.get("rel", "") not in QUIET))


def problems(site: Path) -> list[str]:
    """What is wrong with the links of a folder of HTML, a line each; empty where nothing is."""
    pages = {path.resolve(): _Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    found: dict[str, list[str]] = defaultdict(list)
    for path, page in pages.items():
        for link, loaded in page.links:
            parts = urlsplit(link)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                if loaded:
                    found[f"{link} is fetched from another machine"].append(path.name)
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                found[f"{link} leads nowhere"].append(path.name)
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found[f"{link} has no such place on its page"].append(path.name)
    return [f"{what} ({', '.join(sorted(set(where))[:3])})" for what, where in sorted(found.items())]
