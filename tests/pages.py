"""Checks of pages in a browser: nothing exceeds the edge, and nothing is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PHONE, DESK = 420, 1280

_LOOK = """() => {
    const page = document.documentElement;
    const over = [...document.querySelectorAll('p, h1, h2, li, figure, img, pre, .scroll')].filter(
        (one) => one.getBoundingClientRect().right > page.clientWidth + 1);
    const empty = [...document.images].filter((one) => !one.complete || one.naturalWidth === 0);
    return [page.scrollWidth - page.clientWidth, over.length, empty.length, document.images.length];
}"""


def looked_at(browser: Any, path: Path, width: int) -> int:
    """Return the number of pictures of a page at a width; fail if anything exceeds the edge."""
    urls: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.on("request", lambda request: urls.append(request.url))
    page.goto(path.as_uri())
    wider, over, empty, pictures = page.evaluate(_LOOK)
    page.close()
    assert (wider, over, empty) == (0, 0, 0)
    assert all(url.startswith(("file:", "data:")) for url in urls), urls
    return int(pictures)
