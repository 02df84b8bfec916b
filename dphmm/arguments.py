"""What a public call refuses before it begins: values that its own annotations rule out.

`checked` reads a function's annotations once and looks at each call's arguments: a number is no text, a path no array,
a table of numbers is not ragged and holds no objects. It converts nothing, and says nothing of ranges and shapes, which
are the function's own to check. Arguments of other annotations (models, engines) are not looked at before the call; one
of another class is refused once it lacks an attribute that is asked of it.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

from dphmm.errors import (
    BudgetError,
    CoordinateError,
    CountError,
    InvalidInputError,
    PolicyError,
    StateError,
    StochasticError,
)

Target = TypeVar("Target", bound=Callable[..., Any])

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
"""What is raised for an argument of a name; `InvalidInputError` for all others."""

_WORDS_OR_TIMES = frozenset({"labels", "landmarks", "moment", "names", "time", "times", "timestamps", "values"})
"""Arrays that may hold texts or times."""

_LARGEST = 2**62


def checked(target: Target) -> Target:
    """A function, or a class by its constructor, that refuses arguments which are not of its annotations' kinds.

    Raises
    ------
    InvalidInputError
        Or the kind of it that goes with the argument's name; the message names the argument and what it is.
    """
    return _checked(target, None)


def checked_as(error: type[InvalidInputError]) -> Callable[[Target], Target]:
    """`checked`, raising one error whatever the argument is called."""
    return functools.partial(_checked, error=error)


def _checked(target: Target, error: type[InvalidInputError] | None) -> Target:
    if inspect.isclass(target):
        setattr(target, "__init__", _checked(target.__init__, error))  # noqa: B010 - a type checker refuses an assignment
        return target
    parameters = inspect.signature(target).parameters
    kinds = {name: found for name, one in parameters.items() if (found := _kinds(one.annotation))}
    places = [name for name, one in parameters.items() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    looked_at = [(place, name, kinds[name]) for place, name in enumerate(places) if name in kinds]

    check = _check
    at_once = not inspect.isgeneratorfunction(target)
    refuse, annotations = _refuse_wrong_class, {name: str(one.annotation) for name, one in parameters.items()}

    def call(*args: Any, **keywords: Any) -> Any:
        for place, name, allowed in looked_at:
            if place >= len(args):
                break
            check(name, args[place], allowed, error)
        for name, value in keywords.items():
            if name in kinds:
                check(name, value, kinds[name], error)
        try:
            return target(*args, **keywords) if at_once else kept(target(*args, **keywords), args, keywords)
        except AttributeError as problem:
            refuse(problem, {**dict(zip(places, args, strict=False)), **keywords}, annotations, error)
            raise

    def kept(found: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:  # what a generator meets on its way
        try:
            yield from found
        except AttributeError as problem:
            refuse(problem, {**dict(zip(places, args, strict=False)), **keywords}, annotations, error)
            raise

    # With the globals of the module that it stands in, doctest finds it there.
    made = FunctionType(call.__code__, target.__globals__, target.__name__, None, call.__closure__)
    return functools.wraps(target)(made)  # type: ignore[return-value]


def _refuse_wrong_class(
    problem: AttributeError,
    given: Mapping[str, Any],
    annotations: Mapping[str, str],
    error: type[InvalidInputError] | None,
) -> None:
    """Refuse the argument, or a member of one, that lacks an attribute and is not of the class that is annotated."""
    for name, value in given.items():
        held = value if isinstance(value, list | tuple) else (value,)
        wanted = annotations.get(name, "")
        classes = {one.__name__ for one in type(problem.obj).__mro__}
        if any(one is problem.obj for one in held) and not classes & set(re.findall(r"\w+", wanted)):
            kind = error or _ERRORS.get(name, InvalidInputError)
            raise kind(f"{name} is {_described(problem.obj)}, which has no {problem.name!r}; give {wanted}") from None


def _check(name: str, value: Any, allowed: Collection[str], error: type[InvalidInputError] | None) -> None:
    for kind in allowed:
        if _KNOWN[kind][0](value, name) if kind in _KNOWN else any(one.__name__ == kind for one in type(value).__mro__):
            return
    wanted = " or ".join(dict.fromkeys(_KNOWN[kind][1] if kind in _KNOWN else f"a {kind}" for kind in allowed))
    raise (error or _ERRORS.get(name, InvalidInputError))(f"{name} is {_described(value)}; give {wanted}")


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    try:
        text = " ".join(str(value).split())
    except (ValueError, RecursionError):  # thousands of digits, a thousand brackets
        text = "very long"
    shown = text if len(text) <= 40 else f"{text[:37]}..."
    return shown if isinstance(value, int | float) else f"{shown!r} ({type(value).__name__})"


def _kinds(annotation: Any) -> tuple[str, ...]:
    """The kinds of value that an annotation allows; none where it allows one that is not known here."""
    if not isinstance(annotation, str):
        return ()
    if annotation == "np.datetime64 | str":
        return "time", "time text"
    found: list[str] = []
    for part in (part.strip() for part in re.split(r"\|(?![^\[]*\])", annotation)):
        found += ("word",) if part.startswith("Literal[") else _KINDS_OF.get(part, ("",))
    return tuple(found) if all(found) else ()


def _is_number(value: Any, _: str) -> bool:
    if type(value) is float:  # as nearly all are; what follows takes a while
        return True
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "biuf"
    if not isinstance(value, Real | np.bool_ | Decimal):
        return False
    try:
        return not (isinstance(value, Decimal) and math.isnan(value)) and float(value) is not None
    except (ValueError, OverflowError):
        return False


def _is_whole(value: Any, _: str) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.kind in "iu"
    return isinstance(value, int | np.integer) and abs(int(value)) <= _LARGEST


def _is_path(value: Any, _: str) -> bool:
    if not isinstance(value, str | Path) or "\0" in str(value):
        return False
    try:
        str(value).encode("utf-8")
    except UnicodeEncodeError:  # half a character
        return False
    return True


def _is_time_text(value: Any, _: str) -> bool:
    try:
        return isinstance(value, str) and not np.isnat(np.datetime64(value, "us"))
    except (ValueError, OverflowError):
        return False


def _is_arrays(value: Any, name: str) -> bool:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return False
    return not isinstance(value, Collection) or all(_is_array(one, name) for one in value)


def _is_words(value: Any, _: str) -> bool:
    if isinstance(value, str | bytes | np.ndarray) or not isinstance(value, Collection):
        return False
    return all(isinstance(one, str) for one in value)


def _is_array(value: Any, name: str) -> bool:
    if hasattr(value, "tocsr"):
        return True
    # A graph is a sequence to numpy, which would ask for the neighbours of every node.
    if value is None or isinstance(value, str | bytes | dict | set | frozenset) or hasattr(value, "is_multigraph"):
        return False
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, OverflowError):
        return False
    kind = array.dtype.kind
    if kind == "O":
        return all(_is_rational(one) for one in array.ravel().tolist())
    return kind in "biuf" or (kind in "SUMm" and name in _WORDS_OR_TIMES)


def _is_rational(value: Any) -> bool:
    return isinstance(value, Real | Fraction) and _is_number(value, "")


def _is_mapping(value: Any, _: str) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _is_paths(value: Any, name: str) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str) and all(_is_path(one, name) for one in value)


def _of(*classes: type) -> Callable[[Any, str], bool]:
    return lambda value, _: isinstance(value, classes)


_KNOWN: dict[str, tuple[Callable[[Any, str], bool], str]] = {
    "number": (_is_number, "a number"),
    "whole": (_is_whole, "a whole number"),
    "word": (_of(str), "a text"),
    "path": (_is_path, "a path"),
    "bytes": (_of(bytes, bytearray, memoryview), "bytes"),
    "words": (_is_words, "a list of texts"),
    "array": (_is_array, "an array of numbers"),
    "paths": (_is_paths, "a list of paths"),
    "time": (lambda value, _: isinstance(value, np.datetime64) and not np.isnat(value), "a numpy.datetime64"),
    "time text": (_is_time_text, "an ISO 8601 time"),
    "datetime": (
        lambda value, _: isinstance(value, datetime) and value.tzinfo is not None,
        "a datetime with a time zone",
    ),
    "mapping": (_is_mapping, "a mapping by name"),
    "flag": (_of(type(None), bool, np.bool_, int, str), "true or false"),
    "arrays": (_is_arrays, "a list of arrays of numbers"),
    "graph": (
        lambda value, _: any(one.__name__ in ("PolicyGraph", "Graph") for one in type(value).__mro__),
        "a PolicyGraph or a networkx.Graph",
    ),
    "function": (lambda value, _: callable(value), "a function"),
    "None": (_of(type(None)), "nothing"),
}
"""Kind of value → whether a value is of it, given the argument's name too, and what a message asks for.

