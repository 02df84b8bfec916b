"""Build the site: ``python -m scripts.site [--external] [FOLDER]``; `scripts/docs` calls it."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from scripts.site import commands, links, look, names, notebook
from scripts.site.pages import ROOT, FailedPages, run_pages, with_outputs

BUILD = ROOT / "build" / "docs"
BESIDE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
"""Pages that stand beside the documentation, and what they are called in the site."""
NOTEBOOK = "tutorial/first.md"
"""The page that is a notebook too."""


def stage(source: Path, folder: Path) -> None:
    """A copy of the documentation with what its code printed and drew, and with the pages that are made.

    Raises
    ------
    FailedPages
        When a page's code does not do what the page says.
    """
    pages = sorted(source.rglob("*.md"))
    outputs = run_pages(pages, BUILD / "runs")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    # A figure's code is run where it stands; the sample's README would be taken for a gallery of its own.
    shutil.copytree(ROOT / "data", folder / "gallery" / "data", ignore=shutil.ignore_patterns("README.md"))
    made = folder / "_static" / "made"
    made.mkdir()
    for path in (BUILD / "runs").iterdir():
        if path.suffix not in (".json", ".key"):
            shutil.copyfile(path, made / path.name)
    for page in pages:
        text = page.read_text(encoding="utf-8")
        if page in outputs:
            here = os.path.relpath(made, (folder / page.relative_to(source)).parent)
            text = with_outputs(text, outputs[page], here)
        if page == source / NOTEBOOK:
            notebook.run(page, made / "first.ipynb")
            text += f"\nThis page is also [a notebook]({here}/first.ipynb), to be run beside the project's `data`.\n"
        if page.name == "names.md":
            text = names.linked(text)
        text = text.replace("(gallery/README.rst)", "(figures/index.rst)")
        (folder / page.relative_to(source)).write_text(text, encoding="utf-8")
    for path, text in (commands.pages() | names.pages()).items():
        (folder / "reference" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "reference" / path).write_text(text, encoding="utf-8")
    for name in BESIDE:
        text = re.sub(
            r"\]\((?:docs/)?([^)\s]+)\)",
            lambda link: f"]({BESIDE.get(link[1], link[1])})",
            (ROOT / name).read_text("utf-8"),
        )
        (folder / BESIDE[name]).write_text(text, encoding="utf-8")


def sphinx(builder: str, source: Path, target: Path) -> int:
    """Run Sphinx, its warnings errors; its exit code."""
    told = ["-b", builder, "-W", "--keep-going", "-j", str(os.cpu_count() or 1), "-q", "-d", str(BUILD / "trees")]
    where = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *told, str(source), str(target)], cwd=ROOT, env=where
    ).returncode


def main() -> int:
    """Build, and check what was built."""
    parser = argparse.ArgumentParser(prog="scripts/docs", description="Build the documentation's site.")
    parser.add_argument("folder", nargs="?", type=Path, default=BUILD / "html", help="where to [build/docs/html]")
    parser.add_argument(
        "--external", action="store_true", help="also ask every other machine that is linked; needs the internet"
    )
    parser.add_argument("--fresh", action="store_true", help="run every page and figure anew, changed or not")
    parser.add_argument(
        "--look", action="store_true", help="also open every page in Chromium, as a phone and a desk do"
    )
    asked = parser.parse_args()
    began = time.monotonic()
    if asked.fresh:
        shutil.rmtree(BUILD, ignore_errors=True)
    source, target = BUILD / "source", asked.folder.resolve()
    try:
        stage(ROOT / "docs", source)
    except FailedPages as problem:
        print(f"scripts/docs: {problem}", file=sys.stderr)
        return 1
    print(f"pages ran after {time.monotonic() - began:.0f} s", flush=True)
    if code := sphinx("html", source, target):
        return code
    if found := links.problems(target):
        print("\n".join(["scripts/docs: links that are wrong:", *found]), file=sys.stderr)
        return 1
    if asked.look and (found := look.flaws(sorted(target.rglob("*.html")))):
        print("\n".join(["scripts/docs: pages that do not fit:", *found]), file=sys.stderr)
        return 1
    if asked.external and (code := sphinx("linkcheck", source, BUILD / "linkcheck")):
        return code
    print(f"{target / 'index.html'}: {len(list(target.rglob('*.html')))} pages after {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
