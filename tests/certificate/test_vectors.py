"""The vectors match the tested tampering, and the verifier judges every one as stated."""

from __future__ import annotations

import ast
import csv
import io
import json
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.certificate import capped, streams, test_lies
from tests.certificate.certificates import VERIFIER, load_verifier
from tests.certificate.vectors import FILE, parse_line_number

FILES = {"releases": FILE, "caps": capped.FILE, "streams": streams.FILE}


@dataclass
class Vector:
    """A certificate, the published files, and the rejected line (0 if none is)."""

    lines: list[bytes]
    published: str | None
    noisy: str | None
    refused: int

    def arguments(self, folder: Path) -> list[str]:
        """Write the files and return the arguments of the command."""
        (folder / "proof.jsonl").write_bytes(b"".join(self.lines))
        arguments = [str(folder / "proof.jsonl")]
        for options, text in (([], self.published), (["--noisy"], self.noisy)):
            if text is not None:
                path = folder / f"{len(options)}.csv"
                path.write_text(text)
                arguments += [*options, str(path)]
        return arguments


@cache
def read_vectors(kind: str) -> dict[str, Vector]:
    """Read the vectors of a file by name."""
    content, vectors_by_name = json.loads(FILES[kind].read_text()), {}
    for entry in content["vectors"]:
        base = content["bases"][entry["base"]]
        lines, (rows, noisy) = list(base["lines"]), (entry.get(name, base.get(name)) for name in ("rows", "noisy"))
        for first, count, put in entry["replaced"]:
            lines[first : first + count] = put
        vectors_by_name[entry["name"]] = Vector(
            [line.encode() + b"\n" for line in lines], rows, noisy, entry["refused"]
        )
    assert len(vectors_by_name) == len(content["vectors"]), "two vectors have one name"
    return vectors_by_name


def judge_vectors(kind: str, module: ModuleType, folder: Path) -> Iterator[tuple[str, int]]:
    """Yield each vector of a file with the line that the check of its kind refuses."""

    def verify_releases(vector: Vector) -> Any:
        rows = None if vector.published is None else module.read_rows(vector.arguments(folder)[1])
        return module.verify_releases(vector.lines, rows)

    def verify_stream(vector: Vector) -> Any:
        tables = (text and list(csv.DictReader(io.StringIO(text))) for text in (vector.published, vector.noisy))
        return module.verify_stream(vector.lines, *tables)

    checks: dict[str, Callable[[Vector], Any]]
    checks = {
        "releases": verify_releases,
        "streams": verify_stream,
        "caps": lambda vector: module.verify_caps(vector.lines),
    }
    # Tampered vectors come first: each ends at its line, and a verifier without a check fails early.
    for name, vector in sorted(read_vectors(kind).items(), key=lambda item: item[1].refused == 0):
        line = 0
        try:
            checks[kind](vector)
        except module.RefusedError as problem:
            line = parse_line_number(str(problem))
        yield name, line


def get_expected_lines(kind: str) -> dict[str, int]:
    return {name: vector.refused for name, vector in read_vectors(kind).items()}


