"""The surface of the package: who may import whom, what is exported, how errors hang together."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dphmm
from dphmm import errors

PACKAGE = Path(dphmm.__file__).parent

BASE = {"errors", "arguments", "arrays", "stochastic", "tables", "threads", "compilation"}
ENGINE = BASE | {"geometry", "space", "readers", "markov", "policy", "mechanisms", "events", "release"}
JOINED = ENGINE | {"audit", "calibrate", "attack", "leakage", "landmarks", "counts", "writers"}
MAY_IMPORT = {
    "errors": set(),
    "arguments": {"errors"},
    "arrays": {"errors"},
    "stochastic": {"errors", "arrays"},
    "threads": set(),
    "compilation": set(),
    "tables": {"errors", "arguments", "arrays"},
    "geometry": BASE,
    "space": BASE | {"geometry"},
    "readers": BASE | {"space"},
    "markov": BASE | {"space"},
    "policy": BASE | {"geometry", "space"},
    "mechanisms": BASE | {"geometry"},
    "events": BASE | {"geometry", "space", "policy", "mechanisms"},
    "release": ENGINE - {"readers", "release"},
    "leakage": BASE,
    "landmarks": BASE | {"geometry", "leakage", "mechanisms"},
    "counts": BASE | {"markov", "mechanisms"},
    "audit": ENGINE,
    "calibrate": ENGINE | {"audit"},
    "attack": ENGINE | {"calibrate"},
    "writers": BASE | {"space", "release"},
    "jobs": JOINED,
    "reports": {"arguments"},
    "evaluation": JOINED | {"jobs", "reports"},
    "plots": JOINED | {"jobs", "reports", "evaluation"},
    "serve": JOINED | {"jobs"},
    "cli": JOINED | {"jobs", "reports", "evaluation", "plots", "serve"},
}
"""Stage → the stages it may import besides itself. `docs/explanation/architecture.md` says the same in words."""

MODULES = sorted(PACKAGE.rglob("*.py"))


def _stage(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement within: expressions, the most of a tree, hold no import."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from _statements(child)


def _imported_stages(path: Path) -> set[str]:
    found = set()
    for node in _statements(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [node.module or ""]
            if node.module == "dphmm":
                names = [f"dphmm.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("dphmm.")}
    return found


def test_every_stage_is_looked_at():
    assert {_stage(path) for path in MODULES} - {"__init__", "__main__"} == MAY_IMPORT.keys()


@pytest.mark.parametrize("stage", MAY_IMPORT)
def test_modules_import_only_earlier_stages(stage):
    """By module what it must not import."""
    found = {str(path.relative_to(PACKAGE)): _imported_stages(path) for path in MODULES if _stage(path) == stage}
    assert {path: names for path, stages in found.items() if (names := stages - MAY_IMPORT[stage] - {stage})} == {}


@pytest.mark.parametrize("name", dphmm.__all__)
def test_exported_name_resolves(name):
    assert getattr(dphmm, name) is not None


def test_the_package_exports_its_stages_and_what_its_stub_lists():
    stages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    (names,) = (node.value for node in stub.body if isinstance(node, ast.Assign))
    assert set(dphmm.__all__) == stages | set(ast.literal_eval(names))


def test_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = dphmm.no_such_thing


def test_every_error_stands_in_the_tree_of_the_docstring():
    found = [c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__]
    assert found
    for error in found:
        assert issubclass(error, errors.DphmmError)
        assert error.__name__ in (errors.__doc__ or "")


def test_no_module_outgrows_one_noun():
    long = {str(p.relative_to(PACKAGE)): n for p in MODULES if (n := p.read_text().count("\n")) > 450}
    assert not long


def test_importing_the_package_pulls_in_no_numerics():
    code = "import dphmm, sys; print([m for m in ('numpy', 'scipy', 'networkx', 'shapely') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_module_imports():
    for path in MODULES:
        dotted = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        if not dotted.endswith("__main__"):
            importlib.import_module(dotted)
