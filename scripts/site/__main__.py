"""Build the site: ``python -m scripts.site [--external] [FOLDER]`` (`scripts/docs`)."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scripts.site import commands, links, look, names, notebook
from scripts.site.pages import ROOT, FailedPages, run_pages, with_outputs

BUILD = ROOT / "build" / "docs"
# File in the root of the project → its name in the site.
ROOT_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
# The page that is also built as a notebook.
NOTEBOOK = "tutorial/first.md"


def stage_pages(source: Path, folder: Path) -> None:
    """Copy the documentation, with the outputs of its code and the generated pages.

    Raises
    ------
    FailedPages
        If a page's code fails or its output differs from the page.
    """
    pages = sorted(source.rglob("*.md"))
    BUILD.mkdir(parents=True, exist_ok=True)
    book = BUILD / "first.ipynb"
    # The notebook runs in its own kernel process, at the same time as the processes of the pages.
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(notebook.run, source / NOTEBOOK, book)
        outputs = run_pages(pages, BUILD / "runs")
        running.result()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    # Code of the gallery runs in its folder. The sample's README would be mistaken for another gallery.
    shutil.copytree(ROOT / "data", folder / "gallery" / "data", ignore=shutil.ignore_patterns("README.md"))
    generated = folder / "_static" / "made"
    generated.mkdir()
    for path in (BUILD / "runs").iterdir():
        if path.suffix not in (".json", ".key"):
            shutil.copyfile(path, generated / path.name)
    for page in pages:
        text = page.read_text(encoding="utf-8")
        if page in outputs:
            here = os.path.relpath(generated, (folder / page.relative_to(source)).parent)
            text = with_outputs(text, outputs[page], here)
        if page == source / NOTEBOOK:
            shutil.copyfile(book, generated / "first.ipynb")
            text += f"\nThis page is also [a notebook]({here}/first.ipynb), to be run next to the project's `data`.\n"
        if page.name == "names.md":
            text = names.with_tables(text)
        text = text.replace("gallery/README.rst)", "figures/index.rst)")
        (folder / page.relative_to(source)).write_text(text, encoding="utf-8")
    for path, text in (commands.build_pages() | names.build_pages()).items():
        (folder / "reference" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "reference" / path).write_text(text, encoding="utf-8")
    for name in ROOT_PAGES:
        text = re.sub(
            r"\]\((?:docs/)?([^)\s]+)\)",
            lambda link: f"]({ROOT_PAGES.get(link[1], link[1])})",
            (ROOT / name).read_text("utf-8"),
        )
        (folder / ROOT_PAGES[name]).write_text(text, encoding="utf-8")


def run_sphinx(builder: str, source: Path, target: Path) -> int:
    """Run Sphinx with warnings as errors and return its exit code."""
    options = ["-b", builder, "-W", "--keep-going", "-j", str(os.cpu_count() or 1), "-q", "-d", str(BUILD / "trees")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(source), str(target)], cwd=ROOT, env=environment
    ).returncode


def main() -> int:
    """Build the site and check it."""
    parser = argparse.ArgumentParser(prog="scripts/docs", description="Build the documentation site.")
    parser.add_argument("folder", nargs="?", type=Path, default=BUILD / "html", help="output folder [build/docs/html]")
    parser.add_argument("--external", action="store_true", help="also check external links; requires the internet")
    parser.add_argument("--fresh", action="store_true", help="run all pages and figures, including unchanged ones")
    parser.add_argument(
        "--look", action="store_true", help="also open every page in Chromium at phone and desktop width"
    )
    arguments = parser.parse_args()
    began = time.monotonic()
    if arguments.fresh:
        shutil.rmtree(BUILD, ignore_errors=True)
    source, target = BUILD / "source", arguments.folder.resolve()
    try:
        stage_pages(ROOT / "docs", source)
    except FailedPages as problem:
        print(f"scripts/docs: {problem}", file=sys.stderr)
        return 1
    print(f"pages ran after {time.monotonic() - began:.0f} s", flush=True)
    code = run_sphinx("html", source, target)
    if code:
        return code
    problems = links.find_problems(target)
    if problems:
        print("\n".join(["scripts/docs: broken links:", *problems]), file=sys.stderr)
        return 1
    problems = look.find_flaws(sorted(target.rglob("*.html"))) if arguments.look else []
    if problems:
        print("\n".join(["scripts/docs: pages with layout problems:", *problems]), file=sys.stderr)
        return 1
    code = run_sphinx("linkcheck", source, BUILD / "linkcheck") if arguments.external else 0
    if code:
        return code
    print(f"{target / 'index.html'}: {len(list(target.rglob('*.html')))} pages after {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
