"""Validate public docstrings: `python -m scripts.docstrings [STAGE ...]`.

Checked are the names that a stage exports, and the public methods of exported classes. By the rules of numpydoc, each
must have a summary and document its parameters and what it returns or yields. Types are not required, as they are in
annotations.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from numpydoc.validate import validate

import dphmm

# Codes of the checked rules; see the documentation of numpydoc.
RULES = {"GL03", "GL07", "GL08", "SS01", "SS03", "PR01", "PR02", "PR07", "RT01", "RT03", "YD01"}


def iterate_exports(stage: str) -> Iterator[str]:
    """Yield the dotted names of a stage's exports and of the methods of exported classes."""
    module = importlib.import_module(f"dphmm.{stage}" if stage else "dphmm")
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if inspect.isfunction(value):
            yield f"{value.__module__}.{name}"
        elif inspect.isclass(value) and value.__module__.startswith("dphmm."):
            yield f"{value.__module__}.{name}"
            above = {name for base in value.__mro__[1:] if base.__module__.startswith("dphmm.") for name in vars(base)}
            for method, member in vars(value).items():  # overrides are documented in the base class
                if (
                    not method.startswith("_")
                    and method not in above
                    and (inspect.isfunction(member) or isinstance(member, classmethod | staticmethod))
                ):
                    yield f"{value.__module__}.{name}.{method}"


def find_flaws(name: str) -> list[tuple[str, str]]:
    """Return the rules that a docstring breaks, as pairs of code and message."""
    return [(code, message) for code, message in validate(name)["errors"] if code in RULES]


def main(stages: list[str]) -> int:
    """Print the flaws of the named stages, or of all stages. Return 1 if there are any."""
    everywhere = sorted(path.parent.name for path in Path(dphmm.__file__).parent.glob("*/__init__.py"))
    names = list(dict.fromkeys(name for stage in stages or ["", *everywhere] for name in iterate_exports(stage)))
    problems = [(name, code, message) for name in names for code, message in find_flaws(name)]
    for name, code, message in problems:
        print(f"{name}: {code} {message}")
    print(f"{len(names)} docstrings, {len({name for name, _, _ in problems})} with flaws", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
