"""The former name of `dphmm.model`, kept for one version."""

from __future__ import annotations

from dphmm.model import *  # noqa: F403
from dphmm.model import MarkovModel as ExtendedModel
from dphmm.model import SpeedLimit as Reach
from dphmm.model import StatePairs as Contexts
from dphmm.model import TimeClasses as Rhythm
from dphmm.model import __all__ as _names

__all__ = [*_names, "Contexts", "ExtendedModel", "Reach", "Rhythm"]
