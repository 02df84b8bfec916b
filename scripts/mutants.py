"""Would the tests notice? Changes one operator, comparison, constant or branch at a time and runs the tests on it.

Every mutant is a copy of the package in which one expression differs. All tests run once, to see which of them reach
which line; each mutant then meets those that reach its line, those of its own stage first, until one fails: it is
killed. One that no test kills is printed; it is an equal program, one that is only slower, or a gap in the tests.

Usage: python scripts/mutants.py [--count 300] [--seed 1] [--stages geometry,policy] [--workers 2] [--json FILE]
"""

from __future__ import annotations

import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue

import click
from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[1]
STAGES = "geometry,policy,mechanisms,markov,release,leakage"
LEFT_OUT = (".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__")
PATIENCE_S = 900.0
"""Seconds after which the tests of a mutant count as hanging, which kills it."""

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

NOT_FOUND = (4, 5)
"""Exit codes of pytest where it does not find the tests that it is to run."""
NOT_OURS = (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Mutant:
    """One changed expression: `path` from the root, 1-based `line`, and the text before and after."""

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def applied(self, text: bytes) -> bytes:
        return text[: self.start] + self.after.encode() + text[self.end :]


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant, and how many tests reach its line."""

    mutant: Mutant
    killed: bool
    tests: int
    seconds: float


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
    for line in lines:
        starts.append(starts[-1] + len(line))
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
        found.append(Mutant(str(path.relative_to(ROOT)), target.lineno, start, end, text[start:end].decode(), after))
    return found


def sample(stages: list[str], count: int, seed: int) -> list[Mutant]:
    """`count` mutants drawn without replacement from all of the stages, in the order of their places."""
    paths = [path for stage in stages for path in sorted((ROOT / "dphmm" / stage).rglob("*.py"))]
    everything = [mutant for path in paths for mutant in mutants(path)]
    chosen = random.Random(seed).sample(everything, min(count, len(everything)))
    return sorted(chosen, key=lambda mutant: (mutant.path, mutant.start))


class Reach:
    """Which tests run which line, from one run of all of them that measured its coverage by test."""

    def __init__(self, tree: Path, workers: int) -> None:
        arguments = ["-n", str(workers), "--cov", "--cov-context=test", "--cov-report="]
        if _ran(tree, arguments, 5 * PATIENCE_S) != 0:
            raise click.ClickException("the tests fail without any mutant; mend them first")
        self.tree, self.data = tree, CoverageData(str(tree / ".coverage"))
        self.data.read()

    def tests(self, mutant: Mutant) -> list[str]:
        """Those that run the line; where a line runs at import or is compiled, those that run any of its module."""
        by_line = self.data.contexts_by_lineno(str(self.tree / mutant.path))
        found = {test for test in by_line.get(mutant.line, []) if test}
        found = found or {test for tests in by_line.values() for test in tests if test}
        stage = Path(mutant.path).parts[1]
        names = {name.rsplit("|", 1)[0] for name in found}
        near = [name for name in sorted(names) if name.startswith((f"tests/{stage}/", f"dphmm/{stage}/"))]
        return near + sorted(names.difference(near)) or [f"tests/{stage}"]


def _ran(tree: Path, arguments: list[str], patience: float) -> int:
    """The exit code of pytest; that of tests that fail for those that hang."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.Popen(
        command + arguments,
        cwd=tree,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return run.wait(patience)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, 9)
        run.wait()
        return 1


def tried(tree: Path, mutant: Mutant, tests: list[str]) -> Verdict:
    """Runs tests on a copy of the project in which the mutant stands, and leaves the copy as it was."""
    began = time.monotonic()
    path = tree / mutant.path
    original = path.read_bytes()
    path.write_bytes(mutant.applied(original))
    names = tree / "tests-of-the-mutant.txt"
    names.write_text("\n".join(tests) + "\n")
    arguments = ["-n", "0", f"@{names.name}"]
    try:
        code = _ran(tree, arguments, PATIENCE_S)
    finally:
        path.write_bytes(original)
    if code in NOT_FOUND and _ran(tree, [*arguments, "--collect-only"], PATIENCE_S) != 0:
        raise RuntimeError(f"pytest does not find {tests[:3]} ...")  # a mutant that cannot be imported hides them, too
    return Verdict(mutant, code != 0, len(tests), time.monotonic() - began)


def _copy(folder: Path) -> Path:
    return Path(shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*LEFT_OUT)))


@click.command(help=__doc__)
@click.option("--count", default=300, show_default=True, help="How many mutants.")
@click.option("--seed", default=1, show_default=True, help="Which ones.")
@click.option("--stages", default=STAGES, show_default=True, help="Folders of the package, with commas.")
@click.option("--workers", default=os.cpu_count() or 1, show_default=True, help="Copies of the project at work.")
@click.option("--json", "to", type=click.Path(path_type=Path), help="Every mutant and what killed it, to this file.")
def main(count: int, seed: int, stages: str, workers: int, to: Path | None) -> None:
    chosen = sample(stages.split(","), count, seed)
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        free: Queue[Path] = Queue()
        for worker in range(workers):
            free.put(_copy(Path(folder) / str(worker)))
        print("Running every test once, to see what it reaches ...", flush=True)
        reach = Reach(Path(folder) / "0", workers)

        def one(mutant: Mutant, tests: list[str]) -> Verdict:
            tree = free.get()
            try:
                return tried(tree, mutant, tests)
            finally:
                free.put(tree)

        with ThreadPoolExecutor(workers) as pool:
            for done in as_completed(pool.submit(one, mutant, reach.tests(mutant)) for mutant in chosen):
                verdict = done.result()
                verdicts.append(verdict)
                mutant = verdict.mutant
                fate = f"{'killed' if verdict.killed else 'SURVIVED'} ({verdict.tests} tests, {verdict.seconds:.0f} s)"
                print(f"{len(verdicts):>4}/{len(chosen)} {mutant.path}:{mutant.line} {fate}", flush=True)
                if not verdict.killed:
                    print(f"        {mutant.before!r} -> {mutant.after!r}", flush=True)
                if to:
                    to.write_text(json.dumps([asdict(verdict) for verdict in verdicts], indent=1) + "\n")
    killed = sum(verdict.killed for verdict in verdicts)
    print(f"{killed} of {len(verdicts)} killed ({killed / max(1, len(verdicts)):.1%})")


if __name__ == "__main__":
    main()