@pytest.mark.slow
def test_every_tampering_has_a_vector(tmp_path):
    names = {
        "releases": set(test_lies.build_worlds(tmp_path)),
        "caps": set(capped.WORLDS),
        "streams": set(streams.build_worlds(tmp_path)),
    }
    for kind, module in (("releases", test_lies), ("caps", capped), ("streams", streams)):
        assert {tamper.__name__ for _, _, tamper in module.TAMPERINGS} | names[kind] == set(read_vectors(kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
def test_vectors_are_judged_as_stated(kind, tmp_path):
    assert dict(judge_vectors(kind, load_verifier(), tmp_path)) == get_expected_lines(kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
def test_command_recognizes_and_judges_every_vector(kind, tmp_path, monkeypatch):
    """Tampered caps may be rejected at an earlier line by a check of all releases."""
    monkeypatch.setattr(load_verifier(), "limit", lambda _: None)
    for name, vector in read_vectors(kind).items():
        output = io.StringIO()
        with redirect_stdout(output), redirect_stderr(output):
            code = load_verifier().main(vector.arguments(tmp_path))
        assert code == (vector.refused > 0), (name, output.getvalue())
        if vector.refused:
            line = parse_line_number(output.getvalue().removeprefix(f"REFUSED: {tmp_path / 'proof.jsonl'}: "))
            assert 0 < line <= vector.refused if kind == "caps" else line == vector.refused, (name, output.getvalue())
        else:
            assert "NOT VERIFIED" in output.getvalue()


def _join_statement(lines: list[str], statement: ast.stmt) -> str:
    """Return a statement on one line, without the blanks and commas of its formatting."""
    text = " ".join(line.strip() for line in lines[statement.lineno - 1 : statement.end_lineno])
    return text.replace("( ", "(").replace(" )", ")").replace(",)", ")")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "check"),
    [
        ("releases", "require(needed == body.upper"),
        ("releases", 'require(is_valid, "the digest must be that of the value'),
        ("releases", 'require(to_json(value) + b"\\n" == line'),
        ("releases", 'require(not empty, f"the optional field'),
        ("releases", 'require(is_canonical, "settings must'),
        ("streams", 'require(is_valid, "is_exact must be true or false'),
        ("streams", "require(all(map(lt, keys, keys[1:]))"),
        ("releases", "require(possible == after or"),
        ("releases", 'require(is_valid, "the limit on a window is exceeded")'),
        ("releases", 'require(is_valid, "a table distinguishes'),
        ("releases", 'require(is_valid, f"the row is of'),
        ("caps", 'require(is_valid, f"an output of sector'),
        ("caps", 'require(event.matches_text(text_event, at, where), "the event is not that of its text")'),
        ("caps", 'require(next(signs, None) is None, "there are unused cells")'),
        ("caps", "for _, belief, *_ in watched: belief.update(likelihood)"),
        ("caps", 'require(is_valid, "the probabilities are not those of the model'),
        ("streams", "require(value - unit <= 0 or exponential(value - unit, True) <= least"),
        ("streams", 'require(off <= claim, f"the gap is'),
        ("streams", "require(max(with_each) <= most"),
        ("streams", "require(spent[t] or published[t] == last"),
    ],
)
def test_verifier_without_a_check_is_detected(kind, check, tmp_path):
    """A verifier without one check judges some vector differently."""
    lines = VERIFIER.read_text().split("\n")
    statements = [node for node in ast.walk(ast.parse("\n".join(lines))) if isinstance(node, ast.stmt)]
    (statement,) = (node for node in statements if _join_statement(lines, node).startswith(check))
    lines[statement.lineno - 1 : statement.end_lineno] = [" " * statement.col_offset + "pass"]
    broken = ModuleType("broken")
    exec(compile("\n".join(lines), "broken", "exec"), broken.__dict__)
    wanted = get_expected_lines(kind)
    assert any(line != wanted[name] for name, line in judge_vectors(kind, broken, tmp_path))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"end":0,"end":0}', "keys of an object must be unique"),
        ('{"__proto__":{"begin":"ann"},"end":0}', "unknown field '__proto__'"),
        ('{"end":0.0}', "numbers must be integers, with fractions as strings such as 1/2, got"),
        ('{"end":9007199254740993}', "integers must be at most 2**53, got"),
        ("[" * 100_000, "malformed"),
        (b'{"end":"\xff"}', "malformed"),
        ("[" + "1," * (1 << 25) + "1]", "too long"),
        ("", "malformed"),
        ('{"slot":0,"step":0}', "there is no published row|a release of nobody|it must have the fields"),
    ],
    ids=lambda value: value[:12],
)
def test_hostile_lines_are_rejected(tmp_path, monkeypatch, capsys, line, reason):
    monkeypatch.setattr(load_verifier(), "limit", lambda _: None)
    text = b'{"certificate":1}\n' + (line.encode() if isinstance(line, str) else line) + b'\n{"end":0}\n'
    (tmp_path / "proof.jsonl").write_bytes(text)
    assert load_verifier().main([str(tmp_path / "proof.jsonl")]) == 1
    output = capsys.readouterr().out
    assert output.startswith(f"REFUSED: {tmp_path / 'proof.jsonl'}: line 2: ")
    assert any(alternative in output for alternative in reason.split("|"))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"certificate":1,"of":null}',
        b'{"certificate":1,"of":[]}',
        b'{"certificate":1}\n{"end":0}',
    ],
)
def test_invalid_certificate_is_rejected(tmp_path, monkeypatch, text):
    monkeypatch.setattr(load_verifier(), "limit", lambda _: None)
    (tmp_path / "proof.jsonl").write_bytes(text + b"\n")
    assert load_verifier().main([str(tmp_path / "proof.jsonl")]) == 1
