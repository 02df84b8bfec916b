"""Every public call accepts a value or refuses it with an error of the package.

`tests/public_calls.py` has one valid call of each. Invalid values follow from the declarations of
`dphmm.validation`: just outside each range, of another type, NaN, infinity, another word. Each must be refused by
the parameter's name. Values allowed by the declaration, such as an array's entries, are tested with a few unusual
values. Warnings count as errors, as in all tests.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
import pytest

from dphmm import compilation
from dphmm.errors import BudgetError, ConfigurationError, DphmmError, InvalidInputError
from dphmm.validation import ARRAY, Delta, Epsilon, Integers, PositiveInt, check_arguments, get_argument_requirements
from tests.public_calls import CALLS
from tests.test_public_face import EXPORTED

# Values for parameters without a declaration.
ODD = (None, "x\0y", -1, 1.5, float("nan"), 10**400, [[]], np.full((6, 6), np.nan), {"a": 1}, object())

# Arrays of numbers that are rarely valid: `ARRAY` declares no shape and no range.
ODD_ARRAYS = (
    np.zeros((2, 2, 2)),
    [],
    np.full((6, 6), np.nan),
    np.full(6, np.inf),
    np.full(6, -1.0),
    np.ones(6, dtype=bool),
    np.array([2**63, -1, 10**30], dtype=object),
    5e-324,
)

# Numbers allowed by many declarations, but not by every calculation.
ODD_NUMBERS = (5e-324, 1e308)

# Numbers allowed by a declaration without a range.
ANY_NUMBERS = (float("nan"), float("inf"), -1, 0, *ODD_NUMBERS)

# Public calls without values from the caller, and the reason.
NOT_VARIED = {
    "certificate.CertificateWriter": "takes only a function, engines and their releases",
    "audit.replay_sequence": "takes only engines and sequences",
    "audit.compute_accuracy": "takes only beliefs and arrays, which audit_sequence checks",
    "audit.compute_inference_metrics": "takes only beliefs and arrays, which audit_sequence checks",
    "mechanisms.NormMechanism": "is a base class",
    "mechanisms.register_mechanism": "takes only a class",
    "space.register_space": "takes only a class",
    "readers.Reader": "is a base class",
    "readers.register_reader": "takes only a class",
    "flows.NoisyTable": "takes only noisy tables",
    "jobs.AttackedTable": "is the result of an attack",
    "jobs.Flows": "takes only tables",
    "jobs.Planned": "is the result of a plan",
    "jobs.ProgressCallback": "is a protocol",
    "model.Filtering": "is the result of a filter",
    "model.compare_crowds": "takes only crowds",
    "mechanisms.Mechanism": "is a protocol",
    "mechanisms.TableMechanism": "takes only results of an engine",
    "plots.ReleaseMap": "takes only tables, spaces and trajectories",
    "plots.draw_attack_figure": "takes only the result of an attack",
    "plots.build_attack_sections": "takes only the result of an attack",
    "plots.summarize_attack": "takes only the result of an attack",
    "plots.draw_calibration_figure": "takes only a calibration",
    "plots.build_audit_sections": "takes only an audit",
    "plots.draw_basemap": "takes only axes, a basemap and a projection",
    "plots.draw_figure": "takes only a figure",
    "plots.draw_hull": "takes only axes and a hull",
    "plots.draw_noise": "takes only axes, a hull and an optional number",
    "plots.draw_space": "takes only axes and a space",
    "plots.draw_evaluation_figures": "takes only tables and a configuration",
    "plots.draw_event_probability": "takes only axes and an audit",
    "plots.draw_trade_off": "takes only axes and a calibration",
    "plots.draw_leakage": "takes only axes and a leakage",
    "plots.draw_model_figure": "takes only a model",
    "serve.serve": "serves until interrupted",
    "serve.ExploreServer": "takes only a server and its thread",
    "serve.explore": "serves until closed; tests/jobs/test_explore.py and tests/cli/test_explore.py vary its arguments",
    "serve.reload_relay": "signals a running process",
    "tables.read_features": "takes only a document",
    "writers.summarise": "takes only a table",
    "writers.to_trajectory_collection": "passes its arguments to to_geodataframe; its library warns when imported",
    "writers.tracks": "takes only a table",
}

STAGES = sorted({name.partition(".")[0] for name in CALLS})
EXPORTS = [(stage, name) for stage, public in EXPORTED.items() for name in public]


def run_call(name: str, changed: Mapping[str, object] = MappingProxyType({})) -> None:
    call = CALLS[name]
    result = call.of(**{**call.arguments, **changed})
    if hasattr(result, "__next__"):
        list(islice(result, 20))


def find_requirements(name: str) -> dict[str, tuple[Any, ...]]:
    """The requirements of a public call's parameters. Empty if its arguments are not checked."""
    stage, *path = name.split(".")
    target: Any = importlib.import_module(f"dphmm.{stage}")
    for part in path:
        target = getattr(target, part)
    function = target.__init__ if inspect.isclass(target) else target
    return get_argument_requirements(target) if hasattr(function, "is_checked") else {}


