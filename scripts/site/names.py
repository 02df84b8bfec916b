"""Reference of public names: tables and one page for each stage, from ``__all__``."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import dphmm

PACKAGE = Path(dphmm.__file__).parent
STAGES = sorted([*(path.parent.name for path in PACKAGE.glob("*/__init__.py")), "html_report"])


def list_exports() -> Mapping[str, list[str]]:
    """Return the public names of every stage that has some, in the order of its ``__all__``."""
    names = {stage: list(getattr(importlib.import_module(f"dphmm.{stage}"), "__all__", ())) for stage in STAGES}
    return {stage: public for stage, public in names.items() if public}


def get_description(stage: str, name: str) -> str:
    """Return the first paragraph of a public name's documentation on one line.

    For a class or function this is the docstring. For any other value it is the string after its assignment or, without
    one, the comment above it.

    Raises
    ------
    LookupError
        If the name is not documented.
    """
    value = getattr(importlib.import_module(f"dphmm.{stage}"), name)
    if inspect.isclass(value) or inspect.isroutine(value):
        text = inspect.cleandoc(value.__doc__ or "")
    else:
        text = _get_constant_description(_find_defining_file(f"dphmm.{stage}", name), name)
    # A dataclass without a docstring gets its signature as one.
    if not text or text.startswith(f"{name}("):
        raise LookupError(f"dphmm.{stage}.{name} has no description; every public name needs one")
    return " ".join(text.partition("\n\n")[0].split())


def _find_defining_file(module: str, name: str) -> Path:
    """Return the file that assigns ``name``, following the imports of ``module``."""
    path = Path(inspect.getfile(importlib.import_module(module)))
    stub = path.with_suffix(".pyi")  # packages that import their names on first use list them in a stub
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for statement in ast.parse((stub if stub.exists() else path).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom) and name in [alias.name for alias in statement.names]:
            source = importlib.util.resolve_name("." * statement.level + (statement.module or ""), package)
            return _find_defining_file(source, name)
    return path


def _get_constant_description(path: Path, name: str) -> str:
    """Return the string after an assignment or, without one, the comment above it."""
    source = path.read_text(encoding="utf-8")
    body = ast.parse(source).body
    for index, statement in enumerate(body):
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        if not any(isinstance(target, ast.Name) and target.id == name for target in targets):
            continue
        value = getattr(body[index + 1], "value", None) if index + 1 < len(body) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return inspect.cleandoc(value.value)
        comments = []
        for line in reversed(source.splitlines()[: statement.lineno - 1]):
            if not line.startswith("#"):
                break
            comments.append(line.lstrip("#: "))
        return "\n".join(reversed(comments))
    return ""


def build_pages() -> dict[str, str]:
    """Return the page of every stage: the path below ``reference`` → its reStructuredText."""
    first_shown: dict[int, str] = {}
    return {
        f"api/{stage}.rst": _build_stage_page(stage, names, first_shown) for stage, names in list_exports().items()
    } | {"api/errors.rst": "dphmm.errors\n============\n\n.. automodule:: dphmm.errors\n   :members:\n"}


def _build_stage_page(stage: str, names: list[str], first_shown: dict[int, str]) -> str:
    """Return a stage's page. Names documented on another stage's page are linked."""
    title = f"dphmm.{stage}"
    parts = [
        f"{title}\n{'=' * len(title)}\n\n.. automodule:: {title}\n   :no-members:\n\n.. py:currentmodule:: {title}\n"
    ]
    module = importlib.import_module(title)
    for name in names:
        value = getattr(module, name)
        heading = f"{name}\n{'-' * len(name)}\n\n"
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            # Not autodata: it shows neither a comment nor, for some types, the string after the assignment.
            parts.append(f"{heading}.. py:data:: {title}.{name}\n\n   {get_description(stage, name)}\n")
            continue
        first = first_shown.setdefault(id(value), f"{title}.{name}")
        if first != f"{title}.{name}":
            parts.append(f"{heading}.. py:data:: {title}.{name}\n\n   Alias of `{first}`.\n")
            continue
        directive = "autoclass" if inspect.isclass(value) else "autofunction"
        parts.append(f"{heading}.. {directive}:: {title}.{name}\n")
    return "\n".join(parts)


def with_tables(page: str) -> str:
    """Return the page of public names with a table for each stage that it lists."""
    public = list_exports()
    sections = [_build_section(stage, public[stage]) for stage in list_stages(page)]
    order = "\n".join(f"api/{stage}" for stage in [*public, "errors"])
    return "\n".join([page.rstrip("\n"), "", *sections, f"```{{toctree}}\n:hidden:\n\n{order}\n```\n"])


def list_stages(page: str) -> list[str]:
    """Return the stages in the first column of the page's table."""
    return re.findall(r"^\| `dphmm\.(\w+)` \|", page, flags=re.MULTILINE)


def _build_section(stage: str, names: list[str]) -> str:
    summary, *_ = (inspect.getdoc(importlib.import_module(f"dphmm.{stage}")) or "").splitlines()
    return "\n".join([f"## `dphmm.{stage}`\n", f"{_convert_to_markdown(summary)}\n", *_build_table(stage, names), ""])


def _build_table(stage: str, names: list[str]) -> Iterator[str]:
    yield "| name | description |\n| --- | --- |"
    for name in names:
        yield f"| {{py:obj}}`~dphmm.{stage}.{name}` | {_convert_to_markdown(get_description(stage, name))} |"


def _convert_to_markdown(text: str) -> str:
    """Return reStructuredText as Markdown for a table cell, with other marks escaped."""
    parts = re.split(r"(``.+?``|`[^`]+`)", text)
    code = [f"`{part.strip('`')}`".replace("|", r"\|") for part in parts[1::2]]
    plain = [re.sub(r"([\\*_<>\[\]|#~$])", r"\\\1", part) for part in parts[::2]]
    return "".join(part for pair in zip(plain, [*code, ""], strict=True) for part in pair)
