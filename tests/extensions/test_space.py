"""A state space outside the package behaves as shipped ones. Broken variants fail."""

from __future__ import annotations

import subprocess
import sys
from itertools import count

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, ReleaseSettings, Trajectory
from dphmm.errors import ConfigurationError, MissingExtensionError, StateError
from dphmm.jobs import learn, release
from dphmm.space import Grid, Places, StateSpace, Streets, check_space, register_space
from dphmm.space.states import SPACE_REGISTRY
from tests.certificate.certificates import VERIFIER
from tests.extensions.pages import forget, install, read_file

CODE = read_file("own_space.md", "ring_road.py")


@pytest.fixture
def ring(tmp_path, monkeypatch):
    """Install the space of the page in a folder, and return its class."""
    install(tmp_path, "ring_road", CODE, "dphmm.spaces", "ring-road", "RingRoad")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(SPACE_REGISTRY, "_classes", {})
    forget("ring_road")
    yield SPACE_REGISTRY.find("ring-road")
    forget("ring_road")


def build_spaces(ring) -> list[StateSpace]:
    return [
        Grid.over((45.0, -30.0, 45.03, -29.97), cell_km=0.5),
        Places(["a", "b"], [45.0, 45.02], [7.0, 7.05], within_km=0.5),
        Streets([[450000000, 70000000], [450050000, 70000000], [450090000, 70010000]], [3]),
        ring(45.0, -30.0, 2.0, 40),
    ]


def test_shipped_and_registered_spaces_pass_the_same_suite(ring):
    assert len(CODE.splitlines()) <= 60
    for space in build_spaces(ring):
        check_space(space)


def test_broken_variants_fail_the_suite(ring, monkeypatch):
    class OffByOne(ring):
        def locate_plane(self, plane):
            return (super().locate_plane(plane) + 1) % self.segments

    class Everywhere(ring):
        def locate(self, latitude, longitude):
            return self.find_nearest_states(latitude, longitude)

    class Forgetful(ring):
        @classmethod
        def build(cls, data, size):
            return cls(*data["centre"], *data["road"][:2], width_km=0.1)

    class Smaller(ring):
        @classmethod
        def build(cls, data, size):
            return cls(*data["centre"], data["road"][0], data["road"][1] - 1)

    class Unsized(ring):
        @classmethod
        def build(cls, data, size):
            return cls(*data["centre"], data["road"][0], size)

    class Longer(ring):
        def __len__(self):
            return self.segments + 1

    class Unchecked(ring):
        def check(self, states):
            return np.atleast_1d(states)

    class NotJson(ring):
        def to_json(self):
            return {**super().to_json(), "points": self.points}

    class Failing(ring):
        def to_json(self):
            raise RuntimeError("no device")

    class Changing(ring):
        def to_json(self):
            return {**super().to_json(), "call": next(calls)}

    class Unbuildable(ring):
        @classmethod
        def build(cls, data, size):
            return None

    class Listed(ring):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.points = self.points.tolist()

    calls = count()
    expected = {
        OffByOne: "must locate the point of state 0 in state 0, got 1",
        Everywhere: "must locate the antipode of state 0 in no state",
        Forgetful: "must be equal to the space built from its dictionary",
        Smaller: "must be built from its own dictionary",
        Unsized: "must refuse its dictionary for 41 states instead of 40",
        Longer: "must have the length 40, the number of its points, got 41",
        Unchecked: "must refuse state 40 in check",
        NotJson: "must return a JSON-serializable dictionary",
        Failing: "must return a JSON-serializable dictionary from to_json: RuntimeError: no device",
        Changing: "must return the same dictionary from each call of to_json",
        Unbuildable: "must be built from its own dictionary: invalid state space of kind",
        Listed: r"must have an array of finite points .*, got list of shape \(40, 2\)",
    }
    for number, (broken, message) in enumerate(expected.items()):
        broken.name, broken.version = f"broken-{number}", "1"
        broken.__qualname__ = broken.__name__  # a local class cannot be pickled
        monkeypatch.setattr(sys.modules[__name__], broken.__name__, broken, raising=False)
        register_space(broken)
        with pytest.raises(StateError, match=f"{broken.__name__} {message}"):
            check_space(broken(45.0, -30.0, 2.0, 40))


def test_model_of_an_unreadable_space_is_neither_saved_nor_released(ring, monkeypatch, tmp_path):
    class Unreadable(ring):
        name, version = "unreadable", "1"

        def to_json(self):
            return {"call": next(calls)}

    calls = count()
    register_space(Unreadable)
    model = MarkovModel(np.full((40, 40), 1 / 40), np.full(40, 1 / 40), Unreadable(45.0, -30.0, 2.0, 40), 60)
    for use in (
        lambda: model.save(tmp_path / "ring.npz"),
        lambda: ReleaseSettings("complete", 1.0).engine(model).release(0),
    ):
        with pytest.raises(StateError, match="Unreadable must return the same dictionary from each call of to_json"):
            use()
    assert not (tmp_path / "ring.npz").exists()


def sample_drive(space, seed) -> Trajectory:
    turns = np.random.default_rng(seed).uniform(0, 2, 60).cumsum() / 40
    places = space.projection.to_latlon(2 * np.column_stack([np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)]))
    times = np.datetime64("2024-03-07T08:00") + np.arange(60) * np.timedelta64(60, "s")
    return Trajectory(f"user {seed}", times, places[:, 0], places[:, 1])