def list_invalid_values(required: tuple[Any, ...]) -> list[Any]:
    """The invalid values of each declaration, except values allowed by another."""
    values = [value for requirement in required for value in requirement.invalid]
    return [value for value in values if not any(requirement.accepts(value) for requirement in required)]


def has_range(required: tuple[Any, ...]) -> bool:
    """Whether the declarations exclude some numbers, or allow none."""
    return not {"a number", "an integer"} & {requirement.text for requirement in required}


def list_odd_values(required: tuple[Any, ...]) -> list[Any]:
    """Values allowed by the declarations, but perhaps wrong."""
    if not required:
        return list(ODD)
    odd = ODD_ARRAYS if ARRAY in required else ODD_NUMBERS if has_range(required) else ANY_NUMBERS
    return [value for value in odd if any(requirement.accepts(value) for requirement in required)]


def find_faults(
    call: Callable[[dict[str, Any]], object], parameter: str, required: tuple[Any, ...]
) -> Iterator[tuple[str, str, str]]:
    """Faults in the refusal of a parameter's values: (parameter, value, observed behaviour)."""
    for values, may_work in ((list_invalid_values(required), False), (list_odd_values(required), True)):
        for value in values:
            try:
                call({parameter: value})
            except DphmmError as problem:
                message = str(problem)
                if "\n" in message:
                    yield parameter, repr(value), "more than one line"
                if not may_work and not message.startswith(f"{parameter} must be "):
                    yield parameter, repr(value), f"not refused by name: {message}"
            except Exception as problem:
                yield parameter, repr(value), repr(problem)
            else:
                if not may_work:
                    yield parameter, repr(value), "not refused"


@pytest.fixture
def compiled_at_once(monkeypatch):
    """Compile loops at their first call if numba is installed: it accepts fewer types."""
    monkeypatch.setattr(compilation, "_MIN_WORK", 0)


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_at_once")
@pytest.mark.parametrize("stage", STAGES)
def test_valid_call_works_and_invalid_value_raises_with_parameter_name(stage, tmp_path, monkeypatch):
    wrong = []
    for number, (name, call) in enumerate(CALLS.items()):
        if not name.startswith(f"{stage}."):
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        if "missing" in str(call.arguments) or "nowhere" in str(call.arguments):
            with pytest.raises(DphmmError):
                run_call(name)
        else:
            run_call(name)
        required = find_requirements(name)
        for parameter in call.arguments.keys() - call.ours:
            tried = find_faults(partial(run_call, name), parameter, required.get(parameter, ()))
            wrong += [(name, *fault) for fault in tried]
    assert not wrong


def test_every_public_call_with_values_is_varied():
    varied = {".".join(name.split(".")[:2]) for name in CALLS}
    missing = set()
    for stage, name in EXPORTS:
        exported = getattr(importlib.import_module(f"dphmm.{stage}"), name)
        makes = inspect.isclass(exported) and ("__init__" in vars(exported) or hasattr(exported, "__post_init__"))
        plain = hasattr(exported, "__dataclass_fields__") and not hasattr(exported, "__post_init__")
        if inspect.isroutine(exported) or (makes and not plain):
            missing.add(f"{stage}.{name}")
    assert missing - varied == NOT_VARIED.keys() & missing
    assert not varied & NOT_VARIED.keys()


