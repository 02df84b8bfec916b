"""Priors from a table: one column for each prior, every state once."""

from __future__ import annotations

import pytest

from dphmm.errors import DataFileError
from dphmm.events import read_priors
from dphmm.space import Grid, Places

STOPS = Places(["a", "b", "c"], [45.0, 45.01, 45.02], [7.0, 7.01, 7.02])


def test_each_column_is_prior_over_named_states(tmp_path):
    path = tmp_path / "priors.csv"
    path.write_text("state,home bird,commuter\nc,0.1,0.5\na,0.9,0.5\n")
    first, second = read_priors(path, STOPS)
    assert first.tolist() == [0.9, 0.0, 0.1]
    assert second.tolist() == [0.5, 0.0, 0.5]
    grid = Grid.over((45.0, 7.0, 45.02, 7.02), 1.0)
    path.write_text("state,p\n0,1\n")
    assert read_priors(path, grid)[0][0] == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("state,p\na,0.5\nd,0.5\n", "line 3: state 'd'"),
        ("state,p\na,0.5\na,0.5\n", "line 3: state 'a' .*twice"),
        ("state,p\na,0.5\n", r"column 'p' .*\b0\.5\b"),
        ("state,p\na,x\n", "line 2: could not convert"),
        ("state\na\n", "must have a column of probabilities for each prior"),
        ("place,p\na,1\n", "state"),
    ],
)
def test_invalid_table_of_priors_raises(tmp_path, text, message):
    path = tmp_path / "priors.csv"
    path.write_text(text)
    with pytest.raises(DataFileError, match=message) as caught:
        read_priors(path, STOPS)
    assert "\n" not in str(caught.value)
