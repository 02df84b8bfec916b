"""Pack the QGIS plugin for its repository, which requires addresses of the publisher.

Usage: python -m scripts.qgis [--url ADDRESS --email ADDRESS] [FILE]      (build/dphmm_processing.zip)
"""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path

PLUGIN = Path(__file__).with_name("dphmm_processing")
LICENCE = Path(__file__).parents[2] / "LICENSE"


def pack(to: Path, url: str | None = None, email: str | None = None) -> Path:
    """Pack a folder with the plugin's name, its licence and no compiled files."""
    metadata = (PLUGIN / "metadata.txt").read_text(encoding="utf-8")
    metadata += f"repository={url}\nhomepage={url}\ntracker={url}/issues\n" if url else ""
    metadata += f"email={email}\n" if email else ""
    to.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as file:
        for path in (LICENCE, *sorted(PLUGIN.glob("*.py"))):
            file.write(path, f"{PLUGIN.name}/{path.name}")
        file.writestr(f"{PLUGIN.name}/metadata.txt", metadata)
    return to


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url")
    parser.add_argument("--email")
    parser.add_argument("file", nargs="?", type=Path, default=Path("build/dphmm_processing.zip"))
    arguments = parser.parse_args()
    print(pack(arguments.file, arguments.url, arguments.email))
