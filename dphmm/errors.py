"""The exceptions of the package.

::

    DphmmError
    ├── InvalidInputError (also ValueError)   an invalid value
    │   ├── BudgetError                       epsilon that is not positive and finite
    │   │   └── CorrelationTooStrongError     no budget satisfies the guarantee under these correlations
    │   ├── StateError                        a state outside the state space
    │   ├── StochasticError                   an invalid matrix or vector of probabilities
    │   ├── ConstraintError                   a constraint set of the wrong length, or an empty one
    │   │   └── SingletonConstraintError      a constraint set of one state, which cannot be protected
    │   ├── PolicyError                       a policy graph that does not match the states
    │   ├── CoordinateError                   NaN, infinite or invalid coordinates
    │   ├── TimeOrderError                    times out of order, or in the future
    │   │   └── WithheldTimestepError         a timestep that was agreed to have no release
    │   ├── CountError                        invalid counts, or numbers of users
    │   ├── LandmarkError                     landmarks that are not among the timestamps
    │   ├── EventError                        an event that cannot be parsed or evaluated
    │   ├── DataFileError                     an unreadable, truncated or malformed input file
    │   │   ├── EmptyDataError                input without a fix
    │   │   └── NotRecordingError             a file with another content than locations and times
    │   └── ConfigurationError                an invalid job or option
    │       ├── MissingExtensionError         an own mechanism, space or reader that is not installed
    │       └── SessionMismatchError          a session with other terms
    ├── DownloadError                         a public data set that cannot be downloaded
    ├── OutputError                           an output that exists or cannot be written
    ├── EngineError                           workers that cannot be reached or keep failing
    ├── MissingDependencyError (also ImportError)  an optional dependency that is not installed
    ├── ConvergenceError                      a numerical solver that does not reach its tolerance
    ├── BudgetExceededError                   a release that would exceed a limit
    ├── GuaranteeError                        a release with noise that would violate its record
    └── SessionBusyError                      a session that another process has locked

A message is one line: the requirement, the received value, and the fix if it is not obvious.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any


class DphmmError(Exception):
    """Base class of the exceptions of this package.

    The message is one line that is safe to display on a terminal, no matter what an input file contains: unprintable
    characters are escaped, and a very long message is truncated in the middle.

    Parameters
    ----------
    message
        The requirement, the received value, and the fix.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(_to_one_line(message))

    def __reduce__(self) -> tuple[Any, ...]:
        # Subclasses have different signatures, and errors must survive pickling between workers.
        return _restore, (type(self), str(self), dict(vars(self)))


def _restore(kind: type[DphmmError], message: str, attributes: dict[str, Any]) -> DphmmError:
    error = kind.__new__(kind, message)
    error.args = (message,)
    vars(error).update(attributes)
    return error


def _to_one_line(message: str) -> str:
    text = _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", _LINE_ENDS.sub(" ", str(message)))
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH // 2]} ... {text[-_MAX_LENGTH // 4 :]}"


_MAX_LENGTH = 2000
_LINE_ENDS = re.compile(r"\s*[\n\r\v\f]\s*")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class InvalidInputError(DphmmError, ValueError):
    """An invalid value."""


class BudgetError(InvalidInputError):
    """A privacy budget that is not positive and finite."""


class CorrelationTooStrongError(BudgetError):
    """Correlations so strong that no positive budget bounds the temporal leakage as required."""


class StateError(InvalidInputError):
    """A state outside the state space."""


class StochasticError(InvalidInputError):
    """Invalid probabilities."""


class ConstraintError(InvalidInputError):
    """A constraint set of the wrong length, or an empty one."""


class SingletonConstraintError(ConstraintError):
    """A constraint set of one state, which the adversary knows and no noise can protect.

    Parameters
    ----------
    message
        The state, and the fix.
    """


class PolicyError(InvalidInputError):
    """A policy graph that does not match the states."""


class CoordinateError(InvalidInputError):
    """Coordinates that are not finite, or not on the Earth."""


class TimeOrderError(InvalidInputError):
    """Times that are out of order, or in the future."""


class WithheldTimestepError(TimeOrderError):
    """A timestep that was agreed to have no release, permanently."""


class CountError(InvalidInputError):
    """Invalid counts, or an invalid number of users."""


class LandmarkError(InvalidInputError):
    """Landmarks that are not among the timestamps."""


class EventError(InvalidInputError):
    """An event that cannot be parsed or evaluated, or is decided before the first release."""


class DataFileError(InvalidInputError):
    """An input file that cannot be parsed as the expected format.

    Parameters
    ----------
    path
        The file.
    problem
        The problem and the fix, without the name of the file.
    line
        Line number, counted from 1; None if there is none.
    """

    def __init__(self, path: str | Path, problem: str, line: int | None = None) -> None:
        self.path = Path(path)
        self.problem = problem
        self.line = line
        where = f"{path}" if line is None else f"{path}, line {line}"
        super().__init__(f"{where}: {problem}")


class EmptyDataError(DataFileError):
    """Input without a fix: no file, no record, or skipped records only."""


class NotRecordingError(DataFileError):
    """A file with another content than locations and times, or of a format that is not read."""


class ConfigurationError(InvalidInputError):
    """An invalid job or option."""


class MissingExtensionError(ConfigurationError):
    """An extension by another package that is neither installed nor registered."""


class SessionMismatchError(ConfigurationError):
    """A session that began with another model, policy or mechanism, or other limits."""


class DownloadError(DphmmError):
    """A public data set that cannot be downloaded, or has unexpected content."""


class OutputError(DphmmError):
    """An output that exists already or cannot be written."""


class EngineError(DphmmError):
    """Workers that cannot be reached, or keep failing. Their finished work is kept."""


class ConvergenceError(DphmmError):
    """A numerical solver that does not reach its tolerance."""


class MissingDependencyError(DphmmError, ImportError):
    """A library that is not installed.

    Parameters
    ----------
    library
        The library that cannot be imported.
    extra
        The extra that installs it; None for a dependency of the package itself, which an image may lack.
    """

    def __init__(self, library: str, extra: str | None) -> None:
        wanted = library if extra is None else f"'dphmm[{extra}]'"
        super().__init__(f"{library} is not installed; install it with: pip install {wanted}")


def import_library(library: str, extra: str | None) -> Any:
    """Import a library, or one of its modules, that may not be installed.

    Parameters
    ----------
    library
        The module, such as ``"pyarrow"`` or ``"gpxpy.gpx"``.
    extra
        The extra that installs it; None for a dependency of the package itself.

    Returns
    -------
    module
        The module itself, not its parent package.

    Raises
    ------
    MissingDependencyError
        If it is not installed.
    """
    try:
        return importlib.import_module(library)
    except ImportError:
        raise MissingDependencyError(library.partition(".")[0], extra) from None


def check_installed(library: str, extra: str) -> None:
    """Check that a library of an optional extra is installed, without importing it.

    Parameters
    ----------
    library
        The library.
    extra
        The extra that installs it.

    Raises
    ------
    MissingDependencyError
        If it is not installed.
    """
    if importlib.util.find_spec(library) is None:
        raise MissingDependencyError(library, extra)


class BudgetExceededError(DphmmError):
    """A release that would exceed a limit. Nothing was sampled and nothing was spent."""


class GuaranteeError(DphmmError):
    """A release with noise that would violate its record. Nothing was sampled or spent."""


class SessionBusyError(DphmmError):
    """A session that another process has locked. Nothing was sampled. Retrying is safe."""
