"""The live relay: phones post true places, recipients get what a policy allows, and nothing true is kept.

`dphmm serve` runs it; `docs/how-to/serve.md` says how it is set up.
"""

from dphmm.serve.config import RelayConfig, write_relay
from dphmm.serve.server import serve

__all__ = ["RelayConfig", "serve", "write_relay"]
