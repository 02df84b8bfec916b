"""People outside the region: against a model written out with doubled states, and people who really leave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings
from dphmm.audit.inference import knowledge
from dphmm.errors import ConfigurationError, StateError, StochasticError
from dphmm.events import Presence
from dphmm.events.product_chain import EventOdds
from dphmm.jobs import learn
from dphmm.jobs.input_data import Data
from dphmm.model import Observations, draw_paths, filter_releases, path_of_releases, smooth_releases
from dphmm.model.away import Away, away_of, border_of
from dphmm.model.belief import Belief
from dphmm.model.fitting import fit_shrunk
from dphmm.model.moves import state_sequence
from dphmm.model.point_estimate import expected_distance, point_estimate
from dphmm.release.event_caps import chain_of
from dphmm.space import Grid, Trajectory
from tests.sizes import few_every_day

GRID = Grid.over((45.0, 7.0, 45.02, 7.03), 0.5)
BORDER = border_of(GRID)


def random_model(seed: int) -> MarkovModel:
    """A model over five cells of a line whose ends have twins."""
    rng = np.random.default_rng(seed)
    raw = rng.random((7, 7)) ** 3
    raw[rng.random((7, 7)) < 0.3] = 0.0
    raw += 0.05 * np.eye(7)
    away = Away(5, [0, 4], rng.uniform(1, 3, 2), rng.uniform(9, 12, 2), rng.uniform(0.1, 0.9, 2))
    return MarkovModel(raw / raw.sum(axis=1, keepdims=True), rng.dirichlet(np.ones(5)), away=away)


F = np.array([[0, 0], [1, 0], [2, 0], [3, 1], [4, 0]], dtype=float)


def doubled(model: MarkovModel) -> MarkovModel:
    """The same with two states more, at the points of the ends."""
    return MarkovModel(model.transitions[0], model.away.begun(model.initial))


@pytest.mark.parametrize("seed", few_every_day(range(24), 8))
def test_twins_infer_what_states_at_the_same_points_would(seed):
    rng, model = np.random.default_rng(seed), random_model(seed)
    plain, last = doubled(model), model.away.last
    rows = rng.normal(size=(6, 5))
    steps = np.array([0, 1, 1, 3, 1, 2])
    ours, theirs = Observations(rows, steps), Observations(rows[:, last], steps)
    fold = np.eye(5)[last]
    for infer in (lambda m, o: filter_releases(m, o).at(), lambda m, o: smooth_releases(m, o, filter_releases(m, o))):
        found, wanted = infer(model, ours), infer(plain, theirs)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one.probabilities, other.probabilities @ fold, rtol=1e-10, atol=1e-14)
            np.testing.assert_allclose(one.beyond.masses, other.probabilities[5:], rtol=1e-10, atol=1e-14)
    path, plainly = path_of_releases(model, ours), path_of_releases(plain, theirs)
    assert path.log_probability == pytest.approx(plainly.log_probability)
    np.testing.assert_array_equal(path.states, last[plainly.states])
    assert (model.structure.toarray() == (fold.T @ (plain.transition.toarray() > 0) @ fold > 0)).all()


def test_releases_are_those_of_the_border_states_and_estimates_count_how_far_outside_people_are():
    model = random_model(3)
    policy = PolicyGraph.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    engine, rng = Releaser(model, F, policy, 0.7, rng=4), np.random.default_rng(4)
    belief = model.away.begun(model.initial)
    for state in rng.integers(0, 5, 12).tolist():
        step = engine.prepare()
        record = engine.draw(step, state)
        told = engine.log_likelihood(step, record.released)
        belief = belief * np.exp(told - told.max())[model.away.last]
        belief /= belief.sum()
        np.testing.assert_allclose(engine.belief.probabilities, belief @ np.eye(5)[model.away.last], rtol=1e-9)
        mean = belief @ F[model.away.last]
        np.testing.assert_allclose(record.estimate, mean, rtol=1e-9, atol=1e-12)
        distance = np.linalg.norm(F[model.away.last] - mean, axis=1)
        assert record.estimate_radius == pytest.approx(belief @ (distance + np.r_[np.zeros(5), model.away.reach]))
        inside = belief[:5]
        best = min(inside @ np.linalg.norm(F - q, axis=1) for q in [*F, inside @ F / inside.sum()])
        assert record.adversary_error <= best * (1 + 1e-9)
        belief = belief @ model.transitions[0].toarray()


@pytest.mark.parametrize("seed", few_every_day(range(12), 4))
def test_an_event_at_a_border_state_is_of_people_inside_alone(seed):
    rng, model = np.random.default_rng(seed), random_model(seed)
    rows = rng.normal(size=(4, 5))
    ours = EventOdds(*chain_of(model, 0), Presence([0, 2], 1, 3))
    theirs = EventOdds(*chain_of(doubled(model), 0), Presence([0, 2], 1, 3))
    broken = EventOdds(*chain_of(doubled(model), 0), Presence([0, 2, 5], 1, 3))
    assert ours.prior == pytest.approx(theirs.prior)
    for row in rows:
        for odds, told in ((ours, row), (theirs, row[model.away.last]), (broken, row[model.away.last])):
            odds.update(told)
        assert ours.log_odds == pytest.approx(theirs.log_odds, rel=1e-9)
    assert abs(ours.prior - broken.prior) > 0.01, "the broken twin counts people outside as in the border state"


@pytest.mark.parametrize("seed", range(4))
def test_an_estimate_is_no_further_from_people_outside_than_its_radius_says(seed):
    """40,000 places drawn from a belief, those outside in any direction (seed as given; 4 standard errors)."""
    rng, away = np.random.default_rng(seed), Away(5, [0, 4], [2.0, 3.0], [8.0, 12.0], [0.5, 0.5])
    belief = Belief.owning(np.log(rng.dirichlet(np.ones(7))), away)
    guess = point_estimate(belief.probabilities, F, 0.5, belief.beyond)
    assert guess.mean_error == pytest.approx(expected_distance(belief.probabilities, F, 0.5, belief.beyond))
    context = rng.choice(7, 40_000, p=np.exp(belief.chain_logs))
    there = F[away.last[context]] + rng.uniform(-0.25, 0.25, (40_000, 2))
    for twin, (reach, square) in enumerate(zip(away.reach, away.square, strict=True)):
        out, spread = context == 5 + twin, np.sqrt(square - reach**2)
        length = reach + spread * rng.choice([-1, 1], out.sum())
        angle = rng.uniform(0, 2 * np.pi) + (0.0 if seed % 2 else rng.uniform(0, 2 * np.pi, out.sum()))
        there[out] = F[away.border[twin]] + np.stack([length * np.cos(angle), length * np.sin(angle)], axis=1)
    distance = np.linalg.norm(there - guess.mean, axis=1)
    assert distance.mean() <= guess.mean_error + 4 * distance.std() / 200
    assert np.mean(distance**2) <= guess.spread**2 + 4 * (distance**2).std() / 200
    without = point_estimate(belief.probabilities, F, 0.5)
    assert distance.mean() > 1.1 * without.mean_error, "the broken twin takes everybody to be inside"
    assert guess.least_error <= distance.mean() + 4 * distance.std() / 200
    (known,) = (knowledge([belief], F, 1, 0.5).error,)
    assert known[0] == pytest.approx(guess.least_error)


def leavers(count: int, seed: int) -> list[Trajectory]:
    """People who walk about the region and beyond it."""
    rng, found = np.random.default_rng(seed), []
    for number in range(count):
        walk = np.cumsum(rng.normal(0, 0.35, (300, 2)), axis=0) * [0.8, 0.6]
        latitude, longitude = GRID.projection.to_latlon(walk).T
        times = np.datetime64("2024-03-04T00:00:00", "us") + np.arange(300) * np.timedelta64(300, "s")
        found.append(Trajectory(f"p{number}", times, latitude, longitude))
    return found


def table(folder: Path, tracks: list[Trajectory]) -> Data:
    lines = [
        f"{one.user},{time}Z,{latitude},{longitude}"
        for one in tracks
        for time, latitude, longitude in zip(one.times, one.latitude.tolist(), one.longitude.tolist(), strict=True)
    ]
    (folder / "people.csv").write_text("\n".join(["user,time,latitude,longitude", *lines]))
    return Data((str(folder / "people.csv"),))


def test_what_is_learned_of_people_outside_is_right_about_others(tmp_path):
    """60 people learned from, 16 others released from the model's belief (seeds 1 and 2)."""
    data = table(tmp_path, leavers(60, 1))
    learned = learn(data, GRID, 300.0)
    model, away = learned.model, learned.model.away
    assert learned.outside > 5000
    assert learned.facts()["states_outside_the_region"] == len(BORDER)
    without = learn(data, GRID, 300.0, away=False).model
    assert without.away is None
    honest = {}
    for name, one in (("twins", model), ("none", without)):
        engine, rows = ReleaseSettings("utility:1km", 2.0).engine(one, 5), []
        for track in leavers(16, 2):
            slots, contexts = state_sequence(track, GRID, 300.0, away=away)
            places = GRID.projection.to_plane(track.latitude, track.longitude)
            engine.restart(int(slots[0]))
            for context, place in zip(contexts.tolist(), places, strict=True):
                record = engine.release(int(away.last[context]))
                rows.append((context >= GRID.size, record.estimate_radius, np.linalg.norm(place - record.estimate)))
        out, radius, off = np.array(rows).T
        honest[name] = [(off[out == side].mean() / radius[out == side].mean()) for side in (0.0, 1.0)]
    assert honest["twins"][1] < 1.25, "outside a radius is about the mean distance, which it states"
    assert honest["none"][1] > 2.0, "the broken twin: everybody is at the border"
    assert honest["twins"][0] < 1.1


