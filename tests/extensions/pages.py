"""Extensions outside the package: the files of pages, with metadata of a distribution."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def read_file(page: str, name: str) -> str:
    """Return the content of the file that a page of how-to guides contains."""
    text = (ROOT / "docs" / "how-to" / page).read_text()
    match = re.search(rf"<!-- file: {re.escape(name)} -->\n```python\n(.*?)```", text, re.DOTALL)
    assert match is not None, f"{page} must contain {name}"
    return match[1]


def install(folder: Path, module: str, code: str, group: str, name: str, target: str) -> None:
    """Write a module and the metadata of a distribution with one entry point to a folder."""
    (folder / f"{module}.py").write_text(code)
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:{target}\n")
    importlib.invalidate_caches()


def forget(module: str) -> None:
    """Remove a module from those that are imported."""
    sys.modules.pop(module, None)
