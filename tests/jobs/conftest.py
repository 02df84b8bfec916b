"""Fixtures of simulated walkers and their evaluation."""

from tests.walkers import config, trajectories, walkers_file

__all__ = ["config", "trajectories", "walkers_file"]
