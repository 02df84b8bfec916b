"""The script that asks whether the tests would notice a changed operator."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mutants():
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts" / "mutants.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutants"]


def test_every_mutant_is_another_program_and_none_is_drawn_twice(mutants):
    chosen = mutants.sample(["release", "policy"], 200, seed=3)
    assert len({(mutant.path, mutant.start, mutant.after) for mutant in chosen}) == 200
    for mutant in chosen:
        text = (ROOT / mutant.path).read_bytes()
        assert ast.dump(ast.parse(mutant.applied(text))) != ast.dump(ast.parse(text)), mutant


def test_the_sample_is_a_function_of_its_seed(mutants):
    assert mutants.sample(["geometry"], 20, seed=1) == mutants.sample(["geometry"], 20, seed=1)
    assert mutants.sample(["geometry"], 20, seed=1) != mutants.sample(["geometry"], 20, seed=2)


@pytest.mark.parametrize(
    ("test", "killed"), [("assert double(3) == 6", True), ("assert double(0) == 0", False)], ids=["good", "weak"]
)
def test_a_mutant_that_a_test_notices_is_killed_and_the_copy_is_as_before(mutants, tmp_path, test, killed):
    (tmp_path / "dphmm" / "small").mkdir(parents=True)
    (tmp_path / "tests" / "small").mkdir(parents=True)
    module = tmp_path / "dphmm" / "small" / "twice.py"
    module.write_text("def double(x):\n    return x * 2\n")
    (tmp_path / "tests" / "small" / "test_twice.py").write_text(
        f"import sys; sys.path.insert(0, {str(module.parent)!r})\nfrom twice import double\n\n"
        f"def test_double():\n    {test}\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    mutant = mutants.Mutant("dphmm/small/twice.py", 2, 30, 31, "2", "(3)")
    assert mutants.tried(tmp_path, mutant, ["tests/small/test_twice.py::test_double"]).killed is killed
    assert module.read_text() == "def double(x):\n    return x * 2\n"