# Numbers of public calls without a declared range, and the reason.
WITHOUT_RANGE = {
    "accuracy_m": "belongs to a fix, refused in the answer of the stream",
    "bound": "a figure may have any unit",
    "cell": "is a length in the unit of the measurements",
    "epsilon": "is a budget checked by the engine or the mechanism",
    "error_km": "is drawn only if it is finite",
    "first": "is a timestep, perhaps before 1970",
    "first_slot": "is a timestep, perhaps before 1970",
    "latitude": "belongs to a fix, refused in the answer of the stream",
    "longitude": "belongs to a fix, refused in the answer of the stream",
    "loss": "is an argument of a mechanism's gauge",
    "radius": "is a length in the unit of the measurements",
    "rounding": "is an argument of a mechanism's gauge",
    "sensitivity": "is a rational for exact noise",
    "size": "follows from the states",
    "state": "is checked against the model",
    "steps": "is checked by the engine",
    "strength": "is drawn",
    "unit": "is a rational for exact noise",
    "unit_km": "is checked by the noise",
    "wait_seconds": "is passed to a database",
    "width": "is drawn",
    "zorder": "is drawn",
}


def test_numbers_declare_range_except_listed():
    missing = set()
    for stage, name in EXPORTS:
        exported = getattr(importlib.import_module(f"dphmm.{stage}"), name)
        members = vars(exported).values() if inspect.isclass(exported) else (exported,)
        for function in (getattr(member, "__func__", member) for member in members):
            if hasattr(function, "is_checked"):
                declarations = get_argument_requirements(function).items()
                missing |= {parameter for parameter, required in declarations if not has_range(required)}
    assert missing == WITHOUT_RANGE.keys()


# ---- the check itself -------------------------------------------------------------------------------------------


@check_arguments
def example(
    epsilon: Epsilon,
    steps: PositiveInt = 1,
    *,
    delta: Delta | None = None,
    name: str | None = None,
    f: np.ndarray | None = None,
) -> tuple[object, ...]:
    """An example.

    >>> example(1.0)
    (1.0, 1, None, None, None)
    """
    return epsilon, steps, delta, name, f


def test_valid_arguments_pass_unchanged():
    value = np.float64(0.5)
    assert example(value, np.int64(3), delta=0, name="a") == (0.5, 3, 0, "a", None)
    assert example(epsilon=Fraction(1, 2))[0] == Fraction(1, 2)
    assert example(1, f="taken at its word")[4] == "taken at its word"
    assert example.__doc__.startswith("An example")
    assert example.__globals__ is globals(), "doctest looks for examples in functions of the module"


@pytest.mark.parametrize("scalar", [np.int64, np.uint8, np.float32, np.float64, np.array])
def test_numbers_of_numpy_become_numbers_of_python(scalar):
    # JSON and fractions accept no others: such settings could neither be saved nor hashed.
    plain = example(scalar(2), delta=np.float32(0.5))
    assert plain == (2, 1, 0.5, None, None)
    assert {type(value) for value in plain} <= {int, float, type(None)}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"epsilon": "a"}, BudgetError, "epsilon must be a positive, finite number, got 'a'"),
        ({"epsilon": 0}, BudgetError, "epsilon must be a positive, finite number, got 0"),
        ({"epsilon": np.float64(-1.5)}, BudgetError, "epsilon must be a positive, finite number, got -1.5"),
        ({"epsilon": np.zeros(3)}, BudgetError, "epsilon must be .*, got an array of float64 of shape \\(3,\\)"),
        ({"epsilon": 10**5000}, BudgetError, "epsilon must be .*, got a very long int"),
        ({"epsilon": 1.0, "steps": 2.5}, InvalidInputError, "steps must be a positive integer, got 2.5"),
        ({"epsilon": 1.0, "steps": True}, InvalidInputError, "steps must be a positive integer, got True"),
        (
            {"epsilon": 1.0, "steps": 10**20},
            InvalidInputError,
            "steps must be a positive integer of at most 4611686018427387904, got 100000000000000000000",
        ),
        ({"epsilon": 1.0, "delta": 2}, InvalidInputError, r"delta must be in \[0, 1\), got 2"),
        ({"epsilon": 1.0, "name": b"a"}, InvalidInputError, "name must be a string, got b'a'"),
    ],
)
def test_invalid_argument_raises_with_parameter_requirement_and_value(arguments, error, message):
    with pytest.raises(error, match=f"^{message}$"):
        example(**arguments)


