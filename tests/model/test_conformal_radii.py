"""Calibrated radii of held-out users, for a correct and an incorrect model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dphmm import MarkovModel, ReleaseSettings
from dphmm.errors import InvalidInputError
from dphmm.model.conformal_radii import FoldErrors, _find_quantile, compute_calibrated_radii
from dphmm.model.learning import fit_shrunk
from dphmm.model.observed_moves import state_sequence
from dphmm.model.outside_states import learn_outside_states
from dphmm.model.radius_factors import CalibratedRadii
from dphmm.release import release_trajectory
from dphmm.release.settings import Schedule
from dphmm.space import Grid, Places, Trajectory
from tests.sizes import mark_slow

GRID = Grid.over((45.0, 7.0, 45.027, 7.038), 0.5)
SIZE = GRID.size
STEP = 300


def build_town(stays: float) -> MarkovModel:
    far = np.linalg.norm(GRID.points[:, None] - GRID.points[None], axis=2)
    near = np.exp(-2 * far) * (1 - np.eye(SIZE))
    moves = stays * np.eye(SIZE) + (1 - stays) * near / near.sum(axis=1, keepdims=True)
    return MarkovModel(moves, np.full(SIZE, 1 / SIZE), states=GRID, step_seconds=float(STEP))


def simulate_users(model: MarkovModel, count: int, seed: int, steps: int = 120) -> list[Trajectory]:
    """Simulate users who move by the model, at uniform locations within their cells."""
    rng, tracks = np.random.default_rng(seed), []
    moves = model.transition.toarray().cumsum(axis=1)
    for number in range(count):
        states = [int(rng.integers(SIZE))]
        for _ in range(steps - 1):
            states.append(min(int(np.searchsorted(moves[states[-1]], rng.random())), SIZE - 1))
        places = GRID.points[states] + rng.uniform(-0.25, 0.25, (steps, 2))
        times = np.datetime64("2024-03-04", "us") + (np.arange(steps) * STEP * 1_000_000).astype("timedelta64[us]")
        tracks.append(Trajectory(f"p{number}", times, *GRID.projection.to_latlon(places).T))
    return tracks


def compute_coverage(model: MarkovModel, crowd: list[Trajectory], settings: ReleaseSettings) -> np.ndarray:
    """Return the share of each user's timesteps within the published radius (noise of seed 5)."""
    shares, engine = [], settings.engine(model, 5)
    for trajectory in crowd:
        covered: list[bool] = []
        track = trajectory.resample(STEP)
        list(
            release_trajectory(
                engine,
                GRID,
                track,
                private=lambda private_row, covered=covered: covered.append(private_row.is_within_calibrated_radius),
            )
        )
        shares.append(np.mean(covered))
    return np.array(shares)


BELIEVED = build_town(0.8)
REAL = build_town(0.96)


@pytest.fixture(scope="module")
def radii() -> CalibratedRadii:
    """The factors from 60 users who move less than the model assumes (seed 1)."""
    factors = compute_calibrated_radii(lambda _: BELIEVED, simulate_users(REAL, 60, 1))
    assert factors is not None
    return factors


@pytest.mark.slow
@pytest.mark.parametrize("window_epsilon", [None, mark_slow(5.0)])
def test_radii_cover_90_percent_for_held_out_users_under_incorrect_model(radii, window_epsilon):
    """Test with 20 other users who move less than the model assumes (seed 2)."""
    schedule = None if window_epsilon is None else Schedule(None, window_epsilon, 86400.0)
    settings = ReleaseSettings("utility:1km", window_epsilon or 1.0, schedule=schedule)
    shares = compute_coverage(BELIEVED.with_calibrated_radii(radii), simulate_users(REAL, 20, 2), settings)
    assert 0.82 < shares.mean() < 0.99
    assert (shares >= 0.75).mean() > 0.85
    broken = compute_coverage(
        BELIEVED.with_calibrated_radii(CalibratedRadii((1.0, 1.0, 1.0, 1.0, 1.0), 60)),
        simulate_users(REAL, 8, 2),
        settings,
    )
    assert broken.mean() < 0.8, "the expected error itself covers less"


