"""Builds a release, checks it, and tries it in an empty environment.

Usage: python -m scripts.release [--url ADDRESS] [--publish FOLDER]      (in the environment of scripts/environment dev)

The version is `dphmm.__version__`; the changelog and CITATION.cff must have it. What is committed is built. With --url,
where the project stands (as on GitHub), README's links and pictures become absolute, so that a package index shows
them, and the metadata name the address. The sdist and the wheel are built twice and must be equal bit for bit (times
are those of the last commit). The wheel is installed with constraints.txt into an empty environment, where it hides a
home. Beside both stands a list of what was installed there (CycloneDX 1.5) and SHA256SUMS. With --publish they are
copied into FOLDER as an index for `pip install --index-url file://FOLDER/simple`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import dphmm

ROOT = Path(__file__).parents[1]
LICENCES = {
    "LICENSE",
    "dphmm/vendor/leaflet/LICENSE",
    "dphmm/vendor/leaflet-geoman/LICENSE",
    "dphmm/space/ground/README.md",
}
LISTED = """
import json
from importlib.metadata import distributions
parts = []
for one in sorted(distributions(), key=lambda one: one.name.lower()):
    licence = one.metadata.get("License-Expression") or one.metadata.get("License") or ""
    part = {"type": "library", "name": one.name, "version": one.version}
    part["purl"] = f"pkg:pypi/{one.name.lower()}@{one.version}"
    if licence.strip():
        part["licenses"] = [{"license": {"name": licence.splitlines()[0][:80]}}]
    parts.append(part)
print(json.dumps(parts))
"""


def run(*command: str | Path, **settings: object) -> str:
    """What a command says; its failure ends the release."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True, **settings)  # type: ignore[call-overload]
    return str(done.stdout)


def check_version() -> str:
    """The version, which the changelog and the citation have."""
    version = dphmm.__version__
    for name, wanted in (
        ("CHANGELOG.md", rf"^## {re.escape(version)}\b"),
        ("CITATION.cff", rf"^version: {re.escape(version)}$"),
    ):
        if not re.search(wanted, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE):
            sys.exit(f"{name} does not have version {version}; write its section, or correct it")
    return version


def sums(folder: Path) -> dict[str, str]:
    """File → SHA-256."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def addressed(tree: Path, url: str, version: str) -> None:
    """Make the links of README absolute, and name the address in the metadata."""
    readme, project, at = tree / "README.md", tree / "pyproject.toml", f"v{version}"

    def absolute(link: re.Match[str]) -> str:
        return f"]({url}/{'raw' if link[1].endswith('.png') else 'blob'}/{at}/{link[1]}"

    text = readme.read_text(encoding="utf-8")
    readme.write_text(re.sub(r"\]\((?!\w+:|#)([^)#\s]+)", absolute, text), encoding="utf-8")
    urls = f'[project.urls]\nSource = "{url}"\nChangelog = "{url}/blob/{at}/CHANGELOG.md"\nIssues = "{url}/issues"\n'
    text = project.read_text(encoding="utf-8")
    project.write_text(text.replace("[project.urls]\n", urls), encoding="utf-8")


def build(folder: Path, url: str | None, version: str) -> dict[str, str]:
    """Build the sdist and the wheel of what is committed; file → SHA-256."""
    epoch = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    with tempfile.TemporaryDirectory() as place:
        tree, packed = Path(place) / "tree", Path(place) / "tree.tar"
        run("git", "archive", "-o", packed, "HEAD", cwd=ROOT)
        shutil.unpack_archive(packed, tree)  # our own: filters came with Python 3.11.4
        if url is not None:
            addressed(tree, url.rstrip("/"), version)
        settings = {"cwd": tree, "env": {**os.environ, "SOURCE_DATE_EPOCH": epoch}}
        run(sys.executable, "-m", "hatchling", "build", "--directory", folder.resolve(), **settings)
    return sums(folder)


def tried(wheel: Path, folder: Path) -> list[dict[str, object]]:
    """Install the wheel into an empty environment, hide a home there, and list what is installed."""
    run(sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
    said = ("ride.gpx", "--near", "45.01,-30.01", "--within", "500m", "-o", "public.gpx")
    shutil.copy(ROOT / "data" / "sample" / "ride.gpx", folder)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run(python, "-m", "dphmm", "hide", *said, cwd=folder, env=environment)
    held = run(python, "-I", "-c", "from importlib.metadata import files; print(*files('dphmm'), sep='\\n')")
    missing = {
        name for name in LICENCES if not re.search(rf"dist-info/licenses/{re.escape(name)}$", held, re.MULTILINE)
    }
    if missing:
        sys.exit(f"the wheel's metadata lack the licences {sorted(missing)}; see license-files in pyproject.toml")
    found: list[dict[str, object]] = json.loads(run(python, "-I", "-c", LISTED))
    return found


def publish(made: Path, folder: Path) -> None:
    """Copy the files into a folder that pip takes for an index."""
    shown = folder / "simple" / "dphmm"
    shown.mkdir(parents=True, exist_ok=True)
    for path in made.iterdir():
        shutil.copy(path, shown)
    links = (
        f'<a href="{name}#sha256={sha}">{name}</a><br>'
        for name, sha in sums(shown).items()
        if name.startswith("dphmm-") and "sbom" not in name
    )
    (shown / "index.html").write_text("<!DOCTYPE html>\n" + "\n".join(links) + "\n", encoding="utf-8")


def main() -> None:
    """Build, check, try and, when asked, publish."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", metavar="ADDRESS")
    parser.add_argument("--publish", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    version, made = check_version(), ROOT / "dist"
    shutil.rmtree(made, ignore_errors=True)
    built = build(made, given.url, version)
    with tempfile.TemporaryDirectory() as folder:
        if build(Path(folder) / "again", given.url, version) != built:
            sys.exit("two builds differ; find what they took from the clock or the machine")
        (wheel,) = made.glob("*.whl")
        parts = tried(wheel, Path(folder))
    told = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": parts}
    (made / f"dphmm-{version}.sbom.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    lines = (f"{sha}  {name}\n" for name, sha in sums(made).items())
    (made / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    if given.publish:
        publish(made, given.publish)
    print((made / "SHA256SUMS").read_text(encoding="utf-8"), end="")


if __name__ == "__main__":
    main()
