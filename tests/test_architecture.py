"""The surface of the package: who may import whom, what is exported, how errors hang together."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

import dphmm
from dphmm import errors
from dphmm.cli import COMMANDS
from tests.documents import page

PACKAGE = Path(dphmm.__file__).parent
PAGE = page("architecture.md")

BASE = {"errors", "arguments", "arrays", "stochastic", "tables", "threads", "compilation", "facts"}
ENGINE = BASE | {"geometry", "space", "readers", "model", "policy", "mechanisms", "events", "release"}
JOINED = ENGINE | {"audit", "calibrate", "attack", "leakage", "landmarks", "counts", "flows", "writers", "certificate"}
MAY_IMPORT = {
    "errors": set(),
    "arguments": {"errors"},
    "arrays": {"errors"},
    "stochastic": {"errors", "arrays"},
    "threads": set(),
    "facts": set(),
    "compilation": set(),
    "tables": {"errors", "arguments", "arrays"},
    "geometry": BASE,
    "space": BASE | {"geometry"},
    "readers": BASE | {"space"},
    "model": BASE | {"space"},
    "policy": BASE | {"geometry", "space"},
    "mechanisms": BASE | {"geometry"},
    "events": BASE | {"geometry", "space", "model", "policy", "mechanisms"},
    "release": ENGINE - {"readers", "release"},
    "leakage": BASE,
    "landmarks": BASE | {"geometry", "leakage", "mechanisms"},
    "counts": BASE | {"model", "mechanisms"},
    "flows": BASE | {"space", "model", "policy", "mechanisms", "landmarks"},
    "audit": ENGINE,
    "calibrate": ENGINE | {"audit"},
    "attack": ENGINE | {"calibrate"},
    "writers": BASE | {"space", "release", "flows"},
    "certificate": (ENGINE - {"readers"}) | {"leakage", "counts"},
    "jobs": JOINED,
    "reports": {"arguments"},
    "evaluation": JOINED | {"jobs", "reports"},
    "plots": JOINED | {"jobs", "reports", "evaluation"},
    "serve": JOINED | {"jobs", "reports", "evaluation", "plots"},
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


def _imports(path: Path) -> Iterator[tuple[str, set[str]]]:
    """Every module that a module imports, at its top, late or for types alone, and the names that it takes of it."""
    for node in _statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, set()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), {alias.name for alias in node.names}


def _imported(path: Path) -> set[str]:
    """Everything of the package that a module imports, by dotted names."""
    found = {f"{module}.{name}".removesuffix(".") for module, names in _imports(path) for name in ("", *names)}
    assert not any(name.startswith(".") for name in found), f"{path}: imports are absolute"
    return {name for name in found if name.startswith("dphmm.")}


def _imported_stages(path: Path) -> set[str]:
    return {name.split(".")[1] for name in _imported(path)} & MAY_IMPORT.keys()


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def test_every_stage_is_looked_at():
    assert {_stage(path) for path in MODULES} - {"__init__", "__main__"} == MAY_IMPORT.keys()


@pytest.mark.parametrize("stage", MAY_IMPORT)
def test_modules_import_only_earlier_stages(stage):
    """By module what it must not import."""
    found = {str(path.relative_to(PACKAGE)): _imported_stages(path) for path in MODULES if _stage(path) == stage}
    assert {path: names for path, stages in found.items() if (names := stages - MAY_IMPORT[stage] - {stage})} == {}


def _is_there(name: str) -> bool:
    """Whether ``from dphmm import name`` finds a module or an exported name."""
    return f"dphmm.{name}" in set(map(_dotted, MODULES)) or hasattr(dphmm, name)


@pytest.mark.parametrize("folder", ["dphmm", "scripts", "tests"])
def test_what_is_imported_of_the_package_is_a_file_of_it(folder):
    """Late imports too, which fail only when they are reached; mypy may find a deleted module in another checkout."""
    modules = {_dotted(path) for path in MODULES}
    found = {
        f"{path.relative_to(PACKAGE.parent)}: {module}"
        for path in (PACKAGE.parent / folder).rglob("*.py")
        for module, names in _imports(path)
        if module.partition(".")[0] == "dphmm"
        and (module not in modules or (module == "dphmm" and not all(map(_is_there, names))))
    }
    assert found == set()


def test_no_modules_import_each_other_in_a_circle():
    modules = {_dotted(path): path for path in MODULES}
    arrows = []
    for name, path in modules.items():
        used = _imported(path) & modules.keys() - {name}
        # `from dphmm.geometry import planar` uses the module, not the stage's face, which imports both.
        arrows += [(name, one) for one in used if not any(other.startswith(f"{one}.") for other in used)]
    circles = [sorted(one) for one in nx.strongly_connected_components(nx.DiGraph(arrows)) if len(one) > 1]
    assert circles == []


def test_the_page_on_architecture_names_every_file_in_its_stage_and_fits_on_two_screens():
    rows = {}
    for row in re.findall(r"^\| (`.*?`) \| (.*)$", PAGE, flags=re.MULTILINE):
        names = set(re.findall(r"`(\w+)`", row[1]))
        rows |= {stage.strip("`/").removesuffix(".py"): names for stage in row[0].split(", ")}
    missing = [
        str(path.relative_to(PACKAGE))
        for path in MODULES
        if path.stem not in ("__init__", "__main__", *(COMMANDS if _stage(path) == "cli" else ()))
        and (path.stem not in rows if path.parent == PACKAGE else path.stem not in rows.get(_stage(path), ()))
    ]
    assert missing == []
    assert len(PAGE) < 12_000


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


def test_importing_the_package_pulls_in_no_numerics():
    code = "import dphmm, sys; print([m for m in ('numpy', 'scipy', 'networkx', 'shapely') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_module_imports():
    for path in MODULES:
        if not (dotted := _dotted(path)).endswith("__main__"):
            importlib.import_module(dotted)