def simulate_commuters(count: int, seed: int, days: int = 2) -> list[Trajectory]:
    """Simulate users who work in the region by day and live 4 to 8 km west of it."""
    rng, tracks = np.random.default_rng(seed), []
    for number in range(count):
        home = GRID.points.min(axis=0) - [rng.uniform(4, 8), 0.0]
        work = GRID.points[rng.integers(SIZE)]
        hours = np.arange(0.0, 24 * days)
        at_work = (hours % 24 >= 9) & (hours % 24 < 17)
        places = np.where(at_work[:, None], work, home) + rng.normal(0, 0.05, (len(hours), 2))
        # Midnight of local mean time is 23:32 UTC at 7 degrees east.
        times = np.datetime64("2024-03-03T23:35", "us") + (hours * 3.6e9).astype("timedelta64[us]")
        tracks.append(Trajectory(f"p{number}", times, *GRID.projection.to_latlon(places).T))
    return tracks


def remove_tracks(tracks: list[Trajectory], held_out: Sequence[int]) -> list[Trajectory]:
    return [track for index, track in enumerate(tracks) if index not in held_out]


@pytest.mark.slow
def test_calibration_covers_whole_days_of_users_who_live_outside():
    """Calibrate with 20 commuters, and test with whole days of six others.

    All are outside two thirds of the day. Seeds 1 and 2. Factors from the hours in the region alone cover less than
    60 % of the timesteps.
    """

    def fit(tracks):
        outside = learn_outside_states(tracks, GRID, STEP)
        sequences = [state_sequence(track, GRID, STEP, outside=outside) for track in tracks]
        return fit_shrunk(sequences, GRID, STEP, outside=outside).model

    crowd, others = simulate_commuters(20, 1), simulate_commuters(6, 2, 1)
    radii = compute_calibrated_radii(lambda held_out: fit(remove_tracks(crowd, held_out)), crowd)
    assert radii is not None
    settings, model = ReleaseSettings("utility:1km", 1.0), fit(crowd)
    assert compute_coverage(model.with_calibrated_radii(radii), others, settings).mean() > 0.82
    at_work = []
    for track in crowd:
        inside = GRID.locate(track.latitude, track.longitude) >= 0
        at_work.append(Trajectory(track.user, track.times[inside], track.latitude[inside], track.longitude[inside]))
    broken = compute_calibrated_radii(lambda held_out: fit(remove_tracks(at_work, held_out)), at_work)
    assert broken is None or compute_coverage(model.with_calibrated_radii(broken), others, settings).mean() < 0.6


def test_quantile_weights_users_equally():
    ratios = np.array([*range(1, 101), *[1000.0] * 3, *[0.5] * 7])
    user = np.array([0] * 100 + [1] * 10)
    assert _find_quantile(ratios, user) == 1000.0
    assert _find_quantile(ratios, np.zeros(110, dtype=int)) == 92.0, "equal weights of timesteps give another value"


def test_quantile_covers_90_percent_of_users_at_80_percent_of_timesteps():
    """Twenty users, of whom two or one have a large error at a third of their timesteps.

    The 90 % quantile of all timesteps would exclude both. Of 21 users, a future one included, 19 must be covered (the
    rank of split conformal prediction).
    """
    far = [np.repeat([1.0, ratio], [60, 30]) for ratio in (3, 5)]
    near, user = [np.full(90, 1.0)], np.repeat(np.arange(20), 90)
    assert _find_quantile(np.concatenate([*18 * near, *far]), user) == 3.0
    assert _find_quantile(np.concatenate([*19 * near, far[1]]), user) == 1.0


@pytest.mark.slow
def test_exchangeable_users_are_covered_with_conformal_probability():
    """The ratios of a user are the user's scale times a common spread.

    4,000 rounds of 20 users and one more, seed 0. Exchangeable users are covered at four of five timesteps with
    probability 19/21 = .905. The plain 90 % quantile covers 18/21 = .857. Both are exact; four standard errors (.018)
    distinguish them.
    """
    rng, covered = np.random.default_rng(0), [0, 0]
    for _ in range(4000):
        scales = rng.lognormal(0, 0.5, 21)
        ratios, user = np.repeat(scales[:20], 10) * np.tile(np.arange(1, 11) / 8, 20), np.repeat(np.arange(20), 10)
        covered[0] += scales[20] <= _find_quantile(ratios, user)  # the eighth of a user's ten ratios is the scale
        covered[1] += scales[20] <= np.quantile(scales[:20], 0.9, method="inverted_cdf")
    assert abs(covered[0] / 4000 - 19 / 21) < 0.019
    assert abs(covered[1] / 4000 - 18 / 21) < 0.022


