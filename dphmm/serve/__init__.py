"""The relay: phones post locations, recipients are sent what a policy allows.

True locations are not stored.

`dphmm serve` runs it, see `docs/how-to/serve.md`. Public names are imported on first use, so that a relay's file can be
written without the libraries of the server.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
