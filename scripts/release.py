"""Build a release, check it, and test it in an empty environment.

Usage: python -m scripts.release [--url ADDRESS] [--publish FOLDER]      (in the environment of scripts/environment dev)

The version is `dphmm.__version__`. The changelog and CITATION.cff must contain it. Committed files are built. --url is
the address of the project (such as on GitHub): links and pictures of README become absolute for the package index, and
the metadata contain the address. The sdist and the wheel are built twice and must be identical (file times are those
of the last commit). The wheel is installed with constraints.txt into an empty environment, in which it hides a home.
A list of the packages installed there (CycloneDX 1.5) and SHA256SUMS are added to the output. With --publish, all files
are copied into FOLDER as an index for `pip install --index-url file://FOLDER/simple`.
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
for package in sorted(distributions(), key=lambda package: package.name.lower()):
    licence = package.metadata.get("License-Expression") or package.metadata.get("License") or ""
    part = {"type": "library", "name": package.name, "version": package.version}
    part["purl"] = f"pkg:pypi/{package.name.lower()}@{package.version}"
    if licence.strip():
        part["licenses"] = [{"license": {"name": licence.splitlines()[0][:80]}}]
    parts.append(part)
print(json.dumps(parts))
"""


def run(*command: str | Path, **settings: object) -> str:
    """Return the output of a command. A failure ends the release."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True, **settings)  # type: ignore[call-overload]
    return str(done.stdout)


def check_version() -> str:
    """Return the version, which the changelog and the citation must contain."""
    version = dphmm.__version__
    for name, wanted in (
        ("CHANGELOG.md", rf"^## {re.escape(version)}\b"),
        ("CITATION.cff", rf"^version: {re.escape(version)}$"),
    ):
        if not re.search(wanted, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE):
            sys.exit(f"{name} does not contain version {version}: add or correct it")
    return version


def compute_sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 digest of each file in a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def set_address(tree: Path, url: str, version: str) -> None:
    """Make the links of README absolute and add the address to the metadata."""
    readme = tree / "README.md"
    project = tree / "pyproject.toml"
    at = f"v{version}"

    def make_absolute(link: re.Match[str]) -> str:
        return f"]({url}/{'raw' if link[1].endswith('.png') else 'blob'}/{at}/{link[1]}"

    text = readme.read_text(encoding="utf-8")
    readme.write_text(re.sub(r"\]\((?!\w+:|#)([^)#\s]+)", make_absolute, text), encoding="utf-8")
    urls = f'[project.urls]\nSource = "{url}"\nChangelog = "{url}/blob/{at}/CHANGELOG.md"\nIssues = "{url}/issues"\n'
    text = project.read_text(encoding="utf-8")
    project.write_text(text.replace("[project.urls]\n", urls), encoding="utf-8")


def build(folder: Path, url: str | None, version: str) -> dict[str, str]:
    """Build the sdist and the wheel of the committed files. Return file → SHA-256."""
    epoch = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    with tempfile.TemporaryDirectory() as place:
        tree, packed = Path(place) / "tree", Path(place) / "tree.tar"
        run("git", "archive", "-o", packed, "HEAD", cwd=ROOT)
        shutil.unpack_archive(packed, tree)  # a trusted archive: `filter` requires Python 3.11.4
        if url is not None:
            set_address(tree, url.rstrip("/"), version)
        settings = {"cwd": tree, "env": {**os.environ, "SOURCE_DATE_EPOCH": epoch}}
        run(sys.executable, "-m", "hatchling", "build", "--directory", folder.resolve(), **settings)
    return compute_sums(folder)


def test_wheel(wheel: Path, folder: Path) -> list[dict[str, object]]:
    """Install the wheel into an empty environment, hide a home, and list the packages."""
    run(sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
    options = ("ride.gpx", "--near", "45.01,-30.01", "--within", "500m", "-o", "public.gpx")
    shutil.copy(ROOT / "data" / "sample" / "ride.gpx", folder)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run(python, "-m", "dphmm", "hide", *options, cwd=folder, env=environment)
    installed = run(python, "-I", "-c", "from importlib.metadata import files; print(*files('dphmm'), sep='\\n')")
    missing = {
        name for name in LICENCES if not re.search(rf"dist-info/licenses/{re.escape(name)}$", installed, re.MULTILINE)
    }
    if missing:
        sys.exit(f"the wheel's metadata lack the licences {sorted(missing)}: see license-files in pyproject.toml")
    parts: list[dict[str, object]] = json.loads(run(python, "-I", "-c", LISTED))
    return parts


def publish(dist: Path, folder: Path) -> None:
    """Copy the files into a folder that pip can use as an index."""
    shown = folder / "simple" / "dphmm"
    shown.mkdir(parents=True, exist_ok=True)
    for path in dist.iterdir():
        shutil.copy(path, shown)
    links = (
        f'<a href="{name}#sha256={sha}">{name}</a><br>'
        for name, sha in compute_sums(shown).items()
        if name.startswith("dphmm-") and "sbom" not in name
    )
    (shown / "index.html").write_text("<!DOCTYPE html>\n" + "\n".join(links) + "\n", encoding="utf-8")


def main() -> None:
    """Build, check, test and, with ``--publish``, publish."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", metavar="ADDRESS")
    parser.add_argument("--publish", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    version, dist = check_version(), ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    built = build(dist, arguments.url, version)
    with tempfile.TemporaryDirectory() as folder:
        if build(Path(folder) / "again", arguments.url, version) != built:
            sys.exit("two builds differ: find what depends on the clock or the machine")
        (wheel,) = dist.glob("*.whl")
        parts = test_wheel(wheel, Path(folder))
    bill = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": parts}
    (dist / f"dphmm-{version}.sbom.json").write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
    lines = (f"{sha}  {name}\n" for name, sha in compute_sums(dist).items())
    (dist / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    if arguments.publish:
        publish(dist, arguments.publish)
    print((dist / "SHA256SUMS").read_text(encoding="utf-8"), end="")


if __name__ == "__main__":
    main()
