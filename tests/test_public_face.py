"""Public names of every stage: documented, exported once, and hiding no module."""

from __future__ import annotations

import pkgutil
from types import ModuleType

import pytest

import dphmm
from scripts.site import names
from tests.documents import read_page

# Modules of jobs with the same name as a job: `dphmm.jobs.hide` is the function.
HIDDEN_MODULES = {f"dphmm.jobs.{name}" for name in ("attack", "batch", "calibrate", "flows", "hide", "release")}

MODULES = sorted(
    module.name for module in pkgutil.walk_packages(dphmm.__path__, "dphmm.") if not module.name.endswith("__main__")
)
EXPORTED = names.list_exports()


def get_sort_key(name: str) -> tuple[int, str]:
    """Sort key of `__all__` (RUF022): constants, then classes, then functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def test_every_public_name_resolves_and_is_documented():
    missing = []
    for stage, public in EXPORTED.items():
        for name in public:
            try:
                names.get_description(stage, name)
            except LookupError as problem:
                missing.append(str(problem))
    assert missing == []


def test_name_without_documentation_raises(monkeypatch):
    def undocumented():
        pass

    monkeypatch.setattr("dphmm.space.Grid", undocumented)
    with pytest.raises(LookupError, match=r"dphmm\.space\.Grid has no description"):
        names.get_description("space", "Grid")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ('LIMIT = 1\n"""Largest number of rows."""\n', "Largest number of rows."),
        ("# Largest number\n# of rows.\nLIMIT: int = 1\n", "Largest number\nof rows."),
        ("LIMIT = 1\n", ""),
    ],
    ids=["string", "comment", "none"],
)
def test_constant_is_described_by_string_or_comment(tmp_path, source, text):
    (tmp_path / "module.py").write_text(source)
    assert names._get_constant_description(tmp_path / "module.py", "LIMIT") == text


def test_exports_are_sorted_and_unique():
    assert {stage: sorted(set(public), key=get_sort_key) for stage, public in EXPORTED.items()} == EXPORTED


def test_reference_page_lists_every_stage_with_exports():
    assert sorted(names.list_stages(read_page("names.md"))) == sorted(EXPORTED)


@pytest.mark.slow
def test_built_reference_page_has_row_for_every_public_name():
    rows = names.with_tables(read_page("names.md")).splitlines()
    for stage, public in EXPORTED.items():
        for name in public:
            assert sum(row.startswith(f"| {{py:obj}}`~dphmm.{stage}.{name}` | ") for row in rows) == 1, name


def test_exported_names_hide_no_module_except_jobs():
    hidden = {f"dphmm.{stage}.{name}" for stage, public in EXPORTED.items() for name in public} & set(MODULES)
    assert hidden == HIDDEN_MODULES


def test_import_as_gives_module_unless_hidden():
    namespace: dict[str, object] = {}
    hidden = set()
    for dotted in MODULES:
        if any(dotted.startswith(f"{module}.") for module in HIDDEN_MODULES):
            continue
        exec(f"import {dotted} as imported", namespace)
        if not isinstance(namespace["imported"], ModuleType):
            hidden.add(dotted)
    assert hidden == HIDDEN_MODULES
