"""Tests of the figures of an adversary who has a map, on the user's page."""

from __future__ import annotations

import itertools
import json
import threading

import httpx
import numpy as np
import pytest
import shapely
from scipy.optimize import minimize
from scipy.sparse import eye_array
from scipy.spatial import ConvexHull

from dphmm.errors import ConfigurationError, StochasticError
from dphmm.jobs import build_blank_model, region
from dphmm.jobs.audit.adversaries import Adversaries
from dphmm.jobs.audit.session import audit_session
from dphmm.jobs.model.loading import load_model
from dphmm.model import MarkovModel
from dphmm.random import as_random_source
from dphmm.release.session_store import SessionStore
from dphmm.release.step_noise import StepNoise
from dphmm.serve import map_adversary
from dphmm.serve.config import RelayConfig
from dphmm.serve.map_adversary import MapAdversary, build_map_model
from dphmm.serve.page import TEXTS
from dphmm.serve.server import reload_relay
from dphmm.serve.sessions import check_sessions
from dphmm.space import Places
from tests.serve.conftest import START, START_S, make_location, serve_relay, wait_for
from tests.serve.test_delivery import STEP, log_in, post
from tests.serve.test_endpoints import ANN, read_releases
from tests.serve.test_operating import run_relay
from tests.serve.test_page import HOME, make_zones
from tests.serve.test_server import write_relay_file

# West of the middle, where the location that is posted lies at the shore.
LAKE = shapely.box(-30.1, 44.9, -30.003, 45.1)


def write_map(path, *shapes):
    """Write a map of water and return its path."""
    features = [
        {"type": "Feature", "properties": {"natural": "water"}, "geometry": shapely.geometry.mapping(shape)}
        for shape in shapes
    ]
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return str(path)


@pytest.fixture(scope="module")
def blank(tmp_path_factory):
    """Return the file of a model in which every move is possible."""
    path = tmp_path_factory.mktemp("blank") / "blank.npz"
    build_blank_model(region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5), 300, output=path, region_map=None)
    return path


@pytest.fixture
def lake(tmp_path):
    return write_map(tmp_path / "lake.geojson", LAKE)


def read_figures(client, first=0):
    """Return the figures once all releases are replayed, as rows of error and probability."""
    while True:
        answer = client.get(f"/page/map_adversary?from={first}").json()
        assert answer["first"] == first
        if answer["num_computed"] == answer["num_releases"]:
            return np.column_stack([answer["error_m"], answer["max_posterior"]])


def infer_all(adversary, user="ann"):
    """Return all figures of an adversary, without a relay."""
    while True:
        answer = adversary.infer(user, 0)
        if answer["num_computed"] == answer["num_releases"]:
            return np.column_stack([answer["error_m"], answer["max_posterior"]])


def weight(transition, initial, attraction):
    """Weight the initial distribution and the targets of departures, in loops."""
    weighted = transition.copy()
    for state in range(len(transition)):
        others = np.arange(len(transition)) != state
        row = transition[state, others] * attraction[others]
        weighted[state, others] = row * transition[state, others].sum() / row.sum()
    return weighted, initial * attraction / (initial @ attraction)


def filter_plainly(model, stored, epsilon, lake):
    """Filter released coordinates under K-norm noise with the map's model, in probabilities.

    The noise body is the convex hull of the differences of cells that have points within 1 km. All states are possible
    at every release.
    """
    points = model.space.points
    differences = (points[:, None] - points).reshape(-1, 2)
    near = np.hypot(*np.maximum(np.abs(differences) - model.space.cell_km, 0).T) <= 1 + 1e-9
    faces = ConvexHull(differences[near]).equations
    land = 1 - model.space.share_within(lake)
    attraction = (land > 0) / np.mean(land > 0)
    matrix, belief = weight(model.transitions[0].toarray(), model.initial, np.maximum(attraction, 0.02))
    rows, last = [], None
    for release in stored:
        if last is not None:
            belief = belief @ np.linalg.matrix_power(matrix, release.slot - last)
        last = release.slot
        offsets = np.array(release.record.released) - points
        belief = belief * np.exp(-epsilon * (offsets @ faces[:, :2].T / -faces[:, 2]).max(axis=1))
        belief /= belief.sum()
        best = minimize(lambda at, p=belief: p @ np.hypot(*(points - at).T), belief @ points, method="Nelder-Mead")
        rows.append((1000 * best.fun, belief.max()))
    return np.array(rows)


