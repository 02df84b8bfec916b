"""Mutants: programs that differ from the package in one expression."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}


@dataclass(frozen=True)
class Mutant:
    """One changed expression: `path` from the root, 1-based `line` and its `text`, and the code before and after."""

    path: str
    line: int
    text: str
    start: int
    end: int
    before: str
    after: str

    def applied(self, text: bytes) -> bytes:
        return text[: self.start] + self.after.encode() + text[self.end :]


def _changed(node: ast.AST) -> ast.AST | None:
    """The node with one thing other than it was, or None where nothing of it is ours to change."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        return ast.Compare(node.left, [COMPARISONS[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
    if isinstance(node, ast.BoolOp):
        return ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        return node.operand
    if isinstance(node, ast.IfExp):
        return ast.IfExp(node.test, node.orelse, node.body)
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, bool):
            return ast.Constant(not value)
        if isinstance(value, int):
            return ast.Constant(value + 1)
        if isinstance(value, float):
            return ast.Constant(value * 2 if value else 1.0)
    return None


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Expressions that run: no annotations, no texts of errors, nothing inside of f-strings, no defaults of types."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(
                child, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom
            ):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            yield child
            yield from _evaluated(child)


def mutants(path: Path) -> list[Mutant]:
    """Every mutant of a module, by position."""
    text = path.read_bytes()
    lines = text.splitlines(keepends=True)
    starts = [0]
    for each in lines:
        starts.append(starts[-1] + len(each))
    found = []
    for node in _evaluated(ast.parse(text)):
        if isinstance(node, ast.If | ast.While):
            target: ast.AST = node.test
            other: ast.AST | None = ast.UnaryOp(ast.Not(), node.test)
        else:
            target, other = node, _changed(node)
        if (
            other is None
            or not isinstance(target, ast.expr)
            or target.end_lineno is None
            or target.end_col_offset is None
        ):
            continue
        start = starts[target.lineno - 1] + target.col_offset
        end = starts[target.end_lineno - 1] + target.end_col_offset
        after = "(" + ast.unparse(ast.fix_missing_locations(other)) + ")"
        line = lines[target.lineno - 1].decode().strip()
        before = text[start:end].decode()
        found.append(Mutant(str(path.relative_to(ROOT)), target.lineno, line, start, end, before, after))
    return found


def relocated(mutant: Mutant) -> Mutant | None:
    """The same change in the code as it is now, the nearest of several; None where its line is no longer there."""
    path = ROOT / mutant.path
    same = [
        one
        for one in (mutants(path) if path.exists() else [])
        if (one.text, one.before, one.after) == (mutant.text, mutant.before, mutant.after)
    ]
    return min(same, key=lambda one: (abs(one.line - mutant.line), abs(one.start - mutant.start)), default=None)