Of another name it is a class.
"""
_KINDS_OF: dict[str, tuple[str, ...]] = {
    "float": ("number",),
    "int": ("whole",),
    "str": ("word",),
    "Path": ("path",),
    "bytes": ("bytes",),
    "None": ("None",),
    "bool": ("flag",),
    "np.datetime64": ("time",),
    "datetime": ("datetime",),
    "Callable[[str], object]": ("function",),
    "Sequence[AuditedMechanism]": ("words",),
    **dict.fromkeys(("Sequence[tuple[int, int]]", "Sequence[float]"), ("array",)),
    **dict.fromkeys(("Mapping[str, Sequence[float]]", "Mapping[str, Sequence[npt.ArrayLike]]"), ("mapping",)),
    **dict.fromkeys(("Sequence[npt.ArrayLike]", "Iterable[npt.ArrayLike]", "Iterable[StateSequence]"), ("arrays",)),
    **dict.fromkeys(("Mapping[str, Any]", "Mapping[str, str]", "Mapping[str, npt.NDArray[Any]]"), ("mapping",)),
    "Model": ("MarkovModel", "path"),
    "Matrix": ("path", "array"),
    "PolicyLike": ("graph",),
    "SettingsLike": ("ReleaseSettings", "word", "graph"),
    "DataLike": ("Data", "path", "paths", "DataFrame", "Trajectory", "TrajectoryCollection"),
    **{
        name: (name,)
        for name in ("Account", "Data", "Measurements", "ReleaseSettings", "ReleaseTable", "SessionStore", "TimedTable")
    },
    **dict.fromkeys(("Sequence[str]", "Collection[str]", "Iterable[str]", "tuple[str, ...]", "list[str]"), ("words",)),
    **dict.fromkeys(("npt.ArrayLike", "FloatArray", "IntArray", "BoolArray"), ("array",)),
    **dict.fromkeys(("npt.NDArray[Any]", "Times", "TimeArray", "csr_array", "sparse.csr_array"), ("array",)),
    **dict.fromkeys(("Method", "Objective", "Body", "Membership", "MechanismName", "Outside"), ("word",)),
    **dict.fromkeys(("CountMechanism", "SchemeName", "Rule"), ("word",)),
}
"""Annotation → the kinds of value, or the names of the classes, that it stands for."""