def test_radius_factors_are_saved_and_excluded_from_hash(tmp_path):
    model = build_town(0.5)
    radii = CalibratedRadii((1.2, 1.5, 2.0, 3.0, 2.5), 40, error_factors=(1.0, 1.0, 1.1, 1.2, 1.3))
    calibrated = model.with_calibrated_radii(radii)
    calibrated.save(tmp_path / "m.npz")
    assert MarkovModel.load(tmp_path / "m.npz").calibrated_radii == radii
    assert calibrated.content_hash == model.content_hash
    assert model.calibrated_radii is None
    hours = (0.0, 0.5, 1.0, 2.0, 9.0, np.inf)
    assert [radii.apply(10.0, hour, True)[1] for hour in hours] == [15.0, 20.0, 20.0, 30.0, 25.0, 25.0]
    assert [radii.apply(10.0, hour, False)[1] for hour in (0.0, 0.5, np.inf)] == [12.0, 20.0, 25.0]
    assert [radii.apply(10.0, hour, True)[0] for hour in hours] == [10.0, 11.0, 11.0, 12.0, 13.0, 13.0]


@pytest.mark.parametrize(
    "values",
    [
        {"factors": factors, "num_users": 3, "coverage": 0.9, "error_factors": [1, 1, 1, 1, 1]}
        for factors in ([1, 2, 3, 4], [1, 2, 3, 4, 0])
    ]
    + [{"factors": [1, 2, 3, 4, 5], "num_users": 3, "coverage": 0.9}]
    + [
        {"factors": [1, 2, 3, 4, 5], "num_users": 3, "coverage": 0.9, "error_factors": factors}
        for factors in ([1, 1], [1, 1, 1, 1, 0.9])
    ]
    + [{}],
)
def test_invalid_radius_factors_raise(values):
    with pytest.raises(InvalidInputError):
        CalibratedRadii.from_dict(values)


def test_radii_cover_90_percent_with_each_scale_of_noise():
    """With the least noise, an eighth of the timesteps have twice the error.

    Of all timesteps these are 4 %, so a factor that holds on average over the scales would be 1.
    """
    users, times = np.divmod(np.arange(20 * 8), 8)
    errors = [np.where(times == 0, 2.0, 1.0), np.ones(160), np.ones(160)]
    simulated = FoldErrors(
        classes=np.zeros(480, dtype=np.int64),
        scales=np.repeat([0, 1, 2], 160),
        errors=np.concatenate(errors),
        expected=np.ones(480),
        owners=np.tile(users, 3),
    )
    radii = compute_calibrated_radii(
        lambda _: build_town(0.5), simulate_users(build_town(0.5), 20, 3), run=lambda *_: [simulated]
    )
    assert radii is not None
    assert radii.factors[0] == 2.0
    assert radii.error_factors[0] == pytest.approx(1 + 1 / 24)


def test_radii_are_missing_for_too_few_users():
    assert compute_calibrated_radii(lambda _: build_town(0.5), simulate_users(build_town(0.5), 19, 3)) is None


def test_radii_are_missing_if_location_is_certain():
    shops = Places(["a", "b"], [45.0, 45.02], [7.0, 7.0])
    still = MarkovModel(np.eye(2), [1.0, 0.0], states=shops, step_seconds=float(STEP))
    times = np.datetime64("2024-03-04", "us") + np.arange(60) * np.timedelta64(STEP, "s")
    crowd = [Trajectory(f"p{number}", times, np.full(60, 45.0), np.full(60, 7.0)) for number in range(30)]
    assert compute_calibrated_radii(lambda _: still, crowd) is None


def test_release_radius_depends_on_hours_since_last_draw():
    radii = CalibratedRadii((1.2, 1.5, 2.0, 3.0, 2.5), 40, error_factors=(1.0, 1.1, 1.2, 1.3, 1.4))
    settings = ReleaseSettings("utility:1km", 2.0, schedule=Schedule(1.0, None))
    engine = settings.engine(build_town(0.5).with_calibrated_radii(radii), 3)
    since, seen = np.inf, set()
    for release in release_trajectory(engine, GRID, simulate_users(build_town(0.5), 1, 4)[0].resample(STEP)):
        since = since + STEP / 3600 if release.record.withheld else 0.0
        error = engine.belief.infer(GRID.points, GRID.cell_km).mean_error
        assert (release.expected_estimate_error, release.calibrated_radius_90) == pytest.approx(
            radii.apply(error, since, True)
        )
        seen.add(radii.apply(1.0, since, True))
    assert len(seen) >= 2
    unknown = settings.engine(build_town(0.5), 3)
    assert np.isnan(
        next(
            release_trajectory(unknown, GRID, simulate_users(build_town(0.5), 1, 4)[0].resample(STEP))
        ).calibrated_radius_90
    )
