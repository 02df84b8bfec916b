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
    │   ├── TimeOrderError                    times that go back
    │   ├── CountError                        counts, or numbers of users, that cannot be
    │   ├── LandmarkError                     significant timestamps that are not among the timestamps
    │   ├── DataFileError                     an input file: unreadable, truncated, malformed
    │   └── ConfigurationError                a job or an option that makes no sense
    │       └── SessionMismatchError          a session that was agreed on other terms
    ├── DownloadError                         a public data set that could not be fetched
    ├── OutputError                           an output that exists or cannot be written
    ├── EngineError                           workers that cannot be reached or keep dying
    ├── MissingDependencyError (also ImportError)  an extra that is not installed
    ├── BudgetExceededError                   a step that would pass the limit agreed on
    └── SessionBusyError                      a session that another process holds

A message is one line: what was looked at, what was found, what to do.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any


class DphmmError(Exception):
    """Base of every error raised on purpose by this package."""


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
    """A constraint set of one state: the adversary knows it, and no noise can hide it."""


class PolicyError(InvalidInputError):
    """A policy graph that does not fit the states it is used with."""


class CoordinateError(InvalidInputError):
    """Coordinates that are not finite, or not on the Earth."""


class TimeOrderError(InvalidInputError):
    """Times that go back."""


class CountError(InvalidInputError):
    """Counts, or a number of users, that cannot be."""


class LandmarkError(InvalidInputError):
    """Significant timestamps that are not among the timestamps."""


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


class MissingDependencyError(DphmmError, ImportError):
    """A library of an optional extra that is not installed.

    Parameters
    ----------
    library
        What could not be imported.
    extra
        The extra that brings it.
    """

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f"{library} is not installed; install it with: pip install 'dphmm[{extra}]'")


def need(library: str, extra: str) -> Any:
    """A library of an optional extra, or a module of one, imported.

    Parameters
    ----------
    library
        What to import, such as ``"pyarrow"`` or ``"gpxpy.gpx"``.
    extra
        The extra that brings it.

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


class BudgetExceededError(DphmmError):
    """A step that would pass the limit agreed on; nothing was drawn and nothing was spent."""


class SessionBusyError(DphmmError):
    """A session that another process holds; nothing was drawn, and asking again is safe."""
