"""Tests of audit tables: their meaning, and one-line errors with the place of each flaw."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dphmm.audit.input_tables import (
    build_policy_graph,
    parse_constraint,
    read_edges,
    read_prior,
    read_secrets,
    read_states,
)
from dphmm.errors import DataFileError, PolicyError, StateError

STATES = "state,east,north,kind\na,0.1,1,x\nb,1/3,-2,x\nc,3e2,0,\n"
NAMES = ("a", "b", "c")


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "table.csv"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_states_are_read_exactly(write):
    names, measurements, labels = read_states(write("\ufeff" + STATES), "kind")
    assert names == ("a", "b", "c")
    assert measurements.tolist() == [[Fraction(1, 10), 1], [Fraction(1, 3), -2], [300, 0]]
    assert labels == ("x", "x", None)


def test_secrets_are_read_from_contributions_and_count_queries(write):
    path = write("secret,patient,disease\ns1,Alice,cancer\ns2,Bob,cancer\ns3,Bob,diabetes\n")
    names, counts = read_secrets(path, ["disease=cancer", "disease=cancer, patient=Bob"])
    assert names == ("s1", "s2", "s3")
    assert counts.tolist() == [[1, 0], [1, 1], [0, 0]]
    assert read_secrets(write("secret,x\ns1,1\ns2,-0.5\n"))[1].tolist() == [[1], [Fraction(-1, 2)]]


def test_edges_priors_and_possible_states_are_read(write):
    states, *_ = read_states(write("state,x\na,0\nb,1\nc,2\n"))
    graph = build_policy_graph(states, read_edges(write("p,q\na,c\n\nc,b\n")))
    assert graph.edge_array().tolist() == [[0, 2], [1, 2]]
    assert read_edges(write("p,q\n")) == ()
    assert read_prior(write("state,probability\nc,0.25\na,3/4\n"), NAMES).tolist() == [0.75, 0, 0.25]
    assert parse_constraint(("c", "a"), NAMES).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "rows"),
        ("state,x\n", "rows"),
        ("name,x\na,1\n", "no column 'state'"),
        ("state,x\na,1\n\n,\na,2\n", "line 5: state must be unique, got 'a' twice"),
        ("state,x\n,1\n", "line 2: state must have a name"),
        ("state,x\na,one\nb,2\n", "line 2: must be a decimal number .*'one'"),
        ("state,x\na,one\n", "no numeric column"),
        ("state,x\na,1,2\n", "line 2: has 3 fields, but the header has 2"),
        ("state,x,x\na,1,2\n", "must have unique column names"),
        ("state\na\n", "no numeric column"),
        ("state,x,y\na,nan,1\nb,0,1\n", "must be a decimal number .*'nan'"),
    ],
)
def test_invalid_state_tables_raise(write, text, words):
    with pytest.raises(DataFileError, match=words):
        read_states(write(text))


def test_other_invalid_tables_raise(write, tmp_path):
    with pytest.raises(DataFileError, match="no such file"):
        read_states(tmp_path / "nowhere.csv")
    with pytest.raises(DataFileError, match="'sort'"):
        read_states(write(STATES), "sort")
    with pytest.raises(DataFileError, match=r"COLUMN=VALUE .*disease"):
        read_secrets(write("secret,disease\ns1,cancer\n"), ["illness=cancer"])
    with pytest.raises(DataFileError, match=r"line 3: .*'s9'"):
        read_secrets(write("secret,x\ns9,1\ns9,1\n"))
    with pytest.raises(DataFileError, match=r"line 2: must contain two names, .*got 1"):
        read_edges(write("p,q\na,\n"))
    with pytest.raises(PolicyError, match="state 'z'"):
        build_policy_graph(("a", "b"), [("a", "z")])
    with pytest.raises(DataFileError, match=r"line 2: .*'z'"):
        read_prior(write("state,probability\nz,1\n"), NAMES)
    with pytest.raises(DataFileError, match="twice"):
        read_prior(write("state,probability\na,1\na,0\n"), NAMES)
    with pytest.raises(DataFileError, match="'probability'"):
        read_prior(write("state,p\na,1\n"), NAMES)
    with pytest.raises(StateError, match="'z'"):
        parse_constraint(("a", "z"), NAMES)
    with pytest.raises(StateError, match="twice"):
        parse_constraint(("a", "a"), NAMES)
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataFileError, match="UTF-8"):
        read_states(binary)


def test_fractions_become_exact_measurements(write):
    from dphmm import Measurements

    thirds = Measurements(read_states(write("state,x,y\na,0,0\nb,1/3,0\nc,1/3,2/3\n"))[1])
    assert thirds.is_lattice
    assert thirds.coordinates.dtype == np.int64