def check(figures, expected):
    """Probabilities are exact, and errors are lower bounds within 2 % and the rounding."""
    assert figures[:, 1] == pytest.approx(expected[:, 1], rel=1e-6)
    assert (figures[:, 0] <= expected[:, 0] + 0.06).all()
    assert (figures[:, 0] >= 0.98 * expected[:, 0] - 0.06).all()


@pytest.mark.slow
def test_figures_are_those_of_plain_forward_filter_with_map(config, blank, lake, tmp_path):
    settings = {"policy": "utility:1km", "epsilon": 0.5, "mechanism": "k-norm"}
    relay_config = config(model=str(blank), release=settings, adversary_map=lake)
    model = load_model(blank)
    with serve_relay(relay_config) as client:
        log_in(client)
        assert client.get("/page/map_adversary").json()["num_releases"] == 0
        post(client, 0, 1, 2)
        assert read_figures(client).shape == (3, 2)
        post(client, 3, 7, 8)  # the replay continues, over a gap
        figures = read_figures(client)
        state = client.get("/page/state").json()
        assert state["adversary_map"]["name"] == "lake.geojson"
        trail = client.get("/page/trail").json()["locations"]
        assert read_figures(client, 4) == pytest.approx(figures[4:])
    expected = filter_plainly(model, read_releases(tmp_path / "users.db"), 0.5, LAKE)
    check(figures, expected)
    # The public adversary does not pass the same check, neither by the page's figures nor by the same replay.
    public = np.array([(place["adversary_error_m"], place["max_posterior"]) for place in trail])
    for wrong in (public, infer_all(MapAdversary(relay_config.store, model, model))):
        with pytest.raises(AssertionError):
            check(wrong, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("where", "max_call_s"), [("file", 0.5), ("file", -1.0), ("server", 0.5)])
def test_figures_are_those_of_audit_with_gaps_zones_and_short_calls(
    config, lake, tmp_path, monkeypatch, request, where, max_call_s
):
    monkeypatch.setattr(map_adversary, "_MAX_CALL_S", max_call_s)
    store = request.getfixturevalue("postgres") if where == "server" else str(tmp_path / "users.db")
    relay_config = config(adversary_map=lake, store=store)
    with serve_relay(relay_config) as client:
        log_in(client)
        post(client, 0, 1, 5)
        if max_call_s > 0:
            read_figures(client)
        assert client.post("/page/zones", json=make_zones(HOME, elsewhere="policy")).status_code == 200
        post(client, 6, 7)
        computed = client.get("/page/map_adversary").json()["num_computed"]
        assert computed == (5 if max_call_s > 0 else 1)  # one release in a call that has no time
        figures = read_figures(client)
    audits = audit_session(relay_config.store, relay_config.model, adversaries=Adversaries(region_map=lake)).audits
    public, mapped = (np.column_stack([1000 * m.error, m.top_1_probability]) for m in
                      (audit.filtered_metrics for audit in audits))  # fmt: skip
    assert figures == pytest.approx(mapped, rel=1e-9, abs=0.051)
    assert figures[:, 1] == pytest.approx(mapped[:, 1], rel=1e-9)
    assert figures[:, 1] != pytest.approx(public[:, 1], rel=1e-3)


@pytest.mark.slow
def test_releases_do_not_depend_on_the_map(config, lake, tmp_path, monkeypatch):
    real = StepNoise.draw
    stored = []
    for number, changes in enumerate(({}, {"adversary_map": lake}, {"adversary_map": "coast"})):
        counter = itertools.count()
        monkeypatch.setattr(
            StepNoise, "draw", lambda self, state, _, c=counter: real(self, state, as_random_source(next(c)))
        )
        store = tmp_path / f"{number}.db"
        with serve_relay(config(store=str(store), **changes)) as client:
            log_in(client)
            for k in range(6):
                post(client, k)
                if changes:
                    assert len(read_figures(client)) == k + 1
        with SessionStore(store, readonly=True) as opened:
            session = opened.session("ann")
            belief = opened.progress(session.number).belief.to_bytes()
            stored.append((read_releases(store), session.agreements, session.limits, belief))
    assert stored[0] == stored[1] == stored[2]


