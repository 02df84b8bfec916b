"""The vectors are the lies that are tested, and the verifier judges every one as its file states."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.certificate import capped, streams, test_lies
from tests.certificate.certificates import VERIFIER, verifier
from tests.certificate.vectors import FILE, number_of

FILES = {"releases": FILE, "caps": capped.FILE, "streams": streams.FILE}


@dataclass
class Vector:
    """A certificate, what was published with it, and the line that is refused (0 if none is)."""

    lines: list[bytes]
    published: str | None
    noisy: str | None
    refused: int

    def arguments(self, folder: Path) -> list[str]:
        """Write the files and return the arguments of the command."""
        (folder / "proof.jsonl").write_bytes(b"".join(self.lines))
        found = [str(folder / "proof.jsonl")]
        for options, text in (([], self.published), (["--noisy"], self.noisy)):
            if text is not None:
                path = folder / f"{len(options)}.csv"
                path.write_text(text)
                found += [*options, str(path)]
        return found


@cache
def vectors(kind: str) -> dict[str, Vector]:
    """Read the vectors of a file by name."""
    given, found = json.loads(FILES[kind].read_text()), {}
    for one in given["vectors"]:
        base = given["bases"][one["base"]]
        lines, rows, noisy = list(base["lines"]), one.get("rows", base["rows"]), None
        for first, count, put in one["replaced"]:
            lines[first : first + count] = put
        if base.get("halves"):  # the noisy counts come before the repaired ones
            head, *rest = rows.splitlines(keepends=True)
            middle = len(rest) // 2
            noisy, rows = "".join([head, *rest[:middle]]), "".join([head, *rest[middle:]])
        found[one["name"]] = Vector([line.encode() + b"\n" for line in lines], rows, noisy, one["refused"])
    assert len(found) == len(given["vectors"]), "two vectors have one name"
    return found


def judged(kind: str, module: ModuleType, folder: Path) -> dict[str, int]:
    """Return, for each vector of a file, the line that the check of its kind refuses."""

    def releases(one: Vector) -> Any:
        rows = None if one.published is None else module.read_rows(one.arguments(folder)[1])
        return module.verify_releases(one.lines, rows)

    def stream(one: Vector) -> Any:
        tables = (text and list(csv.DictReader(io.StringIO(text))) for text in (one.published, one.noisy))
        return module.verify_stream(one.lines, *tables)

    checks: dict[str, Callable[[Vector], Any]]
    checks = {"releases": releases, "streams": stream, "caps": lambda one: module.verify_caps(one.lines)}
    found = {}
    for name, one in vectors(kind).items():
        try:
            checks[kind](one)
            found[name] = 0
        except module.RefusedError as problem:
            found[name] = number_of(str(problem))
    return found


def expected(kind: str) -> dict[str, int]:
    return {name: one.refused for name, one in vectors(kind).items()}


def test_every_lie_has_a_vector(tmp_path):
    names = {
        "releases": {"town", "flat", "anew", "tables", "components"},
        "caps": set(capped.WORLDS),
        "streams": set(streams.worlds(tmp_path)),
    }
    for kind, module in (("releases", test_lies), ("caps", capped), ("streams", streams)):
        assert {told.__name__ for _, _, told in module.LIES} | names[kind] == set(vectors(kind))


@pytest.mark.parametrize("kind", FILES)
def test_every_vector_is_judged_as_its_file_states(kind, tmp_path):
    assert judged(kind, verifier(), tmp_path) == expected(kind)


@pytest.mark.parametrize("kind", FILES)
def test_the_command_recognises_and_judges_every_vector(kind, tmp_path, monkeypatch):
    """Lies about caps that also break what every release has to satisfy may be refused at an earlier line."""
    monkeypatch.setattr(verifier(), "limit", lambda _: None)
    for name, one in vectors(kind).items():
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            code = verifier().main(one.arguments(tmp_path))
        assert code == (one.refused > 0), (name, said.getvalue())
        if one.refused:
            line = number_of(said.getvalue().removeprefix(f"REFUSED: {tmp_path / 'proof.jsonl'}: "))
            assert 0 < line <= one.refused if kind == "caps" else line == one.refused, (name, said.getvalue())
        else:
            assert "NOT VERIFIED" in said.getvalue()


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        ("releases", "hold(needed == body.upper or own"),
        ("releases", "hold(hashlib.sha256(text).hexdigest() == digest"),
        ("releases", "hold(possible == follows or"),
        ("releases", "hold(self.window is None or self.window.add"),
        ("releases", "hold(all(a * under <= b * over"),
        ("releases", 'hold(datetime.fromisoformat(row["time"])'),
        ("caps", "hold(above * 35"),
        ("caps", 'hold(kinds, "the event is another than its text")'),
        ("caps", 'hold(next(signs, None) is None, "there are more cells than that")'),
        ("caps", "for _, belief, *_ in watched: belief.update(likelihood)"),
        ("caps", "hold(not self.known or of.hash in"),
        ("streams", "hold(value - unit <= 0 or exponential(value - unit, True) <= least"),
        ("streams", 'hold(off <= claim, f"the gap is'),
        ("streams", "hold(max(with_each) <= most"),
        ("streams", "hold(spent[t] or last is None or told == last"),
    ],
)
def test_a_verifier_without_a_check_is_noticed(kind, check, tmp_path):
    """A broken twin, which lacks one check, judges some vector otherwise than its file states."""
    lines = VERIFIER.read_text().split("\n")
    (at,) = (number for number, line in enumerate(lines) if line.lstrip().startswith(check))
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    lines[at] = indent + "pass"
    broken = ModuleType("broken")
    exec(compile("\n".join(lines), "broken", "exec"), broken.__dict__)
    assert judged(kind, broken, tmp_path) != expected(kind)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"end":0,"end":0}', "a key stands twice"),
        ('{"end":0,"__proto__":{"begin":"ann"}}', "unknown key '__proto__'"),
        ('{"end":0.0}', "is no whole number"),
        ('{"end":9007199254740993}', "is beyond 2"),
        ("[" * 100_000, "malformed"),
        (b'{"end":"\xff"}', "malformed"),
        ("[" + "1," * (1 << 25) + "1]", "too long"),
        ("", "malformed"),
        ('{"slot":0,"step":0}', "there is no published row|a release of nobody|it lacks one of"),
    ],
    ids=lambda one: one[:12],
)
def test_hostile_lines_are_refused(tmp_path, monkeypatch, capsys, line, reason):
    monkeypatch.setattr(verifier(), "limit", lambda _: None)
    text = b'{"certificate":1}\n' + (line.encode() if isinstance(line, str) else line) + b'\n{"end":0}\n'
    (tmp_path / "proof.jsonl").write_bytes(text)
    assert verifier().main([str(tmp_path / "proof.jsonl")]) == 1
    said = capsys.readouterr().out
    assert said.startswith(f"REFUSED: {tmp_path / 'proof.jsonl'}: line 2: ")
    assert any(one in said for one in reason.split("|"))


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'{"certificate":1,"of":null}', b'{"certificate":1,"of":[]}'])
def test_what_is_no_certificate_is_refused(tmp_path, monkeypatch, text):
    monkeypatch.setattr(verifier(), "limit", lambda _: None)
    (tmp_path / "proof.jsonl").write_bytes(text + b"\n")
    assert verifier().main([str(tmp_path / "proof.jsonl")]) == 1
