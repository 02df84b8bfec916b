"""The verifier of caps in JavaScript judges as the one in Python does, and reads hostile files without harm."""

from __future__ import annotations

import json
import random
import re
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dphmm import ReleaseSettings
from dphmm.events import Cap
from tests.certificate import certificates as whole
from tests.certificate.capped import FILE, VERIFIER, drawn, mutated, refusal, settled, verifier
from tests.certificate.certificates import canonical, parts_of, town, walked
from tests.certificate.test_caps import of_outside
from tests.certificate.test_lies import mutated as mutated_anywhere
from tests.certificate.vectors import number_of, replaced, texts
from tests.sizes import fewer

SECOND, JUDGE = VERIFIER.with_name("dphmm-verify-caps.mjs"), Path(__file__).parent / "judge.mjs"
GIVEN = json.loads(FILE.read_text())
SIGNS = "0123456789abcdefghijklmnopqrstuvwxyzABC"


def judged(node: str, file: Path, script: Path = SECOND) -> dict[str, int]:
    """The line that is refused of each vector of a file, or 0."""
    done = subprocess.run([node, JUDGE, script, file], capture_output=True, text=True, check=True)
    return {name: number_of(reason or None) for name, reason in json.loads(done.stdout).items()}


def test_every_vector_is_judged_as_it_says(node):
    assert judged(node, FILE) == {one["name"]: one["refused"] for one in GIVEN["vectors"]}


@pytest.mark.parametrize(
    ("broken", "into"),
    [
        (r"hold\(above \* 35n.*?;", ""),
        (r"hold\(kinds\.length.*?;", ""),
        (r"hold\(signs\.next\(\)\.done.*?;", ""),
        (r"for \(const \{ belief \} of watched\) belief\.update.*?;", ""),
    ],
)
def test_one_without_a_check_is_noticed(node, tmp_path, broken, into):
    text, count = re.subn(broken, into, SECOND.read_text())
    assert count == 1
    text = text.replace("./dphmm-verify.mjs", str(SECOND.with_name("dphmm-verify.mjs")))
    (tmp_path / "broken.mjs").write_text(text)
    assert judged(node, FILE, tmp_path / "broken.mjs") != {one["name"]: one["refused"] for one in GIVEN["vectors"]}


def another_sign(lines: list[Any], rng: random.Random) -> str:
    """Change one sign of a cell, half of the time to the next lower bound."""
    cells = rng.choice([one for one in rng.choice(drawn(lines))["caps"] if one and any(one)] or [[""]])
    part = rng.choice([k for k, signs in enumerate(cells) if signs] or [0])
    at = rng.randrange(max(1, len(cells[part])))
    before = cells[part][at : at + 1]
    after = SIGNS[max(0, SIGNS.find(before) - 1)] if rng.random() < 0.5 else rng.choice(SIGNS)
    cells[part] = cells[part][:at] + after + cells[part][at + 1 :]
    return f"sign {at} of part {part}: {before} → {after}"


@pytest.mark.parametrize("seed", range(2))
def test_both_judge_random_changes_alike(node, tmp_path, seed):
    """Also in which line; changes of what dphmm-verify reads too may be refused by one alone, if it refuses them."""
    rng, vectors, wanted, elsewhere = random.Random(seed), [], {}, {}
    for number in range(fewer(120, 25)):
        base = rng.choice(list(GIVEN["bases"]))
        before = GIVEN["bases"][base]["lines"]
        lines = [json.loads(text) for text in before]
        tell = rng.choice([mutated, mutated, another_sign, mutated_anywhere])
        name = f"{number}, {base}: {tell(lines, rng)}"
        if "('slot',)" in name:  # a gap that takes long
            continue
        vectors.append({"name": name, "base": base, "replaced": replaced(before, texts(lines))})
        wanted[name] = number_of(refusal(lines))
        if tell is mutated_anywhere:
            elsewhere[name] = number_of(whole.refusal(lines))
    (tmp_path / "changed.json").write_text(json.dumps({"bases": GIVEN["bases"], "vectors": vectors}))
    found = judged(node, tmp_path / "changed.json")
    differ = [(name, found[name], wanted[name]) for name in wanted if found[name] != wanted[name]]
    assert all(elsewhere.get(name) for name, *_ in differ), differ
    assert sum(map(bool, wanted.values())) > len(wanted) // 2, "hardly anything was a lie"