@pytest.mark.slow
def test_posts_are_answered_while_figures_are_computed(config, lake, monkeypatch):
    entered, proceed = threading.Event(), threading.Event()
    real = MapAdversary.infer

    def infer(self, *arguments):
        entered.set()
        assert proceed.wait(START_S)
        return real(self, *arguments)

    monkeypatch.setattr(MapAdversary, "infer", infer)
    with serve_relay(config(adversary_map=lake)) as client:
        log_in(client)
        post(client, 0)
        answers = []
        asking = threading.Thread(target=lambda: answers.append(read_figures(client)))
        asking.start()
        assert entered.wait(START_S)
        with httpx.Client(base_url=client.base_url, cookies=client.cookies) as other:
            assert other.post("/owntracks", json=make_location(START + STEP), auth=ANN).status_code == 200
            assert other.get("/page/state").json()["num_releases"] == 2
        assert answers == []
        proceed.set()
        asking.join(START_S)
        assert len(answers[0]) == 2


@pytest.mark.slow
def test_pruned_and_impossible_releases_are_refused_with_reason(config, lake, tmp_path, monkeypatch):
    with serve_relay(config(adversary_map=lake)) as client:
        log_in(client)
        post(client, 0, 1, 2, 400, 401)
        figures = read_figures(client)
        with SessionStore(tmp_path / "users.db") as store:
            session = store.session("ann")
            assert store.prune(session, START // STEP + 399, STEP) == 3
        post(client, 402)  # computed before the records were removed: the replay continues
        assert read_figures(client)[:5] == pytest.approx(figures)
    with serve_relay(config(adversary_map=lake)) as client:
        log_in(client)
        answer = client.get("/page/map_adversary", headers={"Accept-Language": "de"}).json()
        assert answer == {"problem": TEXTS["de"]["reason_pruned"].format(count=3)}
        message = "the observation is impossible in every possible state: model and release do not match"
        monkeypatch.setattr(MapAdversary, "infer", lambda *_: (_ for _ in ()).throw(StochasticError(message)))
        assert client.get("/page/map_adversary").json() == {"problem": message}


@pytest.mark.slow
def test_releases_that_a_model_excludes_raise_as_in_an_audit(config, tmp_path):
    relay_config = config()
    model = load_model(relay_config.model)
    with serve_relay(relay_config) as client:
        log_in(client)
        assert client.post("/page/zones", json=make_zones(HOME)).status_code == 200
        for k in range(2):
            outside = make_location(START + STEP * k, 44.975, -30.035)  # released exactly
            assert client.post("/owntracks", json=outside, auth=ANN).status_code == 200
    initial = np.zeros(model.size)
    initial[model.space.locate([45.025], [-29.965])] = 1.0
    elsewhere = model.with_probabilities([eye_array(model.size, format="csr")], initial[None])
    elsewhere.save(tmp_path / "elsewhere.npz")
    with pytest.raises(StochasticError, match="impossible in every possible state"):
        audit_session(relay_config.store, model, adversaries=Adversaries(model=tmp_path / "elsewhere.npz"))
    with pytest.raises(StochasticError, match="impossible in every possible state"):
        infer_all(MapAdversary(relay_config.store, model, elsewhere))
    assert len(infer_all(MapAdversary(relay_config.store, model, model))) == 2


@pytest.mark.slow
def test_figures_require_page_and_key(config, lake):
    with serve_relay(config()) as client:
        assert client.get("/page/map_adversary").status_code == 401
        assert log_in(client)["adversary_map"] is None
        assert client.get("/page/map_adversary").status_code == 404
    with serve_relay(config(adversary_map=lake)) as client:
        post(client, 0)
        log_in(client, "bob")
        assert client.get("/page/map_adversary?user=ann").status_code == 403
        assert client.get("/page/map_adversary?from=x").status_code == 400
        assert client.get("/page/map_adversary").json()["num_releases"] == 0


@pytest.mark.parametrize(
    ("content", "words"), [(None, "no such file|does not exist|cannot"), ("{}", "GeoJSON"), ("far", "of the region")]
)  # fmt: skip
def test_unusable_map_raises_before_start(config, tmp_path, content, words):
    path = tmp_path / "map.geojson"
    if content == "far":
        write_map(path, shapely.box(10, 10, 11, 11))
    elif content is not None:
        path.write_text(content)
    for start in (check_sessions, lambda relay_config: serve_relay(relay_config).__enter__()):
        with pytest.raises(ConfigurationError, match=f"^adversary_map: .*({words})"):
            start(config(adversary_map=str(path)))


def test_map_requires_a_grid(config, blank):
    places = Places(["home", "work"], [45.0, 45.1], [-30.0, -30.0])
    model = MarkovModel([[0.5, 0.5], [0.5, 0.5]], [0.5, 0.5], places, 300)
    with pytest.raises(ConfigurationError, match="adversary_map: a map requires a grid"):
        build_map_model(config(adversary_map="coast"), model)


def test_path_of_map_is_relative_to_the_file(model, tmp_path):
    path, _ = write_relay_file(tmp_path, model, "users.db")
    for value, expected in (("lake.geojson", str(tmp_path / "lake.geojson")), ("coast", "coast")):
        path.write_text(f'adversary_map = "{value}"\n' + path.read_text().split("adversary_map", 1)[0])
        assert RelayConfig.read(path).adversary_map == expected
        path, _ = write_relay_file(tmp_path, model, "users.db")
    assert RelayConfig.read(path).adversary_map is None


@pytest.mark.slow
def test_restart_and_reload_add_change_and_remove_the_map(model, lake, tmp_path):
    """The figures of earlier releases follow from the store, whenever the key was added."""
    other = write_map(tmp_path / "other.geojson", shapely.box(-29.997, 44.9, -29.9, 45.1))
    path, url = write_relay_file(tmp_path, model, str(tmp_path / "users.db"))
    text = path.read_text()
    loaded = load_model(model)
    models = {source: build_map_model(RelayConfig.read(path).model_copy(update={"adversary_map": source}), loaded)
              for source in (lake, other)}  # fmt: skip
    keys = {source: {"name": name, "model": models[source].content_hash[:12]}
            for source, name in ((lake, "lake.geojson"), (other, "other.geojson"))}  # fmt: skip
    keys[None] = None

    def write(source):
        path.write_text(text if source is None else f"adversary_map = {json.dumps(source)}\n{text}")

    with httpx.Client(base_url=url, timeout=60) as client:
        num_posted = 0

        def post_and_check(source):
            nonlocal num_posted
            num_posted += 2
            for k in range(num_posted - 2, num_posted):
                assert client.post("/owntracks", json=make_location(START + STEP * k), auth=ANN).status_code == 200
            if source is None:
                assert client.get("/page/map_adversary").status_code == 404
                return None
            figures = read_figures(client)
            assert len(figures) == num_posted
            expected = infer_all(MapAdversary(str(tmp_path / "users.db"), loaded, models[source]))
            assert figures == pytest.approx(expected)
            return figures

        def has_key(source):
            try:
                return client.get("/page/state").json()["adversary_map"] == keys[source]
            except httpx.TransportError:  # closed by the reload
                return False

        with run_relay(path, url):
            log_in(client)
            for source in (None, lake, other, None):
                write(source)
                if num_posted:
                    reload_relay(path)
                wait_for(lambda source=source: has_key(source), START_S)
                post_and_check(source)
            write(str(tmp_path / "missing.geojson"))
            with pytest.raises(ConfigurationError, match="adversary_map"):
                reload_relay(path)
        write(other)
        with run_relay(path, url):  # a restart
            assert has_key(other)
            changed = post_and_check(other)
        write(lake)
        with run_relay(path, url):
            assert post_and_check(lake)[: len(changed)] != pytest.approx(changed)
