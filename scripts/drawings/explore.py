"""The page of 'dphmm explore' in Chromium: policies, an example, and adversaries.

Writes explore.png, explore_example.png and explore_adversary.png. Needs the extras serve and browser.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from scripts.subjects import ROOT

DATA: tuple[str, ...] = ()
RUNS = 1

_DISTRICTS = {"policy": "categorical:data/districts.geojson & utility:500m", "delta": "0.1"}
_CENTRES = {"policy": "centres:250m", "delta": "0.1"}
_WIDE = {"policy": "utility:1km"}
_ADVERSARIES = ("public", "informed")
_SIZE = {"width": 1280, "height": 900}


def draw(options: argparse.Namespace) -> None:
    from playwright.sync_api import sync_playwright

    import dphmm

    os.chdir(ROOT)
    chromium = os.environ.get("DPHMM_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    server = dphmm.explore(open_browser=False)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])

            def open_page(shown: Mapping[str, Any] | None = None) -> Any:
                page = browser.new_page(viewport=_SIZE, locale="en-GB")
                page.goto(f"{server.url}#{quote(json.dumps(shown)) if shown else ''}")
                page.locator("[data-figure=constraint_set]").first.wait_for()
                return page

            def save(page: Any, name: str, num_panels: int = 1) -> None:
                page.locator("[data-figure=constraint_set]").nth(num_panels - 1).wait_for()
                page.wait_for_timeout(500)  # the canvas is drawn in the next frames
                path = options.folder.absolute() / name
                page.screenshot(path=path, full_page=True)
                print(path)

            save(open_page({"step": 3, "settings": [_DISTRICTS, _CENTRES]}), "explore.png", 2)
            page = open_page()
            page.select_option("#example", "correlation")
            page.locator("#example-text", has_text="s5").wait_for()
            save(page, "explore_example.png")
            page = open_page({"step": 2, "settings": [_WIDE, _WIDE]})
            page.locator("[data-figure=constraint_set]").nth(1).wait_for()
            for panel, adversary in enumerate(_ADVERSARIES):
                page.select_option(f"#colour-{panel}", adversary)
                for layer in ("samples", "edges", "hull"):
                    page.locator(f"[data-layer={layer}]").nth(panel).uncheck()
            save(page, "explore_adversary.png", 2)
            browser.close()
    finally:
        server.close()
