"""Every error this package raises on purpose.

::

    DphmmError
    ├── InvalidInputError (also ValueError)   a value that cannot be right
    │   ├── BudgetError                       epsilon: not positive, not finite
    │   │   └── CorrelationTooStrongError     no budget keeps the promise: the states follow each other too closely
    │   ├── StateError                        a state outside the state space
    │   ├── StochasticError                   a matrix or vector of probabilities that is none
    │   ├── ConstraintError                   a constraint of the wrong length, or empty
    │   │   └── AlreadyKnownError             one possible state only: nothing can hide it
    │   ├── PolicyError                       a policy graph that does not fit
    │   ├── CoordinateError                   NaN, infinite or impossible coordinates
    │   ├── TimeOrderError                    times that go back, or lie in the future
    │   │   └── OmittedError                  a moment of which was said that it has no release
    │   ├── CountError                        counts, or numbers of users, that cannot be
    │   ├── LandmarkError                     significant timestamps that are not among the timestamps
    │   ├── EventError                        an event that cannot be read, or asked about
    │   ├── DataFileError                     an input file: unreadable, truncated, malformed
    │   └── ConfigurationError                a job or an option that makes no sense
    │       └── SessionMismatchError          a session that was agreed on other terms
    ├── DownloadError                         a public data set that could not be fetched
    ├── OutputError                           an output that exists or cannot be written
    ├── EngineError                           workers that cannot be reached or keep dying
    ├── MissingDependencyError (also ImportError)  an extra that is not installed
    ├── ConvergenceError                      a numerical solver that does not reach its tolerance
    ├── BudgetExceededError                   a step that would pass the limit agreed on
    ├── PromiseError                          a step whose noise would not keep what its record says
    └── SessionBusyError                      a session that another process holds

A message is one line: what was looked at, what was found, what to do.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any


class DphmmError(Exception):
    """Base of every error raised on purpose by this package.

    Its message is one line that a terminal can be shown, whatever a file put into it: what is no printable character
    stands there as its escape, and what is very long is cut in its middle.

    Parameters
    ----------
    message
        What was wrong, what was found, and what to do about it; shown on one line.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(_on_one_line(message))

    def __reduce__(self) -> tuple[Any, ...]:  # arguments of subclasses differ, and workers send errors home
        return _again, (type(self), str(self), dict(vars(self)))


def _again(kind: type[DphmmError], message: str, attributes: dict[str, Any]) -> DphmmError:
    made = kind.__new__(kind, message)
    made.args = (message,)
    vars(made).update(attributes)
    return made


def _on_one_line(message: str) -> str:
    said = _ORDERS.sub(lambda found: f"\\u{ord(found[0]):04x}", _LINE_ENDS.sub(" ", str(message)))
    return said if len(said) <= _LONGEST else f"{said[: _LONGEST // 2]} ... {said[-_LONGEST // 4 :]}"


_LONGEST = 2000
_LINE_ENDS = re.compile(r"\s*[\n\r\v\f]\s*")
_ORDERS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class InvalidInputError(DphmmError, ValueError):
    """A value that cannot be right."""


class BudgetError(InvalidInputError):
    """A privacy budget that is not a positive finite number."""


class CorrelationTooStrongError(BudgetError):
    """States that follow each other so closely that no positive budget keeps temporal leakage where it should be."""


class StateError(InvalidInputError):
    """A state outside the state space."""


class StochasticError(InvalidInputError):
    """Numbers that should be probabilities and are not."""


class ConstraintError(InvalidInputError):
    """A constraint set of the wrong length, or an empty one."""


class AlreadyKnownError(ConstraintError):
    """A constraint set of one state: the adversary knows it, and no noise can hide it.

    Parameters
    ----------
    message
        Which state is known, and what to do about it; shown on one line.
    """


class PolicyError(InvalidInputError):
    """A policy graph that does not fit the states it is used with."""


class CoordinateError(InvalidInputError):
    """Coordinates that are not finite, or not on the Earth."""


class TimeOrderError(InvalidInputError):
    """Times that go back, or lie in the future."""


class OmittedError(TimeOrderError):
    """A moment of which was said that it has no release; it never gets one."""


class CountError(InvalidInputError):
    """Counts, or a number of users, that cannot be."""


class LandmarkError(InvalidInputError):
    """Significant timestamps that are not among the timestamps."""


class EventError(InvalidInputError):
    """An event over time that cannot be read, cannot be asked about, or is known before anything is released."""


class DataFileError(InvalidInputError):
    """An input file that cannot be read as what it should be.

    Parameters
    ----------
    path
        The file.
    problem
        What was found and what to do, without the file's name.
    line
        The line's number, counted from one, where there is one.
    """

    def __init__(self, path: str | Path, problem: str, line: int | None = None) -> None:
        self.path = Path(path)
        self.problem = problem
        self.line = line
        where = f"{path}" if line is None else f"{path}, line {line}"
        super().__init__(f"{where}: {problem}")


class ConfigurationError(InvalidInputError):
    """A job or an option that makes no sense."""


class SessionMismatchError(ConfigurationError):
    """A session whose model, policy, mechanism or limits are not those that it began with."""


class DownloadError(DphmmError):
    """A public data set that could not be fetched, or came as something else."""


class OutputError(DphmmError):
    """An output that exists already or cannot be written."""


class EngineError(DphmmError):
    """Workers that cannot be reached, or that keep dying; what they finished is kept."""


class ConvergenceError(DphmmError):
    """A numerical solver that does not reach its tolerance."""


class MissingDependencyError(DphmmError, ImportError):
    """A library that is not installed.

    Parameters
    ----------
    library
        What could not be imported.
    extra
        The extra that brings it; None for a dependency of the package itself, which an image may lack.
    """

    def __init__(self, library: str, extra: str | None) -> None:
        wanted = library if extra is None else f"'dphmm[{extra}]'"
        super().__init__(f"{library} is not installed; install it with: pip install {wanted}")


def need(library: str, extra: str | None) -> Any:
    """Import a library, or a module of one, that may not be installed.

    Parameters
    ----------
    library
        What to import, such as ``"pyarrow"`` or ``"gpxpy.gpx"``.
    extra
        The extra that brings it; None for a dependency of the package itself.

    Returns
    -------
    module
        The one that was named, not the package above it.

    Raises
    ------
    MissingDependencyError
        When it is not installed.
    """
    try:
        return importlib.import_module(library)
    except ImportError:
        raise MissingDependencyError(library.partition(".")[0], extra) from None


def check_installed(library: str, extra: str) -> None:
    """Refuse to begin what needs a library of an optional extra, without importing it.

    Parameters
    ----------
    library
        The library.
    extra
        The extra that brings it.

    Raises
    ------
    MissingDependencyError
        When it is not installed.
    """
    if importlib.util.find_spec(library) is None:
        raise MissingDependencyError(library, extra)


class BudgetExceededError(DphmmError):
    """A step that would pass the limit agreed on; nothing was drawn and nothing was spent."""


class PromiseError(DphmmError):
    """A step whose noise would not keep what its record says; nothing was drawn and nothing was spent."""


class SessionBusyError(DphmmError):
    """A session that another process holds; nothing was drawn, and asking again is safe."""
