"""The live relay: phones post true places, recipients get what a policy allows, and nothing true is kept.

`dphmm serve` runs it; `docs/how-to/serve.md` says how it is set up. The public names are imported on first use, for its
file can be written without the server's libraries.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