def test_other_models_are_judged_alike(node, tmp_path):
    """People outside; and budgets at which caps are not kept."""
    caps = (Cap("state:6,7 between 1 and 3", 0.4),)
    engine = ReleaseSettings("utility:1km", 6, caps=caps).engine(of_outside(), 5)
    lines = walked(engine, [(0, 0), (1, 1), (6, 2), (6, 4)])
    lied = json.loads(canonical(lines))
    for step in drawn(lied):
        step["epsilon"] = "30"
    bases, vectors, wanted = {"outside": {"lines": texts(lines), "rows": None}}, [], {}
    for which, some in (("outside", lines), ("outside, more", lied)):
        vectors.append({"name": which, "base": "outside", "replaced": replaced(texts(lines), texts(some))})
        wanted[which] = number_of(refusal(some))
    (tmp_path / "models.json").write_text(json.dumps({"bases": bases, "vectors": vectors}))
    assert judged(node, tmp_path / "models.json") == wanted
    assert sorted(map(bool, wanted.values())) == [False, True]


# ---- bounds ----------------------------------------------------------------------------------------------------------


def computed(node: str, folder: Path, script: str) -> Any:
    """What lines of JavaScript inside the second verifier find, as text of JSON, whose whole numbers are texts."""
    text = SECOND.read_text().replace("./dphmm-verify.mjs", str(SECOND.with_name("dphmm-verify.mjs")))
    text += "const told = (_, one) => (typeof one === 'bigint' ? String(one) : one);\n"
    text += f"console.log('found ' + JSON.stringify((() => {{ {script} }})(), told));\n"
    (folder / "computed.mjs").write_text(text)
    done = subprocess.run([node, folder / "computed.mjs"], capture_output=True, text=True, check=False)
    (found,) = (line for line in done.stdout.splitlines() if line.startswith("found "))
    return json.loads(found.removeprefix("found "))


def test_bounds_are_those_of_the_first(node, tmp_path):
    """Powers, and sums over a lattice, whose values the first one's tests compare with mpmath and with sums."""
    rng, base = random.Random(5), verifier()
    powers = [rng.randrange(rng.choice([1 << 20, 1 << 62, 1 << 71])) for _ in range(200)]
    script = (
        f"return {json.dumps([str(x) for x in powers])}.map((x) => [false, true].map((up) => power(BigInt(x), up)));"
    )
    wanted = [[str(base.power(x, up)) for up in (False, True)] for x in powers]
    assert computed(node, tmp_path, script) == wanted
    bodies = [[(1, 0), (0, 1)], [(3, 0), (4, 1), (-1, 1)], [(2, 4)], [(7, 1), (3, 5), (-4, 3)], [(1500, 500)]]
    script = f"""const bodies = {json.dumps(bodies)}.map((one) => new Ring(one.map((v) => v.map(BigInt))));
    return bodies.map((body) => [false, true].map((up) => body.total(Fraction.of("9/4"), up)));"""
    wanted = [[str(base.Body(one).total(Fraction(9, 4), up)) for up in (False, True)] for one in bodies]
    assert computed(node, tmp_path, script) == wanted


