"""Validate the docstrings of everything public with numpydoc's own rules: `python -m scripts.docstrings [STAGE ...]`.

Public is what a stage exports, and the public methods of exported classes. Each must document its parameters, what it
returns or yields, and say what it does in a first sentence. Types stand in annotations, so they are not asked for.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from numpydoc.validate import validate

import dphmm

RULES = {"GL03", "GL07", "GL08", "SS01", "SS03", "PR01", "PR02", "PR07", "RT01", "RT03", "YD01"}
"""The codes of numpydoc that are held: see its documentation for each."""


def exported(stage: str) -> Iterator[str]:
    """Yield the dotted names of what a stage exports, and of the methods of exported classes."""
    module = importlib.import_module(f"dphmm.{stage}" if stage else "dphmm")
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if inspect.isfunction(value):
            yield f"{value.__module__}.{name}"
        elif inspect.isclass(value) and value.__module__.startswith("dphmm."):
            yield f"{value.__module__}.{name}"
            above = {name for base in value.__mro__[1:] if base.__module__.startswith("dphmm.") for name in vars(base)}
            for method, found in vars(value).items():  # what overrides is documented where it is first defined
                if (
                    not method.startswith("_")
                    and method not in above
                    and (inspect.isfunction(found) or isinstance(found, classmethod | staticmethod))
                ):
                    yield f"{value.__module__}.{name}.{method}"


def flaws(name: str) -> list[tuple[str, str]]:
    """Return the rules that a docstring breaks, as pairs of code and message."""
    return [(code, message) for code, message in validate(name)["errors"] if code in RULES]


def main(stages: list[str]) -> int:
    """Print every flaw of the stages, all of them unless some are named; return 1 where there is one."""
    everywhere = sorted(path.parent.name for path in Path(dphmm.__file__).parent.glob("*/__init__.py"))
    names = list(dict.fromkeys(name for stage in stages or ["", *everywhere] for name in exported(stage)))
    found = [(name, code, message) for name in names for code, message in flaws(name)]
    for name, code, message in found:
        print(f"{name}: {code} {message}")
    print(f"{len(names)} docstrings, {len({name for name, _, _ in found})} with flaws", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
