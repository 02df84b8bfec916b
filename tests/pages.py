"""Checks of pages in a browser: nothing exceeds the edge, and nothing is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PHONE = 420
DESK = 1280

_LOOK = """() => {
    const page = document.documentElement;
    const over = [...document.querySelectorAll('p, h1, h2, li, figure, img, pre, .scroll')].filter(
        (one) => one.getBoundingClientRect().right > page.clientWidth + 1);
    const empty = [...document.images].filter((one) => !one.complete || one.naturalWidth === 0);
    return [page.scrollWidth - page.clientWidth, over.length, empty.length, document.images.length];
}"""


def inspect_page(browser: Any, path: Path, width: int) -> int:
    """Return the number of pictures of a page at a width. Fail if anything exceeds the edge."""
    urls: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.on("request", lambda request: urls.append(request.url))
    page.goto(path.as_uri())
    wider, over, empty, pictures = page.evaluate(_LOOK)
    page.close()
    assert (wider, over, empty) == (0, 0, 0)
    assert all(url.startswith(("file:", "data:")) for url in urls), urls
    return int(pictures)


# WCAG 2.2, success criterion 1.4.3: 4.5 for text, 3 for large text. Labels on maps lie on pictures and have a halo.
_CONTRAST = """() => {
    const parse = (text) => text.match(/[\\d.]+/g).map(Number);
    const luminance = ([red, green, blue]) => {
        const [r, g, b] = [red, green, blue].map((part) => part / 255).map(
            (part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const background = (one) => {
        for (let at = one; at; at = at.parentElement) {
            const colour = parse(getComputedStyle(at).backgroundColor);
            if (colour.length < 4 || colour[3] === 1) return colour;
        }
        return [255, 255, 255];
    };
    const hasText = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const texts = [...document.querySelectorAll('body *')].filter(
        (one) => one.checkVisibility() && !one.disabled && !one.closest('.leaflet-pane') && hasText(one));
    const ratios = texts.map((one) => {
        const style = getComputedStyle(one);
        const [low, high] = [luminance(parse(style.color)), luminance(background(one))].sort((a, b) => a - b);
        const size = parseFloat(style.fontSize), isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
        return [(high + 0.05) / (low + 0.05), isLarge ? 3 : 4.5, one.textContent.trim().slice(0, 40)];
    });
    return [ratios.length, ratios.filter(([ratio, least]) => ratio < least)];
}"""


def list_low_contrasts(page: Any) -> tuple[int, list[Any]]:
    """Return the number of visible texts, and those with less contrast than WCAG requires."""
    num_texts, low = page.evaluate(_CONTRAST)
    return num_texts, low
