"""Check the wording of the project: `python -m scripts.wording [--hits] [PATH ...]`.

The rules are a list of phrases and names that this project replaces by the field's terms, the form of a docstring's
first line, the form of assignments, the number of comments in the folders that contain algorithms, and the length of
the lines of pages. Docstrings, comments, string literals,
identifiers, names of tests, documentation, README and changelog are checked. A table states the matches per 1,000 words
of each folder; the exit code is 1 if a folder exceeds `MAX_MATCHES` or if a name or a first line breaks a rule.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Matches per 1,000 words that a folder may contain; networkx contains 0.17, httpx 0.25.
MAX_MATCHES = 0.5

# Regular expressions, and the words that replace a match.
BANNED = {
    r"\b(some|every|any|no)body\b|\bno one\b": "name the actor: adversary, recipient, user",
    r"(?<!adversary )\bwho knows?\b": "an adversary who knows ...",
    r"\btold\b|\btells?\b": "disclose, reveal, release, send, distinguish",
    r"(?<![Tt]here )\b(is|are) none\b": "is invalid, is not a ...",
    r"(?<![Tt]here )\b(is|are) no (?!longer)[a-z]+\b": "is not a ...",
    r"\b[Ll]eft out\b": "defaults to, omitted",
    r"\bgive (a|an|one|the|it|them|at)\b": "must be ..., got ...",
    r"\b(looked at|worked out|gone through|held against)\b": "checked, computed, iterated, compared with",
    r"\bhow (sure|far off|probable|many|much)\b": "probability, error, number of",
    r"\b(in hindsight|at once)\b": "smoothed, filtered",
    r"(?<!second )\bmoments?\b|\bticks?\b": "timestep",
    r"(?<![-#])\b(besides|beside)\b": "in addition, alongside",
    r"\b(of|a|an) (its|their|one's) own\b": "its own, separate",
    r"\bunless it is said\b|\bsaid (of|to|by)\b": "by default; states",
    r"\bpeople who do not exist\b": "synthetic users",
    r"\bkeep it to yourself\b|\bfor yourself alone\b": "do not publish",
    r"^[A-Z]?(What|Whose|That|Those|Whether or not) ": "start with a noun or a verb",
    r"\b[Tt]he same (of|for|as)\b": "repeat the noun",
    r"\bwhole numbers?\b": "integer",
    r"; before,|\bbefore, ": "delete",
    r"\bwhose\b": "of which, with, or two sentences",
    r"\breaders? (who|sees?|knows?|learns?|is|are|may|can)\b": "adversary, recipient",
}

BANNED_NAMES = frozenset(
    [
        "told",
        "said",
        "made",
        "found",
        "given",
        "asked",
        "known",
        "theirs",
        "mine",
        "one",
        "some",
        "every",
        "nobody",
        "own",
        "who",
        "least",
        "most",
        "people",
        "person",
        "persons",
        "walls",
        "event_probability_bounds",
    ]
)
BANNED_CONSTANT = re.compile(
    r"_?(FEW|FEWEST|MANY|MOST|LEAST|NEAR|KEPT|REMEMBERED|AT_ONCE|LIKE_IT|WIDEST|LONGEST|LARGEST|FAINT|SAME|SLIP|STEEP"
    r"|BESIDE|KNOWING|LOOKED_AT|REDRAWN|HELD|SHOWN|DRAWN|CALLED|COUNTED_AS|POINTED|SINGLED_OUT|SETTLED|TOO_\w+|OF_\w+"
    r"|\w+_BELOW|\w*PEOPLE|\w*PER_PERSON|MOST_\w+|LEAST_\w+)"
)
# First words of private functions: verbs, and prepositions of conversions. Add a verb that is missing.
VERBS = frozenset((ROOT / "scripts" / "verbs.txt").read_text(encoding="utf-8").split())
# Names of private methods that other libraries require.
_REQUIRED_NAMES = {"_Popen", "_repr_html_"}

# Characters of a docstring's first line, and of a line of prose on a page.
MAX_SUMMARY = 88

COMMENTED = ("geometry", "mechanisms", "policy", "model", "events", "release")
# Lines of comments per 100 lines of code in each folder of `COMMENTED`.
MIN_COMMENTS = 3.0

# Lines that use a term of another library.
ALLOWED = re.compile(r"matplotlib.*\btick|\bticks?(_|=|\(|\.)|(_|\.)ticks?\b")

# File -> terms that are right there: moments of a distribution.
ALLOWED_IN = {
    name: re.compile(r"\bmoments?\b")
    for name in ("chain_estimate.py", "test_chain_estimate.py", "test_lattice_normalizer_sails.py")
}

_BANNED = {re.compile(pattern, re.MULTILINE): advice for pattern, advice in BANNED.items()}
_OWN_FILES = {"wording.py", "test_wording.py"}  # they quote what they refuse
_TEXT = {"STRING", "COMMENT", "FSTRING_MIDDLE"}


@dataclass
class Report:
    """The words, matches and broken rules of one folder."""

    num_words: int = 0
    num_matches: int = 0
    num_code_lines: int = 0
    num_comments: int = 0
    matches: list[str] = field(default_factory=list)
    flaws: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Matches per 1,000 words."""
        return 1000 * self.num_matches / max(self.num_words, 1)


def check_text(report: Report, place: str, first_line: int, text: str) -> None:
    """Add the words of a text and its banned phrases to the report."""
    report.num_words += len(re.findall(r"\w+", text))
    lines = text.splitlines()
    for pattern, advice in _BANNED.items():
        for match in pattern.finditer(text):
            index = text.count("\n", 0, match.start())
            allowed = ALLOWED_IN.get(place.rpartition("/")[2])
            if not ALLOWED.search(lines[index]) and not (allowed and allowed.fullmatch(match[0])):
                report.num_matches += 1
                report.matches.append(f"{place}:{first_line + index}: {match[0].strip()!r}: {advice}")


