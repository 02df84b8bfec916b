# The public names, imported on first use (lazy_loader reads this file); type checkers read it too.
from .config import RelayConfig, write_relay
from .server import serve

__all__ = ["RelayConfig", "serve", "write_relay"]
