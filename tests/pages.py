"""Pages as a browser shows them: nothing over the edge, no picture empty, nothing fetched."""

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
    """How many pictures a page has, which is looked at in a window of a width; anything over its edge is an error."""
    asked: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    wider, over, empty, pictures = page.evaluate(_LOOK)
    page.close()
    assert (wider, over, empty) == (0, 0, 0)
    assert all(url.startswith(("file:", "data:")) for url in asked), asked
    return int(pictures)
