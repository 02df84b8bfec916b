# The public names, imported on first use (lazy_loader reads this file); type checkers read it too.
from .config import RelayConfig
from .explore_page import ExploreServer, explore
from .server import reload_relay, serve
from .setup import (
    add_device,
    add_recipient,
    list_recipients,
    pause_recipient,
    prefer_device,
    prune_relay,
    remove_recipient,
    rotate_token,
    write_relay,
)

__all__ = [
    "ExploreServer",
    "RelayConfig",
    "add_device",
    "add_recipient",
    "explore",
    "list_recipients",
    "pause_recipient",
    "prefer_device",
    "prune_relay",
    "reload_relay",
    "remove_recipient",
    "rotate_token",
    "serve",
    "write_relay",
]
