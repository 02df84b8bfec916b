"""Whether each page of the built site fits a phone and a desk, runs without an error, and asks no other machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

WIDTHS = (420, 1280)
"""Pixels of a phone and of a desk."""


def flaws(pages: Iterable[Path]) -> list[str]:
    """What a headless Chromium finds wrong with some pages, a line each; empty where nothing is.

    The browser is the one of ``DPHMM_CHROMIUM`` or of the system.

    Raises
    ------
    FileNotFoundError
        When there is no Chromium.
    """
    from playwright.sync_api import sync_playwright

    path = os.environ.get("DPHMM_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        raise FileNotFoundError("no Chromium: install one, or set DPHMM_CHROMIUM")
    found: list[str] = []
    at = ""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            opened = [browser.new_page(viewport={"width": width, "height": 900}) for width in WIDTHS]
            for view in opened:
                view.on("pageerror", lambda error: found.append(f"{at}: {error}"))
                view.on(
                    "request", lambda asked: found.append(f"{at} asks for {asked.url}") if _leaves(asked.url) else None
                )
            for page in pages:
                for width, view in zip(WIDTHS, opened, strict=True):
                    at = f"{page.name} at {width} pixels"
                    view.goto(page.resolve().as_uri(), wait_until="load")
                    wide = view.evaluate("document.documentElement.scrollWidth")
                    if wide > width:
                        found.append(f"{at} is {wide} wide")
        finally:
            browser.close()
    return found


def _leaves(url: str) -> bool:
    return not url.startswith(("file:", "data:", "blob:"))
