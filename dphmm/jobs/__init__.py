"""Jobs: one function per command of the command line.

The functions and classes listed in ``__init__.pyi`` are imported on first use, so a job imports only the stages that it
needs. A job has the name of its module or folder: `dphmm.jobs.hide` is the function. Other names of the folder are
imported from its modules, such as `dphmm.jobs.hide.hide`.
"""

import sys
from types import ModuleType
from typing import Any

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


class _Jobs(ModuleType):
    """A module that keeps its public functions when a submodule of the same name is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system sets each submodule as an attribute of its package. Without this, `dphmm.jobs.hide` would be
        # the function or the module, depending on which was imported first.
        if not (isinstance(value, ModuleType) and name in __all__):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Jobs
