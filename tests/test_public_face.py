"""The public face of every stage: `__all__` names what the documentation lists, and no name hides a module."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

import dphmm
from tests.documents import page

PACKAGE = Path(dphmm.__file__).parent
PAGE = page("names.md")

NOT_LISTED_YET: set[str] = set()
"""Stages whose public names docs/reference/names.md does not list yet."""

HIDDEN_MODULES: set[str] = set()
"""Modules that a function of the same name hides, until they move."""

MODULES = sorted(
    found.name for found in pkgutil.walk_packages(dphmm.__path__, "dphmm.") if not found.name.endswith("__main__")
)
STAGES = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def listed() -> dict[str, list[str]]:
    """Stage → the names in its section's table, in order; a row without a description is no row."""
    sections = re.split(r"^## `dphmm\.(\w+)`$", PAGE, flags=re.MULTILINE)[1:]
    return {
        stage: re.findall(r"^\| `(\w+)` \| \S.*\|$", text, flags=re.MULTILINE)
        for stage, text in zip(sections[::2], sections[1::2], strict=True)
    }


def exported(stage: str) -> list[str]:
    return list(getattr(importlib.import_module(f"dphmm.{stage}"), "__all__", ()))


EXPORTS = [(stage, name) for stage in STAGES for name in exported(stage)]


def described(stage: str, name: str) -> bool:
    """Whether a class or function has a docstring, or the constant's assignment a string under it."""
    value = getattr(importlib.import_module(f"dphmm.{stage}"), name)
    if inspect.isclass(value) or inspect.isroutine(value):
        return bool((value.__doc__ or "").strip())
    for path in (PACKAGE / stage).glob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for statement, following in pairwise(body):
            targets = getattr(statement, "targets", [getattr(statement, "target", None)])
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                text = getattr(following, "value", None)
                return isinstance(text, ast.Constant) and isinstance(text.value, str)
    return False


def rank(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, each by the alphabet: as ruff sorts `__all__` (RUF022)."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


@pytest.mark.parametrize("stage", STAGES)
def test_exported_names_resolve_and_are_described(stage):
    assert [name for name in exported(stage) if not described(stage, name)] == [], "without a docstring"


@pytest.mark.parametrize("stage", STAGES)
def test_exports_are_sorted_and_listed_once(stage):
    names = exported(stage)
    assert names == sorted(set(names), key=rank)


@pytest.mark.parametrize("stage", sorted(listed()))
def test_exports_are_the_names_that_the_reference_page_lists(stage):
    assert listed()[stage] == exported(stage)


def test_every_stage_that_exports_names_has_a_section():
    exporting = {stage for stage, _ in EXPORTS}
    assert exporting - set(listed()) <= NOT_LISTED_YET
    assert not NOT_LISTED_YET & set(listed()), "these stages have a section now; take them from the list"


def hidden_by_exports() -> set[str]:
    return {f"dphmm.{stage}.{name}" for stage, name in EXPORTS} & set(MODULES)


def test_no_exported_name_is_that_of_a_module_beside_it():
    assert hidden_by_exports() == HIDDEN_MODULES


def test_importing_a_module_as_a_name_gives_the_module():
    space: dict[str, object] = {}
    hidden = set()
    for dotted in MODULES:
        exec(f"import {dotted} as found", space)
        if not isinstance(space["found"], ModuleType):
            hidden.add(dotted)
    assert hidden == HIDDEN_MODULES
