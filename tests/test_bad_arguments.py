"""Whatever value is passed to a public call, it works or is refused with an error of ours.

`tests/public_calls.py` has one right call of each. Here every one of its arguments in turn is one that cannot be: of
another kind, shape, size or type of number. Warnings count as errors, as everywhere in these tests.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest

from dphmm import compilation
from dphmm.arguments import checked
from dphmm.errors import BudgetError, DphmmError, InvalidInputError
from tests.public_calls import CALLS
from tests.test_public_face import EXPORTS

BAD = {
    "nothing": None,
    "a text": "x\0y",
    "no text": "",
    "half a character": "\ud800",
    "bytes": b"ab",
    "minus one": -1,
    "zero": 0,
    "one and a half": 1.5,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "minus infinity": float("-inf"),
    "400 digits": 10**400,
    "2^63": 2**63,
    "the least double": 5e-324,
    "nearly the largest double": 1e308,
    "a complex number": 1j,
    "a decimal NaN": Decimal("NaN"),
    "a fraction": Fraction(1, 3),
    "a date": np.datetime64("2024-01-01"),
    "no date": np.datetime64("NaT", "us"),
    "an empty list": [],
    "an empty row": [[]],
    "three dimensions": np.zeros((2, 2, 2)),
    "four brackets": [[[[1.0]]]],
    "rows of different lengths": [[1], [1, 2]],
    "a square of NaN": np.full((6, 6), np.nan),
    "infinities": np.full(6, np.inf),
    "negative numbers": np.full(6, -1.0),
    "booleans": np.ones(6, dtype=bool),
    "complex numbers": np.ones(6, dtype=complex),
    "objects": np.array([None, "a", {}], dtype=object),
    "numbers of many digits": np.array([2**63, -1, 10**30], dtype=object),
    "a list of 400 digits": [10**400, 1],
    "an array of texts": np.array(["a", "b"]),
    "a list of texts": ["a", "b"],
    "a tuple of nothing": (None, None),
    "a mapping": {"a": 1},
    "a set": {1, 2},
    "an object": object(),
}

NOT_VARIED = {
    "certificate.CertificateWriter": "takes a function alone, and engines and what they made",
    "audit.replay_sequence": "takes engines and sequences alone",
    "flows.NoisyTable": "takes what has noise alone",
    "jobs.AttackedTable": "is what an attack found",
    "jobs.Flows": "takes tables alone",
    "jobs.Planned": "is what a plan says",
    "jobs.Watch": "is a protocol",
    "model.compare_crowds": "takes crowds alone",
    "mechanisms.Mechanism": "is a protocol",
    "mechanisms.TableMechanism": "takes what an engine has worked out",
    "plots.ReleaseMap": "takes tables, spaces and trajectories alone",
    "plots.attack_figure": "takes what an attack found alone",
    "plots.attack_sections": "takes what an attack found alone",
    "plots.attack_verdict": "takes what an attack found alone",
    "plots.calibration_figure": "takes a calibration alone",
    "plots.audit_sections": "takes an audit alone",
    "plots.draw_basemap": "takes axes, a basemap and a projection alone",
    "plots.draw_figure": "takes a figure alone",
    "plots.draw_hull": "takes axes and a hull alone",
    "plots.draw_noise": "takes axes, a hull and a number that may be none",
    "plots.draw_space": "takes axes and a space alone",
    "plots.evaluation_figures": "takes tables and a configuration alone",
    "plots.event_over_time": "takes axes and an audit",
    "plots.trade_off": "takes axes and a calibration alone",
    "plots.leakage_over_time": "takes axes and a leakage alone",
    "plots.model_figure": "takes a model alone",
    "serve.serve": "serves until it is interrupted",
    "serve.reload_relay": "tells a process that runs",
    "tables.read_features": "takes a document alone",
    "writers.summarise": "takes a table alone",
    "writers.to_trajectory_collection": "hands what it is given to to_geodataframe; its library warns when imported",
    "writers.tracks": "takes a table alone",
}
"""Public calls without a value of the caller's, and why."""


def run(name: str, /, **changed: object) -> None:
    call = CALLS[name]
    found = call.of(**{**call.arguments, **changed})
    if hasattr(found, "__next__"):
        list(islice(found, 20))