def learn_ring(ring) -> MarkovModel:
    space = ring(45.0, -30.0, 2.0, 40)
    return learn([sample_drive(space, seed) for seed in range(4)], space, step_seconds=60).model


def test_certificate_is_verified_without_locations_of_states(ring, tmp_path):
    model = learn_ring(ring)
    model.save(tmp_path / "ring.npz")
    files = [tmp_path / name for name in ("proof.jsonl", "rows.csv")]
    settings = ReleaseSettings("utility:1km", epsilon=1.0)
    release(sample_drive(model.space, 99), model, settings, files[1], rng=0, certificate=files[0])
    command = [sys.executable, "-I", VERIFIER, *files, "--model", tmp_path / "ring.npz"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    verified, not_verified = done.stdout.split("NOT VERIFIED")
    assert "of the model file" in verified
    assert "estimate_latitude" not in verified
    assert "locations of states, which this script does not find" in not_verified


@pytest.mark.slow
def test_saved_model_opens_in_another_process(ring, tmp_path):
    model = learn_ring(ring)
    model.save(tmp_path / "ring.npz")
    assert MarkovModel.load(tmp_path / "ring.npz").content_hash == model.content_hash
    program = """
import sys
from dphmm import MarkovModel
print(type(MarkovModel.load(sys.argv[1]).space).__name__)
"""
    folders = {"installed": tmp_path, "missing": tmp_path / "elsewhere"}
    done = {
        name: subprocess.run(
            [sys.executable, "-c", program, tmp_path / "ring.npz"],
            capture_output=True,
            text=True,
            check=False,
            env={"PYTHONPATH": ":".join([str(folder), *(path for path in sys.path if path != str(tmp_path))])},
        )
        for name, folder in folders.items()
    }
    assert done["installed"].stdout == "RingRoad\n", done["installed"].stderr
    message = done["missing"].stderr.splitlines()[-1]
    assert "MissingExtensionError" in message
    assert "'ring-road' 1.0" in message
    assert "ring_road:RingRoad" in message


def test_file_does_not_cause_an_import(monkeypatch):
    """A module that a dictionary names is not imported without registration."""
    monkeypatch.setattr(SPACE_REGISTRY, "_classes", {})
    monkeypatch.delitem(sys.modules, "antigravity", raising=False)
    document = {"kind": "evil@1", "provider": "antigravity:Space", "space": {}}
    with pytest.raises(MissingExtensionError, match=r"'evil' 1 .*antigravity:Space"):
        StateSpace.from_json(document)
    assert "antigravity" not in sys.modules


def test_other_version_is_refused_unless_it_is_read(ring):
    document = ring(45.0, -30.0, 2.0, 40).to_document()
    ring.version = "1.1"
    with pytest.raises(MissingExtensionError, match=r"'ring-road' 1\.0.*version 1\.1 is installed"):
        StateSpace.from_json(document)
    ring.reads = ("1.0",)
    assert StateSpace.from_json(document).size == 40


def test_unregistered_space_is_not_saved(ring, tmp_path):
    class Unregistered(ring):
        pass

    space = Unregistered(45.0, -30.0, 2.0, 2)
    with pytest.raises(ConfigurationError, match="registered"):
        MarkovModel(np.full((2, 2), 0.5), [0.5, 0.5], space).save(tmp_path / "a.npz")


def test_policy_graph_is_a_policy_of_settings(ring):
    model = learn_ring(ring)
    policy = PolicyGraph.from_edges(40, [(i, (i + 1) % 40) for i in range(40)])
    track = sample_drive(model.space, 99)
    done = release(track, model, ReleaseSettings(policy, 1.0), rng=0)
    assert len(done.table) == 60


def test_broken_entry_point_is_named(tmp_path, monkeypatch):
    install(tmp_path, "no_road", "raise ImportError('no map')", "dphmm.spaces", "no-road", "Road")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(SPACE_REGISTRY, "_classes", {})
    with pytest.raises(MissingExtensionError, match=r"no_road:Road cannot be imported: no map"):
        SPACE_REGISTRY.find("no-road")


def test_model_of_a_broken_entry_point_names_the_cause(ring, tmp_path, monkeypatch):
    space = ring(45.0, -30.0, 2.0, 40)
    document = {**space.to_document(), "kind": "no-road@1.0"}
    install(tmp_path, "no_road", "raise ImportError('no map')", "dphmm.spaces", "no-road", "Road")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtensionError, match=r"no_road:Road cannot be imported: no map"):
        StateSpace.from_json(document, space.size)


@pytest.mark.parametrize(
    ("locate", "message"),
    [
        (lambda _, plane: np.zeros(len(plane) + 1, dtype=int), r"must return 1 integers, got shape \(2,\) of int64"),
        (lambda _, plane: np.full(len(plane), 0.25), r"must return 1 integers, got shape \(1,\) of float64"),
        (lambda _, plane: plane.absent, "failed: AttributeError$"),
    ],
)
def test_invalid_location_names_the_class(ring, monkeypatch, locate, message):
    monkeypatch.setattr(ring, "locate_plane", locate)
    with pytest.raises(StateError, match=f"^locate_plane of RingRoad {message}"):
        ring(45.0, -30.0, 2.0, 40).locate(45.0, -30.0)


def test_list_of_no_states_is_accepted(ring, monkeypatch):
    monkeypatch.setattr(ring, "locate_plane", lambda _, plane: [3 for _ in plane])
    space = ring(45.0, -30.0, 2.0, 40)
    assert space.locate(45.0, -30.0).tolist() == [3]
    assert space.locate(-45.0, 150.0).tolist() == [-1]
