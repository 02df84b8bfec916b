"""Every public name with its documentation, out of each stage's ``__all__``."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from pathlib import Path

import dphmm

STAGES = sorted(path.parent.name for path in Path(dphmm.__file__).parent.glob("*/__init__.py"))


def exported() -> Mapping[str, list[str]]:
    """Stage → its public names."""
    found = {stage: list(getattr(importlib.import_module(f"dphmm.{stage}"), "__all__", ())) for stage in STAGES}
    return {stage: names for stage, names in found.items() if names}


def pages() -> dict[str, str]:
    """The pages on stages: the path below ``reference`` → its reStructuredText."""
    seen: dict[int, str] = {}
    return {f"api/{stage}.rst": _stage(stage, names, seen) for stage, names in exported().items()} | {
        "api/errors.rst": "dphmm.errors\n============\n\n.. automodule:: dphmm.errors\n   :members:\n"
    }


def _stage(stage: str, names: list[str], seen: dict[int, str]) -> str:
    """A stage's page; what was shown on another stage's page is pointed to."""
    title = f"dphmm.{stage}"
    parts = [
        f"{title}\n{'=' * len(title)}\n\n.. automodule:: {title}\n   :no-members:\n\n.. py:currentmodule:: {title}\n"
    ]
    module = importlib.import_module(title)
    for name in names:
        value = getattr(module, name)
        kind = "autoclass" if inspect.isclass(value) else "autofunction" if inspect.isroutine(value) else "autodata"
        first = seen.setdefault(id(value), f"{title}.{name}") if kind != "autodata" else f"{title}.{name}"
        if first != f"{title}.{name}":
            parts.append(f"{name}\n{'-' * len(name)}\n\n.. py:data:: {title}.{name}\n\n   The same as `{first}`.\n")
            continue
        parts.append(
            f"{name}\n{'-' * len(name)}\n\n.. {kind}:: {title}.{name}\n"
            + ("   :no-value:\n" if kind == "autodata" else "")
        )
    return "\n".join(parts)


def linked(overview: str) -> str:
    """The overview of names, each a link to its documentation."""
    stage = ""
    lines = []
    for line in overview.splitlines():
        heading = re.fullmatch(r"## `dphmm\.(\w+)`", line)
        stage = heading[1] if heading else stage
        lines.append(re.sub(r"^\| `(\w+)` \|", rf"| {{py:obj}}`~dphmm.{stage}.\1` |", line))
    order = "\n".join(f"api/{stage}" for stage in [*exported(), "errors"])
    return "\n".join(lines) + f"\n\n```{{toctree}}\n:hidden:\n\n{order}\n```\n"
