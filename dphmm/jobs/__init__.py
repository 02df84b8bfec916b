"""Whole jobs, one function each: what the command line does, for Python.

The public names are imported on first use, so that a job costs only the stages that it joins.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