def test_counts_of_people_inside_and_outside_are_their_own():
    tracks = leavers(8, 3)
    away = away_of(tracks, GRID, 300.0)
    sequences = [state_sequence(one, GRID, 300.0, away=away) for one in tracks]
    model = fit_shrunk(sequences, GRID, 300.0, away=away).model
    assert model.chain_size == GRID.size + len(BORDER)
    assert (model.transitions[0].toarray() > 0)[:, : GRID.size].any(axis=0).all()
    lengths, moments = [], 0
    for track, (_, contexts) in zip(tracks, sequences, strict=True):
        moments += len(contexts)
        plane = GRID.projection.to_plane(track.latitude, track.longitude)
        for context, place in zip(contexts.tolist(), plane, strict=True):
            if context >= GRID.size:
                assert GRID.nearest(*[[x] for x in GRID.projection.to_latlon(place[None])[0]])[0] == away.last[context]
                lengths.append(np.linalg.norm(place - GRID.points[away.last[context]]))
    share = len(lengths) / moments
    paths = draw_paths(model, 400, 300, 0, np.random.default_rng(7))
    assert paths.max() < GRID.size, "paths are of states"
    belief = Belief.first(model).predict(model, 150)
    assert belief.beyond.masses.sum() == pytest.approx(share, abs=0.15)
    assert away.reach @ belief.beyond.masses / belief.beyond.masses.sum() == pytest.approx(np.mean(lengths), rel=0.25)