def test_faults_are_found_in_function_without_check():
    required = get_argument_requirements(example)
    for parameter in ("epsilon", "steps", "delta", "name"):
        kept, lost = (
            list(find_faults(lambda change, of=of: of(**{"epsilon": 1.0, **change}), parameter, required[parameter]))
            for of in (example, inspect.unwrap(example))
        )
        assert kept == []
        assert len(lost) == len(list_invalid_values(required[parameter])) > 2


def test_declaration_accepts_custom_bounds_and_error():
    @check_arguments
    def bounded(size: Annotated[int, Integers(2, 5, ConfigurationError)]) -> int:
        return size

    assert (bounded(2), bounded(5)) == (2, 5)
    for size in (1, 6):
        with pytest.raises(ConfigurationError, match=r"size must be an integer in \[2, 5\], got"):
            bounded(size)


def test_wrong_signature_raises_type_error():
    with pytest.raises(TypeError):
        example()
    with pytest.raises(TypeError):
        example(1.0, surplus=2)


class Unrelated:
    """A class accepted by no public call."""


# Contents of a file: the class itself raises pydantic's error, its reader an error of the package.
READ_BY_PYDANTIC = {"evaluation.EvaluationConfig", "serve.RelayConfig"}


def call_with_wrong_classes(of: Callable[..., object]) -> None:
    """Call with unrelated objects for all required arguments, and take the first result."""
    parameters = [
        parameter for parameter in inspect.signature(of).parameters.values() if parameter.default is parameter.empty
    ]
    named = {parameter.name: Unrelated() for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    if not parameters:
        return
    result = of(
        *(Unrelated() for parameter in parameters if parameter.kind <= parameter.POSITIONAL_OR_KEYWORD), **named
    )
    if hasattr(result, "__next__"):
        next(result)


@pytest.mark.parametrize("stage", sorted({stage for stage, _ in EXPORTS}))
def test_object_of_other_class_raises_package_error(stage, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = []
    for name in (name for of, name in EXPORTS if of == stage):
        exported = getattr(importlib.import_module(f"dphmm.{stage}"), name)
        called = inspect.isroutine(exported) or (
            inspect.isclass(exported)
            and not getattr(exported, "_is_protocol", False)
            and not inspect.isabstract(exported)
        )
        if f"{stage}.{name}" in READ_BY_PYDANTIC or not called:
            continue
        try:
            call_with_wrong_classes(exported)
        except Exception as problem:
            if not isinstance(problem, DphmmError) or "\n" in str(problem):
                wrong.append((name, repr(problem)))
    assert not wrong


def test_attribute_error_within_package_is_not_blamed_on_argument():
    @check_arguments
    def broken(ours: Unrelated, value: object) -> object:
        return ours.missing

    with pytest.raises(AttributeError):
        broken(Unrelated(), 1)
    with pytest.raises(InvalidInputError, match=r"ours must be Unrelated, got 1, which has no .missing."):
        broken(1, 1)

    for value in ([], (1,), [2]):
        with pytest.raises(InvalidInputError, match=r"ours must be Unrelated, got .* has no .missing."):
            broken(value, 1)

    @check_arguments
    def variadic(*ours: Unrelated) -> object:
        return [element.missing for element in ours]

    with pytest.raises(InvalidInputError, match=r"ours must be Unrelated, got 2, which has no .missing."):
        variadic(2)

    @check_arguments
    def unannotated(ours):
        return ours.missing

    with pytest.raises(AttributeError):
        unannotated(1)
