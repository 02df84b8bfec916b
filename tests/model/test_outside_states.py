"""Outside states, against a model with doubled states and simulated users who leave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings
from dphmm.audit.inference_metrics import compute_inference_metrics
from dphmm.errors import ConfigurationError, StateError, StochasticError
from dphmm.events import Presence
from dphmm.events.chain_start import make_chain
from dphmm.events.product_chain import EventOdds
from dphmm.jobs import learn
from dphmm.jobs.input_data import Data
from dphmm.model import Observations, filter_releases, find_release_path, sample_paths, smooth_releases
from dphmm.model.belief import Belief
from dphmm.model.learning import fit_shrunk
from dphmm.model.observed_moves import state_sequence
from dphmm.model.outside_states import OutsideStates, find_border_states, learn_outside_states
from dphmm.model.point_estimate import Inference, expected_distance
from dphmm.space import Grid, Trajectory
from tests.sizes import mark_rest_slow

GRID = Grid.over((45.0, 7.0, 45.02, 7.03), 0.5)
BORDER = find_border_states(GRID)


def build_model(seed: int) -> MarkovModel:
    """Build a model over five cells of a line, with outside states at both ends."""
    rng = np.random.default_rng(seed)
    raw = rng.random((7, 7)) ** 3
    raw[rng.random((7, 7)) < 0.3] = 0.0
    raw += 0.05 * np.eye(7)
    away = OutsideStates(5, [0, 4], rng.uniform(1, 3, 2), rng.uniform(9, 12, 2), rng.uniform(0.1, 0.9, 2))
    return MarkovModel(raw / raw.sum(axis=1, keepdims=True), rng.dirichlet(np.ones(5)), outside=away)


F = np.array([[0, 0], [1, 0], [2, 0], [3, 1], [4, 0]], dtype=float)


def build_doubled_model(model: MarkovModel) -> MarkovModel:
    """Build the model with two more states, at the points of the ends."""
    return MarkovModel(model.transitions[0], model.outside.split_initial(model.initial))


@pytest.mark.parametrize("seed", mark_rest_slow(range(24), 8))
def test_inference_with_outside_states_matches_doubled_states(seed):
    rng, model = np.random.default_rng(seed), build_model(seed)
    plain, last = build_doubled_model(model), model.outside.state_of_context
    rows = rng.normal(size=(6, 5))
    steps = np.array([0, 1, 1, 3, 1, 2])
    own_observed, plain_observed = Observations(rows, steps), Observations(rows[:, last], steps)
    fold = np.eye(5)[last]
    for infer in (
        lambda m, o: filter_releases(m, o).select(),
        lambda m, o: smooth_releases(m, o, filter_releases(m, o)),
    ):
        beliefs, wanted = infer(model, own_observed), infer(plain, plain_observed)
        for belief, other in zip(beliefs, wanted, strict=True):
            np.testing.assert_allclose(belief.probabilities, other.probabilities @ fold, rtol=1e-10, atol=1e-14)
            np.testing.assert_allclose(belief.outside_belief.masses, other.probabilities[5:], rtol=1e-10, atol=1e-14)
    path, plainly = find_release_path(model, own_observed), find_release_path(plain, plain_observed)
    assert path.log_probability == pytest.approx(plainly.log_probability)
    np.testing.assert_array_equal(path.states, last[plainly.states])
    assert (model.structure.toarray() == (fold.T @ (plain.transition.toarray() > 0) @ fold > 0)).all()


def test_releases_use_border_states_and_estimate_errors_include_outside_distance():
    model = build_model(3)
    policy = PolicyGraph.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    engine, rng = Releaser(model, F, policy, 0.7, rng=4), np.random.default_rng(4)
    belief = model.outside.split_initial(model.initial)
    for state in rng.integers(0, 5, 12).tolist():
        step = engine.prepare()
        record = engine.draw(step, state)
        log_likelihood = engine.log_likelihood(step, record.released)
        belief = belief * np.exp(log_likelihood - log_likelihood.max())[model.outside.state_of_context]
        belief /= belief.sum()
        np.testing.assert_allclose(
            engine.belief.probabilities, belief @ np.eye(5)[model.outside.state_of_context], rtol=1e-9
        )
        mean = belief @ F[model.outside.state_of_context]
        np.testing.assert_allclose(record.estimate, mean, rtol=1e-9, atol=1e-12)
        distance = np.linalg.norm(F[model.outside.state_of_context] - mean, axis=1)
        assert record.expected_estimate_error == pytest.approx(
            belief @ (distance + np.r_[np.zeros(5), model.outside.mean_distances])
        )
        inside = belief[:5]
        best = min(inside @ np.linalg.norm(F - q, axis=1) for q in [*F, inside @ F / inside.sum()])
        assert record.adversary_error <= (best + belief[5:] @ model.outside.mean_deviations) * (1 + 1e-9)
        belief = belief @ model.transitions[0].toarray()


@pytest.mark.parametrize("seed", mark_rest_slow(range(12), 4))
def test_event_at_border_state_excludes_outside_users(seed):
    rng, model = np.random.default_rng(seed), build_model(seed)
    rows = rng.normal(size=(4, 5))
    own_odds = EventOdds(*make_chain(model, 0), Presence([0, 2], 1, 3))
    plain_odds = EventOdds(*make_chain(build_doubled_model(model), 0), Presence([0, 2], 1, 3))
    broken = EventOdds(*make_chain(build_doubled_model(model), 0), Presence([0, 2, 5], 1, 3))
    assert own_odds.prior == pytest.approx(plain_odds.prior)
    for row in rows:
        for odds, log_likelihood in (
            (own_odds, row),
            (plain_odds, row[model.outside.state_of_context]),
            (broken, row[model.outside.state_of_context]),
        ):
            odds.update(log_likelihood)
        assert own_odds.log_odds == pytest.approx(plain_odds.log_odds, rel=1e-9)
    assert abs(own_odds.prior - broken.prior) > 0.01, "counting users outside as in the border state changes the prior"


@pytest.mark.parametrize("seed", range(4))
def test_estimate_errors_bound_distances_to_outside_users(seed):
    """Sample 40,000 places from a belief, with outside places in random directions.

    The seed is the parameter; 4 standard errors.
    """
    rng, away = np.random.default_rng(seed), OutsideStates(5, [0, 4], [2.0, 3.0], [8.0, 12.0], [0.5, 0.5])
    belief = Belief.from_normalized_logs(np.log(rng.dirichlet(np.ones(7))), away)
    guess = Inference(belief.probabilities, F, 0.5, belief.outside_belief)
    assert guess.mean_error == pytest.approx(expected_distance(belief.probabilities, F, 0.5, belief.outside_belief))
    context = rng.choice(7, 40_000, p=np.exp(belief.chain_logs))
    there = F[away.state_of_context[context]] + rng.uniform(-0.25, 0.25, (40_000, 2))
    for index, (reach, square) in enumerate(zip(away.mean_distances, away.mean_squares, strict=True)):
        out, spread = context == 5 + index, np.sqrt(square - reach**2)
        length = reach + spread * rng.choice([-1, 1], out.sum())
        angle = rng.uniform(0, 2 * np.pi) + (0.0 if seed % 2 else rng.uniform(0, 2 * np.pi, out.sum()))
        there[out] = F[away.border[index]] + np.stack([length * np.cos(angle), length * np.sin(angle)], axis=1)
    distance = np.linalg.norm(there - guess.mean, axis=1)
    assert distance.mean() <= guess.mean_error + 4 * distance.std() / 200
    assert np.mean(distance**2) <= guess.rms_error**2 + 4 * (distance**2).std() / 200
    without = Inference(belief.probabilities, F, 0.5)
    assert distance.mean() > 1.1 * without.mean_error, "treating all users as inside understates the error"
    assert guess.error_lower_bound <= distance.mean() + 4 * distance.std() / 200
    (knowledge_error,) = (compute_inference_metrics([belief], F, 1, 0.5).error,)
    assert knowledge_error[0] == pytest.approx(guess.error_lower_bound)


@pytest.mark.parametrize("direction", ["outwards", "any", "each"])
@pytest.mark.parametrize("share_outside", [0.1, 0.87, 1.0])
def test_adversary_error_counts_users_outside(share_outside, direction):
    """Compare the bound with the best of many points for 20,000 sampled locations.

    The places outside are at lognormal distances: along one direction, which the best point exploits, in directions of
    the two border states, or in any. Seed 1, 4 standard errors (alpha 6e-5 for each case).
    """
    rng, away = np.random.default_rng(1), OutsideStates(5, [0, 4], [2.0, 3.0], [8.0, 20.0], [0.5, 0.5])
    shares = np.array([1.0, 0.0]) if direction == "outwards" else np.array([0.7, 0.3])
    p = np.concatenate([(1 - share_outside) * rng.dirichlet(np.ones(5)), share_outside * shares])
    with np.errstate(divide="ignore"):
        belief = Belief.from_normalized_logs(np.log(p), away)
    guess = Inference(belief.probabilities, F, 0.5, belief.outside_belief)
    context = rng.choice(7, 20_000, p=p)
    places = F[away.state_of_context[context]] + rng.uniform(-0.25, 0.25, (20_000, 2))
    for index, (mean, square) in enumerate(zip(away.mean_distances, away.mean_squares, strict=True)):
        out, variance = context == 5 + index, np.log(square / mean**2)
        length = rng.lognormal(np.log(mean) - variance / 2, np.sqrt(variance), out.sum())
        angle = rng.uniform(0, 2 * np.pi, out.sum()) if direction == "any" else np.full(out.sum(), np.pi * (1 - index))
        places[out] = F[away.border[index]] + length[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    candidates = np.stack(np.meshgrid(np.arange(-4, 9, 0.25), np.arange(-2, 3, 0.25)), axis=-1).reshape(-1, 2)
    coarse = [np.linalg.norm(places[::20] - point, axis=1).mean() for point in candidates]
    distances = [np.linalg.norm(places - point, axis=1) for point in candidates[np.argsort(coarse)[:9]]]
    best = min(distances, key=np.mean)
    margin = 4 * best.std() / np.sqrt(len(best))
    assert guess.error_lower_bound <= best.mean() + margin
    if direction == "outwards" and share_outside == 1.0:
        assert guess.error_lower_bound >= 0.99 * best.mean() - margin, "no point estimate of a single ray is better"
    if share_outside > 0.5:
        assert guess.error_lower_bound >= 0.35 * best.mean()
        located = belief.outside_belief._replace(mean_deviations=np.zeros(2))
        broken = Inference(belief.probabilities, F, 0.5, located).error_lower_bound
        assert broken < 0.2 * best.mean(), "counting users outside as located understates the error"


def simulate_users(count: int, seed: int) -> list[Trajectory]:
    """Simulate users who walk around the region and beyond it."""
    rng, tracks = np.random.default_rng(seed), []
    for number in range(count):
        walk = np.cumsum(rng.normal(0, 0.35, (300, 2)), axis=0) * [0.8, 0.6]
        latitude, longitude = GRID.projection.to_latlon(walk).T
        times = np.datetime64("2024-03-04T00:00:00", "us") + np.arange(300) * np.timedelta64(300, "s")
        tracks.append(Trajectory(f"p{number}", times, latitude, longitude))
    return tracks


def write_table(folder: Path, tracks: list[Trajectory]) -> Data:
    lines = [
        f"{track.user},{time}Z,{latitude},{longitude}"
        for track in tracks
        for time, latitude, longitude in zip(
            track.times, track.latitude.tolist(), track.longitude.tolist(), strict=True
        )
    ]
    (folder / "users.csv").write_text("\n".join(["user,time,latitude,longitude", *lines]))
    return Data((str(folder / "users.csv"),))


@pytest.mark.slow
def test_learned_outside_states_give_honest_errors_for_other_users(tmp_path):
    """Fit to 30 users and release 8 others with the fitted model (seeds 1 and 2)."""
    data = write_table(tmp_path, simulate_users(30, 1))
    learned = learn(data, GRID, 300.0, calibrate_radii=False)
    model, away = learned.model, learned.model.outside
    assert learned.training.num_outside > 2500
    assert learned.to_dict()["num_outside_states"] == len(BORDER)
    without = learn(data, GRID, 300.0, outside_states=False, calibrate_radii=False).model
    assert without.outside is None
    honest = {}
    for name, fitted in (("outside states", model), ("none", without)):
        engine, rows = ReleaseSettings("utility:1km", 2.0).engine(fitted, 5), []
        for track in simulate_users(8, 2):
            slots, contexts = state_sequence(track, GRID, 300.0, outside=away)
            places = GRID.projection.to_plane(track.latitude, track.longitude)
            engine.restart(int(slots[0]))
            for context, place in zip(contexts.tolist(), places, strict=True):
                record = engine.release(int(away.state_of_context[context]))
                rows.append(
                    (context >= GRID.size, record.expected_estimate_error, np.linalg.norm(place - record.estimate))
                )
        out, radius, off = np.array(rows).T
        honest[name] = [(off[out == side].mean() / radius[out == side].mean()) for side in (0.0, 1.0)]
    assert honest["outside states"][1] < 1.25, "outside, the stated error is close to the mean distance"
    assert honest["none"][1] > 2.0, "without outside states the stated error is far too small"
    assert honest["outside states"][0] < 1.1


def test_user_outside_is_not_the_most_exposed():
    """Release one user who is outside at most timesteps, and another who is always inside.

    Seeds 1 and 5. An adversary error that counts users outside as at the border names the wrong user.
    """
    tracks = simulate_users(12, 1)
    away = learn_outside_states(tracks, GRID, 300.0)
    sequences = [state_sequence(track, GRID, 300.0, outside=away) for track in tracks]
    # Users stay on one side of the border, so that releases at the border reveal that a user is outside.
    moves = fit_shrunk(sequences, GRID, 300.0, outside=away).model.transitions[0].toarray()
    moves[: GRID.size, GRID.size :] *= 0.02
    moves[GRID.size :, : GRID.size] *= 0.02
    moves /= moves.sum(axis=1, keepdims=True)
    model = MarkovModel(moves, np.full(GRID.size, 1 / GRID.size), states=GRID, step_seconds=300.0, outside=away)
    west = int(BORDER[np.argmin(GRID.points[BORDER, 0] + 0.01 * np.abs(GRID.points[BORDER, 1]))])
    centre = int(np.argmin(np.linalg.norm(GRID.points - GRID.points.mean(axis=0), axis=1)))
    errors = {}
    for user, states in (("away", [centre, *36 * [west]]), ("at home", 37 * [centre])):
        engine, infer = ReleaseSettings("utility:1km", 3.0).engine(model, 5), []
        for state in states:
            engine.release(state)
            belief = engine.belief
            infer.append(
                (
                    belief.infer(GRID.points, GRID.cell_km).error_lower_bound,
                    Inference(belief.probabilities, GRID.points, GRID.cell_km).error_lower_bound,
                )
            )
        errors[user] = np.median(infer, axis=0)
    assert errors["away"][0] > errors["at home"][0], "the user at home is the most exposed"
    assert errors["away"][1] < errors["at home"][1], "as at the border, the user away would be"
    assert errors["away"][0] > 0.3 * float(away.mean_deviations.min())


@pytest.mark.slow
def test_transitions_of_inside_and_outside_states_are_counted_separately():
    tracks = simulate_users(8, 3)
    away = learn_outside_states(tracks, GRID, 300.0)
    sequences = [state_sequence(track, GRID, 300.0, outside=away) for track in tracks]
    model = fit_shrunk(sequences, GRID, 300.0, outside=away).model
    assert model.chain_size == GRID.size + len(BORDER)
    assert (model.transitions[0].toarray() > 0)[:, : GRID.size].any(axis=0).all()
    lengths, num_timesteps = [], 0
    for track, (_, contexts) in zip(tracks, sequences, strict=True):
        num_timesteps += len(contexts)
        plane = GRID.projection.to_plane(track.latitude, track.longitude)
        for context, place in zip(contexts.tolist(), plane, strict=True):
            if context >= GRID.size:
                assert (
                    GRID.find_nearest_states(*[[x] for x in GRID.projection.to_latlon(place[None])[0]])[0]
                    == away.state_of_context[context]
                )
                lengths.append(np.linalg.norm(place - GRID.points[away.state_of_context[context]]))
    share = len(lengths) / num_timesteps
    paths = sample_paths(model, 400, 300, 0, np.random.default_rng(7))
    assert paths.max() < GRID.size, "paths contain states only"
    belief = Belief.initial(model).predict(model, 150)
    assert belief.outside_belief.masses.sum() == pytest.approx(share, abs=0.15)
    assert away.mean_distances @ belief.outside_belief.masses / belief.outside_belief.masses.sum() == pytest.approx(
        np.mean(lengths), rel=0.25
    )


@pytest.mark.slow
def test_time_dependent_model_learns_outside_states(tmp_path):
    learned = learn(
        write_table(tmp_path, simulate_users(30, 4)),
        GRID,
        300.0,
        time_classes="hour",
        zone="UTC",
        output=tmp_path / "m.npz",
        calibrate_radii=False,
    )
    model = MarkovModel.load(tmp_path / "m.npz")
    assert model.content_hash == learned.model.content_hash
    assert (len(model.transitions), model.chain_size) == (24, GRID.size + len(BORDER))
    belief = Belief.initial(model, 100)
    for slot in range(100, 400):
        belief = belief.predict(model, 1, slot)
    share = learned.training.num_outside / learned.training.num_timesteps
    assert belief.outside_belief.masses.sum() == pytest.approx(share, abs=0.15)


def test_outside_states_are_saved_and_hashed(tmp_path):
    model = build_model(1)
    model.save(tmp_path / "m.npz")
    loaded = MarkovModel.load(tmp_path / "m.npz")
    assert loaded.content_hash == model.content_hash
    assert loaded.outside.content_hash == model.outside.content_hash
    other = OutsideStates(
        5, [0, 4], model.outside.mean_distances * 2, model.outside.mean_squares, model.outside.outside_shares
    )
    assert MarkovModel(model.transitions[0], model.initial, outside=other).content_hash != model.content_hash
    with pytest.raises(ConfigurationError, match="outside_states = false"):
        _ = model.transition
    np.testing.assert_allclose(model.inside_transition.sum(axis=1), 1.0)


def test_border_contains_nearest_states_of_outside_places():
    rng = np.random.default_rng(4)
    mask = np.ones((6, 7), dtype=bool)
    mask[2:4, 3] = mask[0, 0] = False
    for space in (GRID, Grid(GRID.projection, (0, 0), 0.5, 7, 6, mask)):
        places = rng.uniform(-4, 4, (4000, 2)) + space.points.mean(axis=0)
        latitude, longitude = space.projection.to_latlon(places).T
        out = space.locate(latitude, longitude) < 0
        assert set(space.find_nearest_states(latitude[out], longitude[out]).tolist()) <= set(
            find_border_states(space).tolist()
        )


def test_outside_states_raise_for_incompatible_options(tmp_path):
    data = write_table(tmp_path, simulate_users(4, 1))
    for options in ({"min_users": 2}, {"smoothing": 1.0}, {"user_epsilon": 1}):
        if "user_epsilon" not in options:
            with pytest.raises(
                ConfigurationError, match="outside_states cannot be combined with --smoothing and min_users"
            ):
                learn(data, GRID, 300.0, outside_states=True, **options)
        assert learn(data, GRID, 300.0, **options).model.outside is None
    everywhere = Grid.over((44.5, 6.5, 45.5, 7.5), 5.0)
    with pytest.raises(ConfigurationError, match="outside_states requires a grid"):
        learn(data, everywhere, 300.0, outside_states=True)
    assert learn(data, everywhere, 300.0).model.outside is None
    with pytest.raises(StateError, match="ascending"):
        OutsideStates(5, [4, 0], [1, 1], [1, 1], [0.5, 0.5])
    with pytest.raises(StochasticError, match="share"):
        OutsideStates(5, [0, 4], [1, 1], [1, 1], [0.5, 1.5])
