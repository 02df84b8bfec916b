"""The vectors are the lies that are tested, and both verifiers, of two languages, judge every one as its file says."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.certificate.certificates import ROOT, refusal, town_certificate, verifier
from tests.certificate.test_lies import LIES, flat, tables
from tests.certificate.vectors import FILE, number_of, texts

SECOND = ROOT / "scripts" / "dphmm-verify.mjs"
GIVEN = json.loads(FILE.read_text())
VECTORS = {one["name"]: one for one in GIVEN["vectors"]}


def judged(name: str, folder: Path) -> int:
    vector = VECTORS[name]
    base = GIVEN["bases"][vector["base"]]
    lines = list(base["lines"])
    for first, count, put in vector["replaced"]:
        lines[first : first + count] = put
    rows = vector.get("rows", base["rows"])
    if rows is not None:
        (folder / "rows.csv").write_text(rows)
        rows = verifier().read_rows(str(folder / "rows.csv"))
    return number_of(refusal(lines, rows))


def test_every_lie_has_a_vector():
    assert {told.__name__ for _, _, told in LIES} | {"town", "flat", "anew", "tables", "components"} == set(VECTORS)
    assert len(VECTORS) == len(GIVEN["vectors"])


def test_the_first_verifier_judges_every_vector_as_it_says(tmp_path):
    assert {name: judged(name, tmp_path) for name in VECTORS} == {name: one["refused"] for name, one in VECTORS.items()}


def test_the_second_verifier_judges_every_vector_as_it_says(node):
    judge = Path(__file__).parent / "judge.mjs"
    done = subprocess.run([node, judge, SECOND, FILE], capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    found = {name: number_of(reason or None) for name, reason in said.items()}
    assert found == {name: one["refused"] for name, one in VECTORS.items()}


def test_a_broken_second_verifier_is_noticed(node, tmp_path):
    """Without its check of bodies it believes two lies, which the comparison above would show."""
    text = SECOND.read_text()
    broken, count = re.subn(r"hold\(needed\.every\(.*?\);", "", text)
    assert count == 1
    (tmp_path / "broken.mjs").write_text(broken)
    judge = Path(__file__).parent / "judge.mjs"
    done = subprocess.run([node, judge, tmp_path / "broken.mjs", FILE], capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert any(said[name] == 0 or number_of(said[name]) != one["refused"] for name, one in VECTORS.items())


def test_the_second_verifier_reads_files(node, tmp_path):
    lines, _, _ = town_certificate(tmp_path)
    (tmp_path / "proof.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = subprocess.run([node, SECOND, "proof.jsonl", "rows.csv"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "5 releases about 1 person" in done.stdout) == (0, True)
    (tmp_path / "short.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:-1]))
    done = subprocess.run([node, SECOND, "short.jsonl"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "the end is missing" in done.stdout) == (1, True)
    assert subprocess.run([node, SECOND, "none.jsonl"], cwd=tmp_path, capture_output=True).returncode == 2
    assert len(SECOND.read_text().splitlines()) <= 700


@pytest.mark.parametrize("name", ["dphmm-verify", "dphmm-verify-caps", "dphmm-verify-more"])
def test_a_second_verifier_that_is_called_through_a_link_verifies(node, tmp_path, name):
    """Before, it ended with 0 without having looked at anything."""
    (tmp_path / "there").symlink_to(SECOND.parent)
    done = subprocess.run([node, tmp_path / "there" / f"{name}.mjs", "none.jsonl"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 2


def test_other_worlds_are_judged_alike_by_both(node, tmp_path):
    """Hours of a zone, twins outside, random engines: what the first verifies the second does too."""
    from tests.certificate.test_writer import random_engine, some_certificates

    every = [texts(lines) for lines in (flat(), tables(), *some_certificates(random_engine))]
    bases = {str(number): {"lines": lines, "rows": None} for number, lines in enumerate(every)}
    vectors = [{"name": name, "base": name, "replaced": []} for name in bases]
    (tmp_path / "all.json").write_text(json.dumps({"bases": bases, "vectors": vectors}))
    judge = Path(__file__).parent / "judge.mjs"
    done = subprocess.run([node, judge, SECOND, tmp_path / "all.json"], capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout).values()) == {0}
