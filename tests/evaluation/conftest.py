"""Fixtures of simulated walkers and their evaluation."""

from __future__ import annotations

import pytest

from dphmm.evaluation.run import Evaluation, StepTable
from tests.walkers import config, trajectories, walkers_file

__all__ = ["InOrder", "config", "trajectories", "walkers_file"]


class InOrder:
    """A sequential engine that runs each task in this process."""

    def run(self, function, work):
        return (function(piece) for piece in work)


@pytest.fixture(scope="session")
def plain(config, trajectories, tmp_path_factory) -> Evaluation:
    """Return the finished evaluation. Tests must not change its folder."""
    evaluation = Evaluation.open(config, tmp_path_factory.mktemp("plain") / "run", lambda: trajectories)
    assert len(list(evaluation.run(InOrder()))) == len(evaluation.tasks) == 14
    return evaluation


@pytest.fixture(scope="session")
def plain_table(plain) -> StepTable:
    return plain.table()
