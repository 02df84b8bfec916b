"""The walkers, and an evaluation of them."""

from tests.walkers import config, people, walkers_file

__all__ = ["config", "people", "walkers_file"]
