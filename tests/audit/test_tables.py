"""Tables that an audit reads: what they mean, and every flaw refused in one line with its place."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dphmm.audit.tables import edges_graph, possible_states, read_edges, read_prior, read_secrets, read_states
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


def test_states_are_as_exact_as_they_were_written(write):
    names, measurements, labels = read_states(write("\ufeff" + STATES), "kind")
    assert names == ("a", "b", "c")
    assert measurements.tolist() == [[Fraction(1, 10), 1], [Fraction(1, 3), -2], [300, 0]]
    assert labels == ("x", "x", None)


def test_secrets_by_contribution_and_by_count_queries(write):
    path = write("secret,patient,disease\ns1,Alice,cancer\ns2,Bob,cancer\ns3,Bob,diabetes\n")
    names, counts = read_secrets(path, ["disease=cancer", "disease=cancer, patient=Bob"])
    assert names == ("s1", "s2", "s3")
    assert counts.tolist() == [[1, 0], [1, 1], [0, 0]]
    assert read_secrets(write("secret,x\ns1,1\ns2,-0.5\n"))[1].tolist() == [[1], [Fraction(-1, 2)]]


def test_edges_priors_and_possible_states(write):
    states, *_ = read_states(write("state,x\na,0\nb,1\nc,2\n"))
    graph = edges_graph(states, read_edges(write("p,q\na,c\n\nc,b\n")))
    assert graph.edge_array().tolist() == [[0, 2], [1, 2]]
    assert read_edges(write("p,q\n")) == ()
    assert read_prior(write("state,probability\nc,0.25\na,3/4\n"), NAMES).tolist() == [0.75, 0, 0.25]
    assert possible_states(("c", "a"), NAMES).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no rows"),
        ("state,x\n", "holds no rows"),
        ("name,x\na,1\n", "no column 'state'"),
        ("state,x\na,1\n\n,\na,2\n", "line 5: state 'a' is named twice"),
        ("state,x\n,1\n", "line 2: a state has no name"),
        ("state,x\na,one\nb,2\n", "line 2: 'one' is no number"),
        ("state,x\na,one\n", "no column of numbers"),
        ("state,x\na,1,2\n", "line 2: has 3 fields; the header has 2"),
        ("state,x,x\na,1,2\n", "names a column twice"),
        ("state\na\n", "no column of numbers"),
        ("state,x,y\na,nan,1\nb,0,1\n", "'nan' is no number"),
    ],
)
def test_flawed_tables_of_states_are_refused(write, text, words):
    with pytest.raises(DataFileError, match=words):
        read_states(write(text))


def test_other_flaws_are_refused(write, tmp_path):
    with pytest.raises(DataFileError, match="no such file"):
        read_states(tmp_path / "nowhere.csv")
    with pytest.raises(DataFileError, match="no column 'sort'"):
        read_states(write(STATES), "sort")
    with pytest.raises(DataFileError, match="COLUMN=VALUE with a column among disease"):
        read_secrets(write("secret,disease\ns1,cancer\n"), ["illness=cancer"])
    with pytest.raises(DataFileError, match="line 3: secret 's9' is named twice"):
        read_secrets(write("secret,x\ns9,1\ns9,1\n"))
    with pytest.raises(DataFileError, match="line 2: holds 1 names"):
        read_edges(write("p,q\na,\n"))
    with pytest.raises(PolicyError, match="state 'z', which is not in the table"):
        edges_graph(("a", "b"), [("a", "z")])
    with pytest.raises(DataFileError, match="line 2: state 'z' does not exist"):
        read_prior(write("state,probability\nz,1\n"), NAMES)
    with pytest.raises(DataFileError, match="named twice"):
        read_prior(write("state,probability\na,1\na,0\n"), NAMES)
    with pytest.raises(DataFileError, match="no column 'probability'"):
        read_prior(write("state,p\na,1\n"), NAMES)
    with pytest.raises(StateError, match="'z' does not exist"):
        possible_states(("a", "z"), NAMES)
    with pytest.raises(StateError, match="named twice"):
        possible_states(("a", "a"), NAMES)
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataFileError, match="is not UTF-8 text"):
        read_states(binary)


def test_numbers_go_on_as_exact_measurements(write):
    from dphmm import Measurements

    thirds = Measurements(read_states(write("state,x,y\na,0,0\nb,1/3,0\nc,1/3,2/3\n"))[1])
    assert thirds.is_lattice
    assert thirds.coordinates.dtype == np.int64
