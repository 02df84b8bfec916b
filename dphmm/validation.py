"""Declared parameters: requirements in the annotations of parameters and fields.

An annotation such as `Delta` or ``Annotated[int, Integers(2, 2048)]`` declares the type and the range.
`check_arguments` raises an error for other values, in a uniform wording (``delta must be in [0, 1), got 2``).
`declare_setting` makes the field of a dataclass an option of commands and a key of files. `get_argument_requirements`
lists the declarations, from which tests derive invalid values.

Numbers and booleans of NumPy become Python's, because JSON and exact fractions accept no others. Nothing else is
converted. Of arrays only types and shapes are checked, not their entries. Arguments of other classes
(models, engines) are not checked before the call. An argument of a wrong class raises an error when it lacks an
attribute.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import Field, dataclass, field
from datetime import datetime
from decimal import Decimal
from math import inf
from numbers import Real
from pathlib import Path
from types import FunctionType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np

from dphmm.errors import (
    BudgetError,
    ConfigurationError,
    CoordinateError,
    CountError,
    InvalidInputError,
    PolicyError,
    StateError,
    StochasticError,
)

Target = TypeVar("Target", bound=Callable[..., Any])

# Name of a parameter → error for an invalid value, unless the declaration has another; default: InvalidInputError.
_ERRORS: dict[str, type[InvalidInputError]] = {
    **dict.fromkeys(("epsilon", "epsilons", "alpha", "alphas", "sensitivity", "claimed"), BudgetError),
    **dict.fromkeys(
        ("transition", "matrix", "forward", "backward", "initial", "prior", "distribution"), StochasticError
    ),
    **dict.fromkeys(("log_likelihood", "log_likelihoods"), StochasticError),
    **dict.fromkeys(("f", "points", "latitude", "longitude", "vectors", "differences", "released"), CoordinateError),
    **dict.fromkeys(("users", "noisy", "true"), CountError),
    **dict.fromkeys(("state", "states", "sequences"), StateError),
    **dict.fromkeys(("labels", "groups", "edges", "radius", "size", "graph", "policy"), PolicyError),
}

# Names of arrays that may contain strings or times.
_WORDS_OR_TIMES = frozenset({"labels", "landmarks", "names", "time", "times", "timestamps", "values"})

# Upper bound on absolute integers, half the range of 64 bits.
MAX_INTEGER = 2**62


# ---- requirements -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Requirement:
    """A requirement on a value.

    Parameters
    ----------
    text
        The requirement in words, as it follows *must be* in a message.
    accepts
        Predicate of valid values.
    invalid
        Invalid values, for tests.
    error
        Error for an invalid value. Defaults to one that depends on the parameter's name.
    """

    text: str
    accepts: Callable[[Any], bool]
    invalid: tuple[Any, ...] = ()
    error: type[InvalidInputError] | None = None


Closed = Literal["both", "left", "right", "neither"]


class Interval(Requirement):
    """A real number between two bounds, as in scikit-learn. NaN and booleans are invalid.

    Parameters
    ----------
    low, high
        The bounds.
    closed
        Bounds that belong to the interval.
    unit
        Unit of the number, in the plural.
    error
        Argument of `Requirement`.

    Examples
    --------
    >>> Interval(0, 1, "left").text, Interval(0, inf, "neither", "kilometres").text
    ('in [0, 1)', 'a positive, finite number of kilometres')
    """

    def __init__(
        self,
        low: float = -inf,
        high: float = inf,
        closed: Closed = "both",
        unit: str = "",
        error: type[InvalidInputError] | None = None,
    ) -> None:
        has_low = closed in ("both", "left")
        has_high = closed in ("both", "right")

        def accepts(value: Any) -> bool:
            if type(value) is not float:  # fast path: most values are floats
                if not _is_number(value):
                    return False
                value = float(value)
            return (low < value or (has_low and value == low)) and (value < high or (has_high and value == high))

        outside = [math.nan, "a", [1.0], True, np.timedelta64(1, "s"), *((-inf,) if low > -inf or not has_low else ())]
        outside += (inf,) if high < inf or not has_high else ()
        for bound, direction, belongs in ((low, -inf, has_low), (high, inf, has_high)):
            if math.isfinite(bound):
                outside += [math.nextafter(bound, direction) if belongs else bound, bound + math.copysign(1, direction)]
        bounds = f"{'[' if has_low else '('}{low:.15g}, {high:.15g}{']' if has_high else ')'}"
        finite = "" if has_high else ", finite"
        words = {0.0: f"a {'non-negative' if has_low else 'positive'}{finite} number", -inf: f"a{finite[1:]} number"}
        text = words.get(low, f"in {bounds}") if high == inf else f"in {bounds}"
        super().__init__(
            f"{text} {'' if text[0] == 'i' else 'of '}{unit}" if unit else text, accepts, tuple(outside), error
        )


class Integers(Requirement):
    """An integer between two bounds, inclusive. Floats and booleans are invalid.

    Parameters
    ----------
    low, high
        The bounds. Default to those of a 64-bit count.
    error
        Argument of `Requirement`.

    Examples
    --------
    >>> Integers(1).text, Integers(2, 2048).text
    ('a positive integer', 'an integer in [2, 2048]')
    """

    def __init__(
        self, low: int = -MAX_INTEGER, high: int = MAX_INTEGER, error: type[InvalidInputError] | None = None
    ) -> None:
        words = {-MAX_INTEGER: "an integer", 0: "a non-negative integer", 1: "a positive integer"}
        text = (
            words.get(low, f"an integer of at least {low}") if high == MAX_INTEGER else f"an integer in [{low}, {high}]"
        )
        outside = (low - 1, high + 1, 2**63, 1.5, math.nan, "1", [1], True, np.timedelta64(low, "s"))
        super().__init__(text, lambda value: _is_whole(value) and low <= value <= high, outside, error)


class Choice(Requirement):
    """One of several words, equivalent to ``Literal[…]``.

    Parameters
    ----------
    *words
        The words.

    Examples
    --------
    >>> Choice("error", "volume").text
    'one of error, volume'
    """

    def __init__(self, *words: str) -> None:
        text = f"one of {', '.join(words)}" if len(words) > 1 else repr(words[0])
        outside = ("", f"{words[0]}s", 1, b"a", [words[0]])
        super().__init__(text, lambda value: isinstance(value, str) and value in words, outside, ConfigurationError)
        object.__setattr__(self, "words", words)

    words: tuple[str, ...]


def _is_number(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "iuf"
    # NumPy counts differences of times among integers.
    if isinstance(value, bool | np.timedelta64) or not isinstance(value, Real | Decimal):
        return False
    try:
        return not (isinstance(value, Decimal) and math.isnan(value)) and float(value) is not None
    except (ValueError, OverflowError):
        return False


def _is_whole(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "iu"
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)


def is_name(value: Any) -> bool:
    """Return whether a value is a string that is not blank and can be encoded."""
    return isinstance(value, str) and bool(value.strip()) and _is_path(value)


def _is_path(value: Any) -> bool:
    if not isinstance(value, str | Path) or "\0" in str(value):
        return False
    try:
        str(value).encode("utf-8")
    except UnicodeEncodeError:  # an unpaired surrogate
        return False
    return True


def _is_time_text(value: Any) -> bool:
    try:
        return isinstance(value, str) and not np.isnat(np.datetime64(value, "us"))
    except (ValueError, OverflowError):
        return False


def _is_arrays(value: Any) -> bool:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return False
    return not isinstance(value, Collection) or all(_is_array(element) for element in value)


def _is_words(value: Any) -> bool:
    if isinstance(value, str | bytes | np.ndarray) or not isinstance(value, Collection):
        return False
    return all(isinstance(element, str) for element in value)


def _is_array(value: Any, kinds: str = "biuf") -> bool:
    if hasattr(value, "tocsr"):
        return True
    if np.ma.is_masked(value):  # NumPy would read what the mask hides
        return False
    # NumPy treats a graph as a sequence and would query the neighbours of every node.
    if value is None or isinstance(value, str | bytes | dict | set | frozenset) or hasattr(value, "is_multigraph"):
        return False
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, OverflowError):
        return False
    if array.dtype.kind == "O":
        return all(
            isinstance(element, bool) or (isinstance(element, Real) and _is_number(element))
            for element in array.ravel().tolist()
        )
    return array.dtype.kind in kinds


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _make_instance_test(*classes: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, classes)


def _make_class_test(*names: str) -> Callable[[Any], bool]:
    """Return a predicate for classes by name, because this module cannot import them."""
    return lambda value: any(base.__name__ in names for base in type(value).__mro__)


NOTHING = Requirement("None", lambda value: value is None)
NUMBER = Requirement("a number", _is_number, ("a", None, [1.0], 1j, Decimal("NaN"), 10**400, True))
TEXT = Requirement("a string", _make_instance_test(str), (None, 1, b"a", ["a"]))
PATH = Requirement("a path", _is_path, (None, 1, b"a", "x\0y", "\ud800"))
WORDS = Requirement("a list of strings", _is_words, (None, "a", b"a", 1, [1]))
ARRAY = Requirement(
    "an array of numbers",
    _is_array,
    (None, "a", {"a": 1}, [[1], [1, 2]], np.ones(2, dtype=complex), np.array([None, {}], dtype=object), ["a", "b"]),
)
WORDS_OR_TIMES = Requirement(
    "an array of numbers, strings or numpy.datetime64", lambda value: _is_array(value, "biufSUMm"), ARRAY.invalid[:-1]
)
ARRAYS = Requirement("a list of arrays of numbers", _is_arrays, (None, "a", 1, [["a"]], [None]))
MAPPING = Requirement("a mapping by name", _is_mapping, (None, "a", 1, {1: 2}, ["a"]))
FLAG = Requirement("True or False", _make_instance_test(bool, np.bool_), (None, 1, "yes", [True]))
TIME = Requirement(
    "a numpy.datetime64",
    lambda value: isinstance(value, np.datetime64) and not np.isnat(value),
    (None, 1, "a", np.datetime64("NaT", "us")),
)
GRAPH = Requirement(
    "a PolicyGraph or a networkx.Graph", _make_class_test("PolicyGraph", "Graph"), (None, 1, "a", [[0, 1]])
)

# Annotation → alternatives of a valid value. Annotations that declare requirements themselves need no entry.
_REQUIREMENTS: dict[str, tuple[Requirement, ...]] = {
    "float": (NUMBER,),
    "int": (Integers(),),
    "str": (TEXT,),
    "Path": (PATH,),
    "bytes": (Requirement("bytes", _make_instance_test(bytes, bytearray, memoryview), (None, 1, "a")),),
    "None": (NOTHING,),
    "bool": (FLAG,),
    "np.datetime64": (TIME,),
    "datetime": (
        Requirement(
            "a datetime with a time zone",
            lambda value: isinstance(value, datetime) and value.tzinfo is not None,
            (None, 1, datetime(2024, 1, 1)),
        ),
    ),
    "Callable[[str], object]": (Requirement("a function", callable, (None, 1, "a")),),
    "Sequence[AuditedMechanism]": (WORDS,),
    **dict.fromkeys(("Sequence[tuple[int, int]]", "Sequence[float]", "Sequence[int]"), (ARRAY,)),
    **dict.fromkeys(("Sequence[npt.ArrayLike]", "Iterable[npt.ArrayLike]", "Iterable[StateSequence]"), (ARRAYS,)),
    **dict.fromkeys(("Mapping[str, Any]", "Mapping[str, str]", "Mapping[str, npt.NDArray[Any]]"), (MAPPING,)),
    **dict.fromkeys(("Mapping[str, Releaser]", "Mapping[str, Sequence[str]]"), (MAPPING,)),
    **dict.fromkeys(("Mapping[str, Sequence[float]]", "Mapping[str, Sequence[npt.ArrayLike]]"), (MAPPING,)),
    **dict.fromkeys(("Sequence[str]", "Collection[str]", "Iterable[str]", "tuple[str, ...]", "list[str]"), (WORDS,)),
    **dict.fromkeys(("npt.ArrayLike", "FloatArray", "IntArray", "BoolArray"), (ARRAY,)),
    **dict.fromkeys(("npt.NDArray[Any]", "Times", "TimeArray", "csr_array", "sparse.csr_array"), (ARRAY,)),
    "PolicyLike": (GRAPH,),
    "Generator": (Requirement("a numpy.random.Generator", _make_class_test("Generator"), (None, 1.5, "a", [1])),),
    **{
        name: (Requirement(f"a {name}", _make_class_test(name), (1, b"a", object())),)
        for name in (
            *("Account", "Data", "Limits", "Measurements", "ReleaseSettings", "ReleaseTable", "SessionStore"),
            *("DataFrame", "MarkovModel", "Releaser", "StateSpace", "TimedTable", "Trajectory", "TrajectoryCollection"),
        )
    },
}


def _collect_requirements(*annotations: str) -> tuple[Requirement, ...]:
    return tuple(requirement for annotation in annotations for requirement in _REQUIREMENTS[annotation])


def _is_input(value: Any) -> bool:
    is_table = hasattr(value, "__arrow_c_stream__") or hasattr(value, "__dataframe__")
    return (
        _is_path(value)
        or is_table
        or _make_class_test("Data", "Trajectory", "TrajectoryCollection", "DataFrame")(value)
    )


def _are_inputs(value: Any) -> bool:
    # A dictionary of columns is not a list of paths.
    return isinstance(value, Collection) and not isinstance(value, str | Mapping) and all(map(_is_input, value))


_DATA = Requirement(
    "a path, a table with __arrow_c_stream__ or __dataframe__, a Trajectory, a list of these, or a Data",
    lambda value: _is_input(value) or _are_inputs(value),
    (None, 1, b"a", object(), [1]),
)
_REQUIREMENTS |= {
    "Model": _collect_requirements("MarkovModel", "Path"),
    "Matrix": _collect_requirements("Path", "npt.ArrayLike"),
    "SettingsLike": _collect_requirements("ReleaseSettings", "str", "PolicyLike"),
    "DataLike": (_DATA,),
}


# ---- common declarations -------------------------------------------------------------------------------------------

Epsilon = Annotated[float, Interval(0, inf, "neither", error=BudgetError)]
# A budget of noise, within the bounds of `dphmm.tolerances.MIN_SCALE` and `dphmm.tolerances.MAX_SCALE`.
NoiseEpsilon = Annotated[float, Interval(1e-30, 1e30, error=BudgetError)]
Delta = Annotated[float, Interval(0, 1, "left")]
Probability = Annotated[float, Interval(0, 1)]
OpenProbability = Annotated[float, Interval(0, 1, "neither")]
PositiveNumber = Annotated[float, Interval(0, inf, "neither")]
NonNegativeNumber = Annotated[float, Interval(0, inf, "left")]
Kilometres = Annotated[float, Interval(0, inf, "neither", "kilometres", ConfigurationError)]
Seconds = Annotated[float, Interval(0, inf, "neither", "seconds", ConfigurationError)]
PositiveInt = Annotated[int, Integers(1)]
NonNegativeInt = Annotated[int, Integers(0)]
SeedOrGenerator = NonNegativeInt | np.random.Generator
Text = Annotated[str, Requirement("a non-empty string", is_name, (None, 1, b"a", "", "x\0y", "\ud800"))]


# ---- settings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """The presentation of a setting. Its name, type, range and default are those of its field.

    Parameters
    ----------
    help
        Help text of one line.
    metavar
        Placeholder of a value in the help, such as ``"KM"``.
    heading
        Heading of the option in the help; empty for common options.
    name
        Name of the option if it differs from the field's.
    shows_default
        Whether the help contains the default.
    is_text
        Whether the option is a string with a unit, such as 500m or 8h, although the field is a number.
    """

    help: str
    metavar: str | None = None
    heading: str = ""
    name: str = ""
    shows_default: bool = False
    is_text: bool = False


def declare_setting(default: Any, text: str, **about: Any) -> Any:
    """Make a field of a dataclass a setting: an option of commands and a key of files.

    Parameters
    ----------
    default
        Default of the field. An empty dictionary is created anew for each instance.
    text
        Help text of one line.
    **about
        Arguments of `Option`.
    """
    metadata = {"option": Option(text, **about)}
    return (
        field(default_factory=dict, metadata=metadata) if default == {} else field(default=default, metadata=metadata)
    )


def get_option(member: Field[Any]) -> Option | None:
    """Return the presentation of a field as a setting, or None if it is not one."""
    option: Option | None = member.metadata.get("option")
    return option


# ---- checks ----------------------------------------------------------------------------------------------------------


def get_argument_requirements(target: Callable[..., Any]) -> dict[str, tuple[Requirement, ...]]:
    """Return the requirements on the arguments of a function or a constructor.

    Returns
    -------
    dict
        Parameter → requirements, one of which must be met. Unrestricted parameters are missing.
    """
    function = inspect.unwrap(target.__init__ if inspect.isclass(target) else target)
    parameters = inspect.signature(function).parameters
    namespace = function.__globals__
    requirements_by_name = {
        name: _get_requirements(parameter.annotation, namespace, name) for name, parameter in parameters.items()
    }
    return {name: needed for name, needed in requirements_by_name.items() if needed}


def get_field_requirements(owner: type, name: str) -> tuple[Requirement, ...]:
    """Return the requirements on a field of a dataclass."""
    namespace = vars(sys.modules[owner.__module__])
    return _get_requirements(inspect.get_annotations(owner)[name], namespace, name)


def _get_requirements(annotation: Any, namespace: Mapping[str, Any], name: str) -> tuple[Requirement, ...]:
    """Return the alternatives of an annotation. Empty if one of them is unknown here."""
    if not isinstance(annotation, str):
        return ()
    if annotation == "np.datetime64 | str":
        return TIME, Requirement("an ISO 8601 time", _is_time_text, ("a", ""))
    alternatives: list[Requirement] = []
    for part in _split_alternatives(ast.parse(annotation, mode="eval").body):
        text = ast.unparse(part)
        needed = _REQUIREMENTS.get(text) or _evaluate_annotation(text, namespace)
        if not needed:
            return ()
        alternatives += (WORDS_OR_TIMES,) if needed == (ARRAY,) and name in _WORDS_OR_TIMES else needed
    return tuple(alternatives)


def _split_alternatives(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _split_alternatives(node.left) + _split_alternatives(node.right)
    return [node]


def _evaluate_annotation(text: str, namespace: Mapping[str, Any]) -> tuple[Requirement, ...]:
    """Return the requirements of an annotation that declares them or is an alias."""
    try:
        value = eval(text, dict(namespace))
    except (NameError, AttributeError, TypeError):
        # An unknown name may be imported for type checkers only. Anything else is a mistake in a declaration.
        if "Annotated" in text or text in globals():
            raise
        return ()
    return _extract_requirements(value)


def _extract_requirements(value: Any) -> tuple[Requirement, ...]:
    origin = get_origin(value)
    if origin is Annotated:
        return tuple(requirement for requirement in value.__metadata__ if isinstance(requirement, Requirement))
    if origin is Literal:
        return (Choice(*get_args(value)),)
    if origin in (Union, UnionType):
        parts = [_extract_requirements(argument) for argument in get_args(value)]
        return tuple(requirement for part in parts for requirement in part) if all(parts) else ()
    return _REQUIREMENTS.get("None" if value is type(None) else getattr(value, "__name__", ""), ())


def check_arguments(target: Target) -> Target:
    """Make a function or a constructor check its arguments against its annotations.

    Raises
    ------
    InvalidInputError
        Or the subclass of the declaration or of the parameter's name. The message contains the parameter, the
        requirement and the value.
    """
    return _add_checks(target, None)


def check_arguments_as(error: type[InvalidInputError]) -> Callable[[Target], Target]:
    """Return `check_arguments` with an error for declarations without their own."""
    return functools.partial(_add_checks, error=error)


def _add_checks(target: Target, error: type[InvalidInputError] | None) -> Target:
    if inspect.isclass(target):
        setattr(target, "__init__", _add_checks(target.__init__, error))  # noqa: B010 - a type checker refuses an assignment
        return target
    parameters = inspect.signature(target).parameters
    names = [
        name
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    annotations = {
        name: str(parameter.annotation)
        for name, parameter in parameters.items()
        if parameter.annotation is not inspect.Parameter.empty  # as that of self
    }
    needed: dict[str, tuple[Requirement, ...]] = {}
    positional: list[tuple[int, str, tuple[Requirement, ...]]] = []
    is_resolved = False

    def resolve() -> None:
        # Deferred to the first call, because annotations may use names that the module defines further down.
        nonlocal is_resolved
        needed.update(get_argument_requirements(target))
        positional.extend((index, name, needed[name]) for index, name in enumerate(names) if name in needed)
        is_resolved = True

    variadic = next((name for name, parameter in parameters.items() if parameter.kind is parameter.VAR_POSITIONAL), "")
    check = _check
    is_generator = inspect.isgeneratorfunction(target)
    refuse = _refuse_wrong_class

    def bind(args: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
        return {**dict(zip(names, args, strict=False)), variadic: args[len(names) :], **keywords}

    def call(*args: Any, **keywords: Any) -> Any:
        if not is_resolved:
            resolve()
        for index, name, allowed in positional:
            if index >= len(args):
                break
            value = check(name, args[index], allowed, error)
            if value is not args[index]:
                args = (*args[:index], value, *args[index + 1 :])
        for name, value in keywords.items():
            if name in needed:
                keywords[name] = check(name, value, needed[name], error)
        try:
            result = target(*args, **keywords)
            return iterate(result, args, keywords) if is_generator else result
        except AttributeError as problem:
            refuse(problem, bind(args, keywords), annotations, error)
            raise

    def iterate(generator: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        # A generator raises its errors during the iteration.
        try:
            yield from generator
        except AttributeError as problem:
            refuse(problem, bind(args, keywords), annotations, error)
            raise

    # Use the globals of the target's module, so that doctest finds the function there.
    wrapper = FunctionType(call.__code__, target.__globals__, target.__name__, None, call.__closure__)
    setattr(wrapper, "is_checked", True)  # noqa: B010 - a type checker refuses an assignment
    return functools.wraps(target)(wrapper)  # type: ignore[return-value]  # `wraps` changes the type


def _check(name: str, value: Any, allowed: tuple[Requirement, ...], error: type[InvalidInputError] | None) -> Any:
    """Return a valid value, or raise an error."""
    for requirement in allowed:
        if requirement.accepts(value):
            is_scalar = isinstance(requirement, Interval | Integers) or requirement in (NUMBER, FLAG)
            return value.item() if is_scalar and isinstance(value, np.generic | np.ndarray) else value
    # The alternative None is mentioned only if it is the only one.
    shown = [requirement for requirement in allowed if requirement is not NOTHING] or allowed
    kind = (
        next((requirement.error for requirement in shown if requirement.error), None)
        or error
        or _ERRORS.get(name, InvalidInputError)
    )
    wanted = " or ".join(dict.fromkeys(requirement.text for requirement in shown))
    # The words of a requirement omit the limit of 64-bit counts.
    if _is_whole(value) and abs(value) > MAX_INTEGER and wanted.endswith("integer"):
        wanted += f" of at most {MAX_INTEGER}" if value > 0 else f" of at least {-MAX_INTEGER}"
    raise kind(f"{name} must be {wanted}, got {_describe_value(value)}")


def _refuse_wrong_class(
    problem: AttributeError,
    arguments: Mapping[str, Any],
    annotations: Mapping[str, str],
    error: type[InvalidInputError] | None,
) -> None:
    """Raise an error if an argument or its element lacks an attribute and has a wrong class."""
    for name, wanted in annotations.items():
        value = arguments.get(name)
        elements = (value, *value) if isinstance(value, list | tuple) else (value,)
        classes = {base.__name__ for base in type(problem.obj).__mro__}
        if any(element is problem.obj for element in elements) and not classes & set(re.findall(r"\w+", wanted)):
            kind = error or _ERRORS.get(name, InvalidInputError)
            raise kind(
                f"{name} must be {wanted}, got {_describe_value(problem.obj)}, which has no {problem.name!r}"
            ) from None


def _describe_value(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{'a masked' if np.ma.is_masked(value) else 'an'} array of {value.dtype} of shape {value.shape}"
    try:
        text = " ".join((str(value) if isinstance(value, np.generic) else repr(value)).split())
    except (ValueError, RecursionError):  # thousands of digits, a thousand brackets
        return f"a very long {type(value).__name__}"
    kind = type(value)
    # The content or the address of an object does not identify it, as that of a frame.
    if kind.__module__ != "builtins" and (" at 0x" in text.lower() or hasattr(kind, "collect")):
        return f"an object of type {kind.__module__}.{kind.__qualname__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