def check_python(report: Report, place: str, source: str) -> None:
    """Check strings, comments, identifiers and first lines of a module."""
    code_lines: set[int] = set()
    banned_names = set(BANNED_NAMES)
    if "from hypothesis" in source:
        banned_names.discard("given")  # a decorator
    if "blake2b" in source:
        banned_names.discard("person")  # a parameter
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        line = token.start[0]
        if kind in _TEXT:
            check_text(report, place, line, re.sub(r"^\w{0,2}[\"']+|[\"']+$|^#\s*", "", token.string))
        if kind == "COMMENT":
            report.num_comments += 1
        elif kind == "NAME":
            if token.string in banned_names:
                report.flaws.append(f"{place}:{line}: {token.string!r} is not a name: use the noun")
            elif BANNED_CONSTANT.fullmatch(token.string):
                report.flaws.append(f"{place}:{line}: {token.string!r}: name quantity and unit")
        if kind in ("NAME", "OP", "NUMBER"):
            code_lines.add(line)
    report.num_code_lines += len(code_lines)
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 1)
        report.flaws += [f"{place}:{line}: {flaw}" for flaw in find_flaws(node)]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            check_text(report, place, node.lineno, node.name.replace("_", " "))


def find_flaws(node: ast.AST) -> Iterator[str]:
    """Yield the rules that a node of a module breaks."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        summary = (ast.get_docstring(node) or "").partition("\n")[0]
        if len(summary) > MAX_SUMMARY:
            yield f"a first line of {len(summary)} characters, at most {MAX_SUMMARY}"
        if ";" in summary:
            yield "a semicolon in a first line: write two sentences"
        pairs = zip(node.body, node.body[1:], strict=False)
        if any(isinstance(first, ast.Assign | ast.AnnAssign) and _is_text(second) for first, second in pairs):
            yield "a string after an assignment: write a comment above it"
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        is_private = node.name.startswith("_") and not node.name.startswith("__") and not _is_property(node)
        starts_with_verb = node.name.lstrip("_").partition("_")[0] in VERBS or node.name in _REQUIRED_NAMES
        if node.name.endswith("_of") or (is_private and not starts_with_verb):
            yield f"{node.name!r}: start with a verb"
        if sum(isinstance(child, ast.NamedExpr) for child in ast.walk(node)) > 1:
            yield f"{node.name!r} assigns several names in expressions: use statements"
    values = [*node.args, *(word.value for word in node.keywords)] if isinstance(node, ast.Call) else []
    if any(isinstance(value, ast.NamedExpr) for value in values):
        yield "an argument assigns a name: use a statement"
    is_tuple = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
    if is_tuple and isinstance(node.value, ast.Tuple) and len(node.value.elts) > 2:
        yield "one line assigns three names or more: use a line for each"


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def check_columns(report: Report, place: str, text: str) -> None:
    """Add lines of prose that are too long to the report; tables, code, links and pictures may be longer."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("```", "~~~")):
            is_code = not is_code
        is_prose = not is_code and " " in line.strip() and not line.startswith(("|", "#", "![", "<", "    "))
        if is_prose and len(line) > MAX_SUMMARY:
            report.flaws.append(f"{place}:{number}: a line of {len(line)} characters, at most {MAX_SUMMARY}")


def iterate_files(paths: list[Path]) -> Iterator[Path]:
    """Yield the tracked files of Python and Markdown below the paths."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *map(str, paths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in listed.splitlines():
        path = ROOT / name
        if path.suffix in (".py", ".md") and path.name not in _OWN_FILES and path.is_file():
            yield path


def check(paths: list[Path]) -> dict[str, Report]:
    """Return a report of each folder of the project, and of each page at the root."""
    reports: dict[str, Report] = defaultdict(Report)
    for path in iterate_files(paths):
        parts = path.relative_to(ROOT).parts
        folder = "/".join(parts[: min(2, len(parts) - 1)]) or parts[0]
        place, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            check_python(reports[folder], place, text)
        else:
            check_text(reports[folder], place, 1, text)
            if parts[0] == "docs":
                check_columns(reports[folder], place, text)
    for name in COMMENTED:
        report = reports.get(f"dphmm/{name}")
        if report and 100 * report.num_comments < MIN_COMMENTS * report.num_code_lines and len(paths) == 0:
            report.flaws.append(f"dphmm/{name}: fewer than {MIN_COMMENTS:g} comments per 100 lines of code")
    return reports


def main() -> int:
    """Print the table, and the flaws. Return 1 if a rule is broken."""
    parser = argparse.ArgumentParser(prog="python -m scripts.wording", description="Check the project's wording.")
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders [everything]")
    parser.add_argument("--hits", action="store_true", help="also print every match of a banned phrase")
    arguments = parser.parse_args()
    reports = check([path.resolve() for path in arguments.paths])
    exceeded = 0
    for folder, report in sorted(reports.items()):
        too_many = report.rate > MAX_MATCHES
        exceeded += too_many or bool(report.flaws)
        print(
            f"{folder:28} {report.num_words:7,} words {report.num_matches:5} matches {report.rate:5.2f} per 1,000"
            f" {len(report.flaws):5} flaws"
        )
        for message in [*(report.matches if arguments.hits or too_many else ()), *report.flaws]:
            print(f"  {message}", file=sys.stderr)
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
