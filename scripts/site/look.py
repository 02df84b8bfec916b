"""Check of the built site in a browser: width, errors and external requests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

# Widths in pixels of a phone and of a desktop.
WIDTHS = (420, 1280)


def find_flaws(pages: Iterable[Path]) -> list[str]:
    """Return the problems that headless Chromium finds on pages, one line each.

    The browser is that of ``DPHMM_CHROMIUM``, or else that of the system.

    Raises
    ------
    FileNotFoundError
        If Chromium is not installed.
    """
    from playwright.sync_api import sync_playwright

    path = os.environ.get("DPHMM_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        raise FileNotFoundError("Chromium is not installed: install it, or set DPHMM_CHROMIUM")
    flaws_seen: list[str] = []
    at = ""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            opened = [browser.new_page(viewport={"width": width, "height": 900}) for width in WIDTHS]
            for view in opened:
                view.on("pageerror", lambda error: flaws_seen.append(f"{at}: {error}"))
                view.on(
                    "request",
                    lambda request: (
                        flaws_seen.append(f"{at} requests {request.url}") if _is_external(request.url) else None
                    ),
                )
            for page in pages:
                for width, view in zip(WIDTHS, opened, strict=True):
                    at = f"{page.name} at {width} pixels"
                    view.goto(page.resolve().as_uri(), wait_until="load")
                    wide = view.evaluate("document.documentElement.scrollWidth")
                    if wide > width:
                        flaws_seen.append(f"{at} is {wide} pixels wide")
        finally:
            browser.close()
    return flaws_seen


def _is_external(url: str) -> bool:
    return not url.startswith(("file:", "data:", "blob:"))