def test_models_by_the_clock_know_of_people_outside(tmp_path):
    learned = learn(table(tmp_path, leavers(30, 4)), GRID, 300.0, by="hours", zone="UTC", output=tmp_path / "m.npz")
    model = MarkovModel.load(tmp_path / "m.npz")
    assert model.content_hash == learned.model.content_hash
    assert (len(model.transitions), model.chain_size) == (24, GRID.size + len(BORDER))
    belief = Belief.first(model, 100)
    for slot in range(100, 400):
        belief = belief.predict(model, 1, slot)
    assert belief.beyond.masses.sum() == pytest.approx(learned.outside / learned.places, abs=0.15)


def test_a_file_keeps_the_twins_and_hashes_tell(tmp_path):
    model = random_model(1)
    model.save(tmp_path / "m.npz")
    loaded = MarkovModel.load(tmp_path / "m.npz")
    assert loaded.content_hash == model.content_hash
    assert loaded.away.content_hash == model.away.content_hash
    other = Away(5, [0, 4], model.away.reach * 2, model.away.square, model.away.share)
    assert MarkovModel(model.transitions[0], model.initial, away=other).content_hash != model.content_hash
    with pytest.raises(ConfigurationError, match="--no-away"):
        _ = model.transition
    np.testing.assert_allclose(model.moves_inside.sum(axis=1), 1.0)


def test_the_border_is_where_a_place_outside_is_nearest():
    rng = np.random.default_rng(4)
    mask = np.ones((6, 7), dtype=bool)
    mask[2:4, 3] = mask[0, 0] = False
    for space in (GRID, Grid(GRID.projection, (0, 0), 0.5, 7, 6, mask)):
        places = rng.uniform(-4, 4, (4000, 2)) + space.points.mean(axis=0)
        latitude, longitude = space.projection.to_latlon(places).T
        out = space.locate(latitude, longitude) < 0
        assert set(space.nearest(latitude[out], longitude[out]).tolist()) <= set(border_of(space).tolist())


def test_what_does_not_go_with_twins_is_refused(tmp_path):
    people = table(tmp_path, leavers(4, 1))
    for given in ({"least_people": 2}, {"smoothing": 1.0}, {"user_epsilon": 1}):
        if "user_epsilon" not in given:
            with pytest.raises(ConfigurationError, match="--away does not go with --smoothing and --least-people"):
                learn(people, GRID, 300.0, away=True, **given)
        assert learn(people, GRID, 300.0, **given).model.away is None
    everywhere = Grid.over((44.5, 6.5, 45.5, 7.5), 5.0)
    with pytest.raises(ConfigurationError, match="no one is outside a grid"):
        learn(people, everywhere, 300.0, away=True)
    assert learn(people, everywhere, 300.0).model.away is None
    with pytest.raises(StateError, match="ascending"):
        Away(5, [4, 0], [1, 1], [1, 1], [0.5, 0.5])
    with pytest.raises(StochasticError, match="share of border states"):
        Away(5, [0, 4], [1, 1], [1, 1], [0.5, 1.5])