@pytest.mark.parametrize("steps", [3, 5_000])
def test_gaps_are_bridged_as_by_the_first(node, tmp_path, steps):
    """Step by step and by powers of the matrix, there and back."""
    lines = [json.loads(text) for text in GIVEN["bases"]["capped_town"]["lines"]]
    (of,), (value,) = ([part["value"] for part in parts_of(lines, kind)] for kind in ("model", "chances"))
    model = verifier().Model(value, of)
    row = [verifier().ONE if s == 12 else 0 for s in range(model.chain)]
    ways = [(0, steps, False), (0, steps, True), (steps, 0, False), (steps, 0, True)]
    wanted = [[str(one) for one in model.moved([row], *way)[0]] for way in ways]
    assert bool(model.powers) == (steps > 3)
    script = f"""const chances = new Chances(parse({canonical(value)!r}), new Model(parse({canonical(of)!r})));
    const row = chances.state.map((s) => (s === 12 ? ONE : 0n));
    return {json.dumps(ways)}.map(([slot, to, up]) => chances.bridged(row, slot, to, [up]));"""
    assert computed(node, tmp_path, script) == wanted


# ---- the script ------------------------------------------------------------------------------------------------------


def run(node: str, folder: Path, text: str | bytes, *more: str) -> tuple[int, str]:
    (folder / "proof.jsonl").write_bytes(text.encode() if isinstance(text, str) else text)
    done = subprocess.run([node, SECOND, "proof.jsonl", *more], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_script_says_what_the_first_says(node, tmp_path):
    for base in GIVEN["bases"].values():
        code, said = run(node, tmp_path, "\n".join(base["lines"]) + "\n", "--seconds", "60")
        first = subprocess.run([VERIFIER, "proof.jsonl"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (code, said) == (first.returncode, first.stdout) == (0, first.stdout)
    code, said = run(node, tmp_path, "\n".join(base["lines"][:-1]))
    assert (code, "REFUSED" in said, "the end is missing" in said) == (1, True, True)
    assert subprocess.run([node, SECOND, "none.jsonl"], cwd=tmp_path, capture_output=True, check=False).returncode == 2
    assert subprocess.run([node, SECOND], capture_output=True, check=False).returncode == 2
    assert len(SECOND.read_text().splitlines()) <= 700


def test_both_compare_a_text_with_brackets(node, tmp_path):
    text = "(state:6 at 1 | state:7 at 2) & !(state:12 between 1 and 3)"
    engine = ReleaseSettings("utility:1km", 1, caps=(Cap(text, 0.5),)).engine(settled(town()), 7)
    lines = walked(engine, [(0, 0), (1, 1), (6, 2)])
    code, said = run(node, tmp_path, "\n".join(texts(lines)))
    first = subprocess.run([VERIFIER, "proof.jsonl"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (code, said, "the automaton" in said) == (0, first.stdout, False)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"end":0,"end":0}', "a key stands twice"),
        ('{"end":0,"__proto__":{"begin":"ann"}}', "unknown key '__proto__'"),
        ('{"end":0.0}', "is no whole number"),
        ('{"end":9007199254740993}', "is beyond 2"),
        ("[" * 100_000, "nested too deeply"),
        (b'{"end":"\xff"}', "malformed"),
        ("[" + "1," * (1 << 25) + "1]", "too long"),
        ("", "no JSON"),
        ('{"slot":0,"step":0}', "a release is of nobody"),
    ],
)
def test_hostile_lines_are_refused(node, tmp_path, line, reason):
    text = b'{"certificate":1}\n' + (line.encode() if isinstance(line, str) else line) + b'\n{"end":0}\n'
    code, said = run(node, tmp_path, text)
    assert (code, said.startswith("REFUSED: proof.jsonl: line 2: "), reason in said) == (1, True, True), said


def test_it_ends_in_time(node, tmp_path):
    """A gap of half a million steps, each by the matrix of its hour, takes longer than a second."""
    lines = [json.loads(text) for text in GIVEN["bases"]["by_hours"]["lines"]]
    drawn(lines)[-1]["slot"] += 500_000
    code, said = run(node, tmp_path, "\n".join(texts(lines)), "--seconds", "1")
    assert (code, "it takes more than 1 s" in said) == (1, True), said
