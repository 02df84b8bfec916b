"""The script that asks whether the tests would notice a changed operator."""

import ast
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from click import ClickException

from scripts.mutants.__main__ import changed, rounds, sample
from scripts.mutants.mutations import ROOT, mutants, relocated
from scripts.mutants.reach import Reach
from scripts.mutants.trial import FAILED

pytestmark = pytest.mark.slow  # a tool of the project, and none of what it is for

PLUGINS = "xdist.plugin,pytest_cov.plugin,_hypothesis_pytestplugin"
"""Those that the script has a use for: others only take a second to load, in each of its runs of pytest."""
MODULE = """def double(x):
    return x * 2

def half(x):
    return x / 2

def more(x):
    return x + 1
"""
TESTS = """from dphmm.small.twice import double, more

def test_double():
    assert double(3) == 6

def test_more():
    assert more(2)
"""
HANGS = """from dphmm.small.twice import half

def test_half():
    while half(2) == 1:
        pass
"""


def test_every_mutant_is_another_program_and_none_is_drawn_twice():
    chosen = sample(["mechanisms", "leakage"], 40, seed=3)
    assert len({(mutant.path, mutant.start, mutant.after) for mutant in chosen}) == 40
    for mutant in chosen:
        text = (ROOT / mutant.path).read_bytes()
        assert ast.dump(ast.parse(mutant.applied(text))) != ast.dump(ast.parse(text)), mutant
    for mutant in chosen[:2]:
        assert relocated(replace(mutant, line=mutant.line + 3, start=mutant.start + 100)) is not None


def test_the_sample_is_a_function_of_its_seed():
    assert sample(["geometry"], 20, seed=1) == sample(["geometry"], 20, seed=1)
    assert sample(["geometry"], 20, seed=1) != sample(["geometry"], 20, seed=2)


def test_lines_that_changed_are_those_since_the_base_and_on_it_those_of_its_last_commit(tmp_path, monkeypatch):
    monkeypatch.setattr("scripts.mutants.__main__.ROOT", tmp_path)
    monkeypatch.setattr("scripts.mutants.mutations.ROOT", tmp_path)
    module = tmp_path / "dphmm" / "small" / "twice.py"
    module.parent.mkdir(parents=True)

    def commit(text, *words):
        module.write_text(text)
        who = ["-c", "user.name=n", "-c", "user.email=e"]
        for line in (words, ("add", "."), (*who, "commit", "-qm", "one")):
            subprocess.run(["git", *line], cwd=tmp_path, check=True)

    commit(MODULE, "init", "-q", "-b", "main")
    with pytest.raises(ClickException, match="--base"):
        changed("main")
    longer = MODULE.replace("x / 2", "x / 3")
    commit(longer, "checkout", "-qb", "other")
    at = {"dphmm/small/twice.py": {5}}
    assert changed("main") == at
    assert [one.before for one in sample(["small"], 9, 1, at)] == ["x / 3", "3"]
    (tmp_path / "dphmm" / "errors.py").write_text("ONE = 1\n")  # of no stage
    commit("NEW = 1\n" + longer, "checkout", "-qb", "third")
    assert changed("main") == {"dphmm/small/twice.py": {1, 6}}
    assert changed("third") == {"dphmm/small/twice.py": {1}}
    module.write_text("NEW = 1\n" + longer.replace("x + 1", "x + 4"))
    assert changed("third") == {"dphmm/small/twice.py": {9}}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A project with a module of two functions, and what its tests reach, measured as the script does it."""
    root = tmp_path_factory.mktemp("small")
    (root / "dphmm" / "small").mkdir(parents=True)
    (root / "tests" / "small").mkdir(parents=True)
    for package in ("dphmm", "dphmm/small"):
        (root / package / "__init__.py").touch()
    (root / "dphmm" / "errors.py").write_text("NONE = 0\n")
    (root / "dphmm" / "small" / "twice.py").write_text(MODULE)
    (root / "tests" / "small" / "test_use.py").write_text("import dphmm.errors\n" + TESTS)
    (root / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\ntestpaths = ["tests"]\npythonpath = ["."]\n'
        '[tool.coverage.run]\nsource = ["dphmm"]\nparallel = true\n'
    )
    return root


@pytest.fixture(scope="module")
def found(small, tmp_path_factory):
    """What the script says of every mutant of the module, in a process of its own: it forks."""
    said = tmp_path_factory.mktemp("said")
    code = (
        "import json, sys; from pathlib import Path; from dataclasses import asdict\n"
        "import scripts.mutants.mutations as m, scripts.mutants.reach as r, scripts.mutants.__main__ as main\n"
        "root, to = map(Path, sys.argv[1:3])\n"
        "m.ROOT = r.ROOT = root\n"
        "reach = r.Reach.measure(to / 'map', 1); tree = r.copied(to / 'tree')\n"
        "chosen = [one for one in m.mutants(root / 'dphmm/small/twice.py') if one.before in ('x * 2', 'x + 1')]\n"
        "found = [asdict(one) for one in main.verdicts(chosen, reach, [tree], (5.0, 5.0))]\n"
        "same = (tree / 'dphmm/small/twice.py').read_text() == (root / 'dphmm/small/twice.py').read_text()\n"
        "(tree / 'tests/small/test_half.py').write_text(sys.argv[3])\n"
        "hangs = main.against(tree, chosen[0], ['tests/small/test_half.py::test_half'], 1.0).wait()\n"
        "print(json.dumps([found, same, hangs]))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(small), str(said), HANGS],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": PLUGINS},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return [*json.loads(ran.stdout), said / "map"]


def test_a_mutant_is_killed_by_a_test_that_fails_and_the_copy_is_as_before(found):
    verdicts, same, hangs, _ = found
    assert {one["mutant"]["before"]: one["killed"] for one in verdicts} == {"x * 2": True, "x + 1": False}
    assert same
    assert hangs == FAILED


def test_a_mutant_meets_the_tests_that_run_its_line_though_the_module_has_grown(found, small, monkeypatch):
    monkeypatch.setattr("scripts.mutants.mutations.ROOT", small)
    monkeypatch.setattr("scripts.mutants.reach.ROOT", small)
    module = small / "dphmm" / "small" / "twice.py"
    there = {f"tests/small/test_use.py::test_{name}" for name in ("double", "more")}
    new = {"tests/small/test_more.py::test_new", "tests/other/test_more.py::test_new"}
    for text in (MODULE, "NEW = 1\n\n\n" + MODULE):
        module.write_text(text)
        reach = Reach(found[-1])
        assert sorted(reach.seconds) == sorted(there)
        (adding,) = (one for one in mutants(module) if one.before == "x + 1")
        for seconds in ((5.0, 5.0), (0.0, 5.0)):
            assert rounds(adding, reach, there, seconds) == [["tests/small/test_use.py::test_more"]]
        assert rounds(adding, reach, there | new, (5.0, 5.0))[0][0] == "tests/small/test_more.py::test_new"
        assert relocated(adding) == adding
        assert relocated(replace(adding, text="gone")) is None
