"""The architecture of the package: allowed imports between stages, exports, and errors."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

import dphmm
from dphmm import errors
from dphmm.cli import COMMANDS
from tests.documents import read_page

PACKAGE = Path(dphmm.__file__).parent
PAGE = read_page("architecture.md")

BASE = {
    "errors",
    "validation",
    "arrays",
    "tolerances",
    "random",
    "stochastic_matrix",
    "tables",
    "threads",
    "processes",
    "compilation",
    "caching",
    "formatting",
    "extensions",
}
ENGINE = BASE | {"geometry", "space", "readers", "model", "policy", "mechanisms", "events", "release"}
JOINED = ENGINE | {"audit", "calibrate", "attack", "leakage", "landmarks", "counts", "flows"}
JOINED |= {"writers", "hide", "certificate"}
# Stage → the other stages it may import, as in `docs/explanation/architecture.md`.
MAY_IMPORT = {
    "errors": set(),
    "validation": {"errors", "tolerances"},
    "tolerances": set(),
    "arrays": {"errors", "tolerances"},
    "random": {"errors", "arrays"},
    "stochastic_matrix": {"errors", "arrays", "tolerances"},
    "threads": set(),
    "processes": set(),
    "formatting": set(),
    "extensions": {"errors"},
    "compilation": set(),
    "caching": set(),
    "tables": {"errors", "validation", "arrays"},
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
    "hide": BASE | {"space", "model", "writers"},
    "certificate": (ENGINE - {"readers"}) | {"leakage", "counts"},
    "jobs": JOINED,
    "html_report": {"validation"},
    "evaluation": JOINED | {"jobs", "html_report"},
    "plots": JOINED | {"jobs", "html_report", "evaluation"},
    "serve": JOINED | {"jobs", "html_report", "evaluation", "plots"},
    "cli": JOINED | {"jobs", "html_report", "evaluation", "plots", "serve"},
}

MODULES = sorted(PACKAGE.rglob("*.py"))


def _get_stage(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


# Finds import statements by their lines: a hundred times faster than parsing whole modules.
_IMPORT = re.compile(r"^[ \t]*((?:from\s+[\w.]+\s+)?import\s+(?:\([^)]*\)|[^\n(]+))$", re.MULTILINE)


@cache
def _find_imports(path: Path) -> tuple[tuple[str, set[str]], ...]:
    """Every import of a module, also late or for types only, with the imported names."""
    imports: list[tuple[str, set[str]]] = []
    for statement in _IMPORT.findall(path.read_text(encoding="utf-8")):
        (node,) = ast.parse(statement).body
        if isinstance(node, ast.Import):
            imports += ((alias.name, set()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imports.append(("." * node.level + (node.module or ""), {alias.name for alias in node.names}))
    return tuple(imports)


def _list_imported_names(path: Path) -> set[str]:
    """All imported names of the package in a module, as dotted names."""
    dotted_names = {
        f"{module}.{name}".removesuffix(".") for module, names in _find_imports(path) for name in ("", *names)
    }
    assert not any(name.startswith(".") for name in dotted_names), f"{path}: imports are absolute"
    return {name for name in dotted_names if name.startswith("dphmm.")}


def _list_imported_stages(path: Path) -> set[str]:
    return {name.split(".")[1] for name in _list_imported_names(path)} & MAY_IMPORT.keys()


def _get_dotted_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


DOTTED = {_get_dotted_name(path): path for path in MODULES}


def test_every_stage_has_import_rules():
    assert {_get_stage(path) for path in MODULES} - {"__init__", "__main__"} == MAY_IMPORT.keys()


@pytest.mark.slow
def test_modules_import_only_allowed_stages():
    """Lists forbidden stages by module."""
    stages_by_path = {
        path: _list_imported_stages(path) - {_get_stage(path)} for path in MODULES if _get_stage(path) in MAY_IMPORT
    }
    wrong = {
        str(path.relative_to(PACKAGE)): stages - MAY_IMPORT[_get_stage(path)] for path, stages in stages_by_path.items()
    }
    assert {path: stages for path, stages in wrong.items() if stages} == {}


def test_imports_are_found_in_every_position(tmp_path):
    (tmp_path / "a.py").write_text(
        "import dphmm.model, os\nfrom dphmm import (\n    audit,\n    plots as drawn,\n)\n"
        "def late():\n    from dphmm.cli.options import a  # late\n"
    )
    everything = {"dphmm.model", "dphmm", "dphmm.audit", "dphmm.plots", "dphmm.cli.options", "dphmm.cli.options.a"}
    assert _list_imported_names(tmp_path / "a.py") | {"dphmm"} == everything
    assert _find_imports(PACKAGE / "compilation.py")[-1] == ("numba", set())


def _exists_in_package(name: str) -> bool:
    """Whether ``from dphmm import name`` finds a module or an exported name."""
    return f"dphmm.{name}" in DOTTED or hasattr(dphmm, name)


@pytest.mark.slow
def test_imported_modules_of_package_exist():
    """Late imports fail only when they run, and mypy may use a module of another checkout."""
    missing = {
        f"{path.relative_to(PACKAGE.parent)}: {module}"
        for folder in ("dphmm", "scripts", "tests")
        for path in (PACKAGE.parent / folder).rglob("*.py")
        for module, names in _find_imports(path)
        if module.partition(".")[0] == "dphmm"
        and (module not in DOTTED or (module == "dphmm" and not all(map(_exists_in_package, names))))
    }
    assert missing == set()


def test_imports_have_no_cycles():
    arrows = []
    for name, path in DOTTED.items():
        used = _list_imported_names(path) & DOTTED.keys() - {name}
        # `from dphmm.geometry import planar` uses the module, not the stage's `__init__`, which imports both.
        arrows += [(name, target) for target in used if not any(other.startswith(f"{target}.") for other in used)]
    circles = [
        sorted(component) for component in nx.strongly_connected_components(nx.DiGraph(arrows)) if len(component) > 1
    ]
    assert circles == []


def test_architecture_page_lists_every_file_and_is_short():
    rows = {}
    for row in re.findall(r"^\| (`.*?`) \| (.*)$", PAGE, flags=re.MULTILINE):
        names = set(re.findall(r"`(\w+)`", row[1]))
        rows |= {stage.strip("`/").removesuffix(".py"): names for stage in row[0].split(", ")}
    missing = [
        str(path.relative_to(PACKAGE))
        for path in MODULES
        if path.stem not in ("__init__", "__main__", *(COMMANDS if _get_stage(path) == "cli" else ()))
        and (path.stem not in rows if path.parent == PACKAGE else path.stem not in rows.get(_get_stage(path), ()))
    ]
    assert missing == []
    assert len(PAGE) < 12_000


def test_exported_names_exist():
    assert [name for name in dphmm.__all__ if getattr(dphmm, name, None) is None] == []


def test_package_exports_stages_and_names_of_stub():
    stages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    (names,) = (node.value for node in stub.body if isinstance(node, ast.Assign))
    assert set(dphmm.__all__) == stages | set(ast.literal_eval(names))


def test_unknown_attribute_raises():
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = dphmm.no_such_thing


def test_module_docstring_lists_every_error():
    error_classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__]
    assert error_classes
    for error in error_classes:
        assert issubclass(error, errors.DphmmError)
        assert error.__name__ in (errors.__doc__ or "")


def test_package_import_loads_no_numerical_libraries():
    code = "import dphmm, sys; print([m for m in ('numpy', 'scipy', 'networkx', 'shapely') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_commands_load_no_statistics():
    """Importing scipy.stats takes longer than any other import of `dphmm release`."""
    modules = (
        "cli",
        "jobs.release.release",
        "jobs.audit.session",
        "jobs.batch.batch",
        "jobs.hide.hide",
        "jobs.calibrate.calibrate",
    )
    imports = "; ".join(f"import dphmm.{module}" for module in (*modules, "serve.server"))
    code = f"{imports}; import sys; print([m for m in ('scipy.stats', 'scipy.ndimage') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_module_is_importable():
    for dotted in DOTTED:
        if not dotted.endswith("__main__"):
            importlib.import_module(dotted)