@pytest.mark.parametrize("name", CALLS)
def test_the_right_call_is_right(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "missing" in str(CALLS[name].arguments) or "nowhere" in str(CALLS[name].arguments):
        with pytest.raises(DphmmError):
            run(name)
    else:
        run(name)


@pytest.fixture
def compiled_at_once(monkeypatch):
    """Loops are compiled from their first call on, where numba is installed: it takes fewer types than numpy."""
    monkeypatch.setattr(compilation, "_WORTH", 0)


@pytest.mark.usefixtures("compiled_at_once")
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_value_is_refused_with_an_error_of_ours(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, wrong = CALLS[name], []
    for argument in call.arguments.keys() - call.ours:
        for what, value in BAD.items():
            try:
                run(name, **{argument: value})
            except DphmmError as problem:
                if "\n" in str(problem):
                    wrong.append((argument, what, "more than one line"))
            except Exception as problem:
                wrong.append((argument, what, repr(problem)))
    assert not wrong


def test_every_public_call_that_takes_values_is_varied():
    varied = {".".join(name.split(".")[:2]) for name in CALLS}
    missing = set()
    for stage, name in EXPORTS:
        found = getattr(importlib.import_module(f"dphmm.{stage}"), name)
        makes = inspect.isclass(found) and ("__init__" in vars(found) or hasattr(found, "__post_init__"))
        plain = hasattr(found, "__dataclass_fields__") and not hasattr(found, "__post_init__")
        if inspect.isroutine(found) or (makes and not plain):
            missing.add(f"{stage}.{name}")
    assert missing - varied == NOT_VARIED.keys() & missing
    assert not varied & NOT_VARIED.keys()


# ---- the check itself -------------------------------------------------------------------------------------------


@checked
def example(
    epsilon: float, steps: int = 1, *, name: str | None = None, f: np.ndarray | None = None
) -> tuple[object, ...]:
    """An example.

    >>> example(1.0)
    (1.0, 1, None, None)
    """
    return epsilon, steps, name, f


def test_arguments_of_the_right_kind_pass_as_they_are():
    value = np.float64(0.5)
    assert example(value, np.int64(3), name="a") == (0.5, 3, "a", None)
    assert example(epsilon=Fraction(1, 2))[0] == Fraction(1, 2)
    assert example(1, f="taken at its word")[3] == "taken at its word"
    assert example.__doc__.startswith("An example")
    assert example.__globals__ is globals(), "doctest looks for examples in functions of the module"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("a",), BudgetError, r"epsilon is 'a' \(str\); give a number"),
        ((1.0, 2.5), InvalidInputError, "steps is 2.5; give a whole number"),
        ((np.zeros(3),), BudgetError, r"epsilon is an array of float64 of shape \(3,\); give a number"),
        ((10**5000,), BudgetError, "epsilon is very long; give a number"),
    ],
)
def test_a_refusal_names_the_argument_and_what_it_is(arguments, error, message):
    with pytest.raises(error, match=message):
        example(*arguments)
    with pytest.raises(InvalidInputError, match=r"name is \"b'a'\" \(bytes\); give a text or nothing"):
        example(1.0, name=b"a")


def test_wrong_calls_stay_python_s_own():
    with pytest.raises(TypeError):
        example()
    with pytest.raises(TypeError):
        example(1.0, surplus=2)


class OfNoKind:
    """What no public call takes."""


READ_BY_PYDANTIC = {"evaluation.EvaluationConfig", "serve.RelayConfig"}
"""Contents of a file: the class itself raises pydantic's error, its reader ours."""


def with_wrong_classes(of: Callable[..., object]) -> None:
    """Call with an object of no kind for everything that must be given, and take what it yields."""
    needed = [one for one in inspect.signature(of).parameters.values() if one.default is one.empty]
    named = {one.name: OfNoKind() for one in needed if one.kind is one.KEYWORD_ONLY}
    if not needed:
        return
    found = of(*(OfNoKind() for one in needed if one.kind <= one.POSITIONAL_OR_KEYWORD), **named)
    if hasattr(found, "__next__"):
        next(found)


@pytest.mark.parametrize("stage", sorted({stage for stage, _ in EXPORTS}))
def test_an_object_of_another_class_is_refused_with_an_error_of_ours(stage, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = []
    for name in (name for of, name in EXPORTS if of == stage):
        found = getattr(importlib.import_module(f"dphmm.{stage}"), name)
        called = inspect.isroutine(found) or (inspect.isclass(found) and not getattr(found, "_is_protocol", False))
        if f"{stage}.{name}" in READ_BY_PYDANTIC or not called:
            continue
        try:
            with_wrong_classes(found)
        except Exception as problem:
            if not isinstance(problem, DphmmError) or "\n" in str(problem):
                wrong.append((name, repr(problem)))
    assert not wrong


def test_an_error_of_the_package_itself_is_not_laid_on_the_caller():
    @checked
    def broken(ours: OfNoKind, found: object) -> object:
        return ours.missing

    with pytest.raises(AttributeError):
        broken(OfNoKind(), 1)
    with pytest.raises(InvalidInputError, match="ours is 1, which has no 'missing'; give OfNoKind"):
        broken(1, 1)
