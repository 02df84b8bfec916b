"""Processes that do not run the script of their caller.

A process that `multiprocessing` starts with ``spawn`` or ``forkserver`` imports the caller's ``__main__`` module. A
script without an ``if __name__ == "__main__"`` guard then runs once more in each process. If it releases locations,
each run is an independent release of the same true locations, which no ledger counts.
"""

from __future__ import annotations

import multiprocessing.spawn
import sys
from multiprocessing.context import SpawnContext, SpawnProcess
from types import FunctionType, SimpleNamespace
from typing import Any

if sys.platform == "win32":
    from multiprocessing.popen_spawn_win32 import Popen

    _START = "__init__"
else:
    from multiprocessing.popen_spawn_posix import Popen

    _START = "_launch"


def _prepare_without_script(name: str) -> dict[str, Any]:
    """Return the preparation of a new process without the script that its parent runs."""
    data = dict(multiprocessing.spawn.get_preparation_data(name))
    data.pop("init_main_from_name", None)
    data.pop("init_main_from_path", None)
    return data


def _start_without_script() -> Any:
    """Return the standard library's start of a process, with the preparation replaced.

    The standard library has no option for it. A copy of the method's text would miss its changes between versions, and
    a replaced function of the module would concern processes of the caller.
    """
    start: Any = getattr(Popen, _START)
    spawn = SimpleNamespace(**vars(multiprocessing.spawn))
    spawn.get_preparation_data = _prepare_without_script
    names = {**start.__globals__, "spawn": spawn}
    return FunctionType(start.__code__, names, _START, start.__defaults__, start.__closure__)


_ScriptlessPopen: Any = type("_ScriptlessPopen", (Popen,), {_START: _start_without_script()})


class ScriptlessProcess(SpawnProcess):
    """A new process that imports modules of its task only, never the caller's script."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return _ScriptlessPopen(process_obj)


class ScriptlessContext(SpawnContext):
    """A `multiprocessing` context of `ScriptlessProcess`."""

    Process = ScriptlessProcess  # type: ignore[assignment,unused-ignore]  # the stubs require the class of the base
