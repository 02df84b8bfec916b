"""The walkers, and an evaluation of them."""

from __future__ import annotations

import pytest

from dphmm.evaluation.run import Evaluation, StepTable
from tests.walkers import config, people, walkers_file

__all__ = ["InOrder", "config", "people", "walkers_file"]


class InOrder:
    """The plainest engine: one task after another, here."""

    def run(self, function, work):
        return (function(piece) for piece in work)


@pytest.fixture(scope="session")
def plain(config, people, tmp_path_factory) -> Evaluation:
    """The evaluation, finished; nobody changes its folder."""
    evaluation = Evaluation.open(config, tmp_path_factory.mktemp("plain") / "run", lambda: people)
    assert len(list(evaluation.run(InOrder()))) == len(evaluation.tasks) == 14
    return evaluation


@pytest.fixture(scope="session")
def plain_table(plain) -> StepTable:
    return plain.table()
