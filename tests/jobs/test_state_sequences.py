"""Sequences of states without coordinates."""

from __future__ import annotations

import json

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from dphmm import MarkovModel, Measurements
from dphmm.errors import InvalidInputError, StateError
from dphmm.jobs import AuditTarget, audit_policy, learn_states, release_states
from dphmm.mechanisms import TableMechanism

PAGES = ["home", "news", "sports", "clinic", "pharmacy", "insurance"]
POLICY = nx.compose(nx.path_graph(PAGES[:3]), nx.complete_graph(PAGES[3:]))
UNIFORM = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6))
EPSILON = 1.2


def test_model_counts_moves():
    model = learn_states({"a": ["home", "news", "home", "news"], "b": ["news", "clinic"]}, PAGES, 0.5)
    counts = np.full((6, 6), 0.5)
    for move in ((0, 1), (1, 0), (0, 1), (1, 3)):
        counts[move] += 1
    assert model.transitions[0].toarray() == pytest.approx(counts / counts.sum(axis=1, keepdims=True))


def count_released(true: str, rounds: int) -> np.ndarray:
    visits = {f"user {number}": [true] for number in range(rounds)}
    released = [release.released for release in release_states(visits, PAGES, UNIFORM, POLICY, EPSILON, rng=5)]
    return np.array([released.count(page) for page in PAGES])


def find_violations(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return pages with frequencies that differ by more than exp(epsilon).

    Four standard errors are allowed.

    Alpha is below 1e-3 over the pages, with the seed of `count_released`.
    """
    slack = 4 * np.sqrt(first + np.exp(2 * EPSILON) * second + 1)
    return np.flatnonzero(first > np.exp(EPSILON) * second + slack)


@pytest.mark.slow
def test_frequencies_of_neighbours_differ_by_at_most_epsilon():
    rounds = 120
    home, news, clinic = (count_released(page, rounds) for page in ("home", "news", "clinic"))
    for first, second in ((home, news), (news, home)):
        assert not len(find_violations(first, second))
    # The same test rejects pages that the policy does not connect.
    assert len(find_violations(home, clinic))
    assert home[3:].sum() == clinic[:3].sum() == 0


def test_estimate_is_posterior_of_the_table():
    """Bayes' rule on the rows of the table, the weights of which other tests verify."""
    (release,) = release_states({"ann": ["clinic"]}, PAGES, UNIFORM, POLICY, EPSILON, rng=0)
    edges = np.array([(0, 1), (0, 2), (1, 2)])
    table = TableMechanism.graph_exponential(np.arange(3.0)[:, None], edges, EPSILON, np.ones(3)).table
    column = table.weights[:, PAGES.index(release.released) - 3].astype(float)
    assert release.probability == pytest.approx(column.max() / column.sum())
    assert release.most_probable == PAGES[3 + int(column.argmax())]


def test_users_have_separate_budgets_and_output_is_json():
    visits = {"ann": ["home", "news"], "bob": ["clinic"]}
    rows = [release.to_dict() for release in release_states(visits, PAGES, UNIFORM, POLICY, EPSILON, rng=0)]
    assert [row["user"] for row in rows] == ["ann", "ann", "bob"]
    assert [row["epsilon_total"] for row in rows] == pytest.approx([EPSILON, 2 * EPSILON, EPSILON])
    assert json.loads(json.dumps(rows)) == rows


def test_saved_model_and_own_measurements(tmp_path):
    UNIFORM.save(tmp_path / "pages.npz")
    visits = {"ann": ["home", "clinic"]}
    points = np.random.default_rng(0).normal(size=(6, 2))
    releases = list(
        release_states(visits, PAGES, tmp_path / "pages.npz", POLICY, 1.0, "k-norm", measurements=points, rng=0)
    )
    assert [release.released for release in releases] == [None, None]
    assert len(releases[0].record.released) == 2
    (one_hot, _) = release_states(visits, PAGES, UNIFORM, POLICY, 1.0, "laplace", rng=0)
    assert len(one_hot.record.released) == len(PAGES)


def test_audit_of_constraint_set_finds_exposed_page():
    target = AuditTarget(tuple(PAGES), Measurements(np.eye(6)), POLICY, UNIFORM)
    audit = audit_policy(target, [target.constrain_to(["home", "clinic", "pharmacy"])])
    assert audit.audits[0].bodies[0].exposed == (0,)


def test_exposed_page_is_repaired_before_release():
    """With three possible pages `home` has no neighbour. The release connects it to one."""
    start = np.array([1, 0, 0, 1, 1, 0]) / 3
    model = MarkovModel(np.full((6, 6), 1 / 6), start)
    (release,) = release_states({"ann": ["home"]}, PAGES, model, POLICY, 1.0, rng=0)
    assert release.record.min_degree_of_protection >= 2
    assert {0} < {state for edge in release.record.added_edges for state in edge}


@pytest.mark.parametrize(
    ("sequences", "names", "match"),
    [
        ({"ann": ["shop"]}, PAGES, "'ann'.*'shop'"),
        ({"ann": "home"}, PAGES, "'ann'.*'h'"),
        ({"ann": []}, PAGES, r"'ann'.*\[\]"),
        (["home"], PAGES, r"sequences must be a mapping by name, got \['home'\]"),
        ({"ann": ["home"]}, [*PAGES[:5], "home"], "1 repeated among 6"),
        ({"ann": ["home"]}, PAGES[:5], "each of 6 states, got 5"),
    ],
)
def test_invalid_states_are_refused_before_any_release(sequences, names, match):
    with pytest.raises(StateError, match=match):
        next(release_states(sequences, names, UNIFORM, POLICY, 1.0))


@pytest.mark.parametrize("seed", range(4))
def test_equal_measurements_are_refused_before_any_sample(seed):
    points = [[0.0], [0.0], [1.0], [2.0], [3.0], [4.0]]
    with pytest.raises(InvalidInputError, match="measurements must be distinct"):
        next(release_states({"ann": ["clinic"]}, PAGES, UNIFORM, POLICY, 1.0, measurements=points, rng=seed))


def test_learning_from_no_sequence_raises():
    with pytest.raises(StateError, match="sequences must contain a user, got none"):
        learn_states({}, PAGES)


@pytest.mark.parametrize("state", [None, float("nan"), ["home"], "attic"])
def test_missing_or_unknown_state_is_named(state):
    with pytest.raises(StateError, match="states of user 'a' must be names of states, got"):
        learn_states({"a": ["home", state, "news"]}, PAGES)


def test_names_and_states_may_be_columns_of_pandas():
    names = pd.Series(PAGES, index=range(6, 0, -1))
    sequences = {"ann": pd.Series(["clinic", "home"], index=[8, 9])}
    columns, lists = (
        list(release_states(states, pages, UNIFORM, POLICY, 1.0, rng=0))
        for states, pages in ((sequences, names), ({"ann": ["clinic", "home"]}, PAGES))
    )
    assert columns == lists
