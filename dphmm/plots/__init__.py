"""Maps, curves and reports. Functions of one plot take an `ax`, others create files.

The public names are imported on first use, for most of them need matplotlib.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
