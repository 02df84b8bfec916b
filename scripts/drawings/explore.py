"""The page of 'dphmm explore' in Chromium: two policies compared in the invented city.

Writes explore.png. Needs the extras serve and browser.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from urllib.parse import quote

from scripts.subjects import ROOT

DATA: tuple[str, ...] = ()
RUNS = 1

TIMESTEP = 4
SETTINGS = (
    {"policy": "categorical:data/districts.geojson & utility:500m", "delta": "0.1"},
    {"policy": "centres:250m", "delta": "0.1"},
)
_SIZE = {"width": 1280, "height": 900}


def draw(options: argparse.Namespace) -> None:
    from playwright.sync_api import sync_playwright

    import dphmm

    os.chdir(ROOT)
    chromium = os.environ.get("DPHMM_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    link = quote(json.dumps({"step": TIMESTEP - 1, "settings": SETTINGS}))
    server = dphmm.explore(open_browser=False)
    path = options.folder.absolute() / "explore.png"
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport=_SIZE, locale="en-GB")
            page.goto(f"{server.url}#{link}")
            page.locator("[data-figure=constraint_set]").nth(1).wait_for()
            page.wait_for_timeout(500)  # the canvas is drawn in the next frames
            page.screenshot(path=path, full_page=True)
            browser.close()
    finally:
        server.close()
    print(path)
