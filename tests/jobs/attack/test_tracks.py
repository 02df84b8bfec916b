"""Tests of the attack job: accepted and rejected users, and its results."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from dphmm.attack import MeshMovement, parse_channel
from dphmm.errors import ConfigurationError, DataFileError, InvalidInputError
from dphmm.jobs import Data, attack, learn, region
from dphmm.jobs.attack.tracks import MIN_HABIT_DAYS, split_track
from dphmm.jobs.audit.adversaries import HabitModels
from dphmm.jobs.model.loading import load_model
from dphmm.readers import read
from dphmm.space import Grid, Trajectory

TOWN = "data/sample/geolife"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Return the path of a model trained on all users of the sample except two."""
    path = tmp_path_factory.mktemp("attack") / "model.npz"
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
    learn(Data((TOWN,), exclude_users=("000", "001")), space, step_seconds=600, output=path)
    return path


def select_two_users() -> Data:
    return Data((TOWN,), users=("000", "001"))


@pytest.mark.slow
def test_attack_is_reproducible_and_depends_on_seed(model):
    channels = ("gaussian:300m", "offset:300m")
    once, again, other = (
        attack(select_two_users(), model, channels, max_steps=30, rng=seed).to_dict() for seed in (0, 0, 1)
    )
    assert once == again
    assert once["channels"] != other["channels"]


@pytest.mark.slow
def test_channel_result_does_not_depend_on_other_channels(model):
    alone = attack(select_two_users(), model, ["disc:300m"], max_steps=30).to_dict()["channels"][0]
    among = attack(select_two_users(), model, ["round:2", parse_channel("disc:300m"), "nothing"], max_steps=30)
    assert among.to_dict()["channels"][1] == alone


@pytest.mark.slow
def test_attack_facts_are_json_and_table_has_one_row_per_channel(model, tmp_path):
    result = attack(select_two_users(), model, ["round:2", "trim:500m", "nothing"], max_steps=20)
    facts = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert facts["num_users"] == 2
    assert facts["num_fixes"] == 40
    assert facts["trained_on_users"] == "no"
    assert facts["channels"][2]["released_error_m"] is None
    result.write_table(tmp_path / "PRIVATE-attack.csv")
    assert (tmp_path / "PRIVATE-attack.csv").stat().st_mode & 0o077 == 0
    with (tmp_path / "PRIVATE-attack.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["channel"] for row in rows] == [channel["channel"] for channel in facts["channels"]]
    assert float(rows[0]["smoothed_error_m"]) == pytest.approx(facts["channels"][0]["smoothed_error_m"], rel=1e-4)
    assert rows[2]["released_error_m"] == ""


def test_training_users_raise_unless_allowed(model):
    seen = Data((TOWN,), users=("002",))
    with pytest.raises(ConfigurationError, match="user 002"):
        attack(seen, model, ["round:2"], max_steps=5)
    result = attack(seen, model, ["round:2"], max_steps=5, allow_training_users=True)
    assert result.trained_on_users == "not checked (allow_training_users)"


def test_coarse_cells_cause_warning(tmp_path):
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=2.0)
    learned = learn(Data((TOWN,), exclude_users=("000", "001")), space, step_seconds=600).model
    result = attack(select_two_users(), learned, ["round:2"], max_steps=5, home_within_km=0.3)
    assert result.list_warnings() == [
        "the adversary's resolution of 400 m is coarser than the 300 m within which a home counts as found; train a "
        "model with smaller cells"
    ]
    assert not attack(select_two_users(), learned, ["round:2"], max_steps=5, home_within_km=0.5).list_warnings()


@pytest.mark.slow
def test_table_and_samples_channels_are_read_from_files(model, tmp_path):
    size = 182
    np.savez(tmp_path / "mine.npz", probabilities=np.eye(size), places=np.full((size, 2), np.nan))
    tracks = read(TOWN).trajectories
    lines = ["user_id,tracked_at,latitude,longitude"]
    for track in tracks:
        if track.user in ("000", "001"):
            rows = zip(track.times, track.latitude + 0.003, track.longitude, strict=True)
            lines += [f"{track.user},{time}Z,{latitude:.6f},{longitude}" for time, latitude, longitude in rows]
    (tmp_path / "app.csv").write_text("\n".join(lines) + "\n")
    channels = [f"table:{tmp_path / 'mine.npz'}", f"samples:{tmp_path / 'app.csv'}"]
    table, app = attack(select_two_users(), model, channels, max_steps=30).results
    assert table.estimate_mean("top_1_accuracy").mean == 1.0
    assert table.estimate_mean("withheld_share").mean == 1.0
    assert app.estimate_mean("released_error_m").mean == pytest.approx(333, abs=3)
    with pytest.raises(DataFileError, match=r"mine\.npz.*676 .*182"):
        attack(channels=channels[:1], max_steps=5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": TOWN}, "data and model must be given together"),
        ({"model": "model.npz"}, "data and model must be given together"),
        ({"channels": []}, r"channels must be a non-empty list, .* got \[\]"),
        ({"channels": ["rot13"]}, "channel must be one of .* got 'rot13'"),
        ({"home_within_km": 0.0}, "home_within_km must be a positive, finite number"),
        ({"home_within_km": float("inf")}, "home_within_km must be a positive, finite number"),
        ({"max_steps": 0}, "max_steps must be a positive integer"),
        ({"rng": -1}, "rng must be a non-negative integer or a numpy.random.Generator"),
    ],
)
def test_invalid_arguments_raise(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        attack(**arguments)


def test_data_outside_region_or_hourly_model_raises(model, tmp_path):
    (tmp_path / "away.csv").write_text("user_id,tracked_at,latitude,longitude\na,2024-03-07T10:00:00Z,10,10\n")
    with pytest.raises(ConfigurationError, match="region"):
        attack(tmp_path / "away.csv", model, ["round:2"])
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=1.0)
    hourly = learn(
        Data((TOWN,), exclude_users=("000",)), space, step_seconds=600, time_classes="hour", zone="UTC"
    ).model
    with pytest.raises(ConfigurationError, match="--time-classes"):
        attack(Data((TOWN,), users=("000",)), hourly, ["round:2"])


@pytest.mark.parametrize("days", [MIN_HABIT_DAYS - 1, MIN_HABIT_DAYS, 7])
def test_later_days_are_attacked_and_habits_use_earlier_days_only(model, days):
    learned = load_model(model)
    moves, first = MeshMovement(learned), 20_000 * 144
    slots = np.concatenate([first + 144 * day + np.arange(0, 144, 7) for day in range(days)])
    steps = np.random.default_rng(1).choice(learned.space.size, len(slots))

    def split_states(states):
        places = learned.space.latlon(states)
        times = (slots * 600).astype("datetime64[s]").astype("datetime64[us]")
        track, slots_with_states = split_track(Trajectory("ann", times, *places.T), moves, 50)
        return track, HabitModels(learned, (slots_with_states,))[0]

    track, habit_model = split_states(steps)
    half = days // 2 if days >= MIN_HABIT_DAYS else 0
    assert len(track) == min(50, len(slots) - 21 * half)
    assert track.slots[0] == first + 144 * half
    if days < MIN_HABIT_DAYS:
        assert habit_model is None
        return
    later = np.where(slots < track.slots[0], steps, steps[::-1])
    earlier = np.where(slots < track.slots[0], 0, steps)
    kept, changed = (split_states(states)[1] for states in (later, earlier))
    assert kept is not None
    assert changed is not None
    np.testing.assert_array_equal(kept.transition.toarray(), habit_model.transition.toarray())
    assert np.abs(changed.initial - habit_model.initial).max() > 0.01


@pytest.mark.slow
def test_attack_without_data_uses_synthetic_users():
    result = attack(channels=["round:3"], max_steps=6)
    assert result.is_synthetic
    assert result.num_users == result.num_users_with_habits == 8
    assert result.to_dict()["advice"] == []
    assert result.population == "users of the synthetic city"


@pytest.mark.slow
def test_rounding_and_disc_noise_are_reduced_for_geolife_users(few_of_geolife):
    """Attack three users for one day of ten-minute timesteps. The other users train the model."""
    data, users = str(few_of_geolife), ("000", "001", "003")
    grid = Grid.over((39.87, 116.29, 39.97, 116.46), 0.75)
    learned = learn(Data((data,), exclude_users=users), grid, step_seconds=600).model
    attacked = attack(Data((data,), users=users), learned, ["exact", "round:3", "disc:500m"], max_steps=144)
    exact, rounded, disc = (result.estimate_mean("smoothed_error_m").mean for result in attacked.results)
    assert max(exact, rounded) < 150 < attacked.results[2].estimate_mean("released_error_m").mean
    assert disc < attacked.results[2].estimate_mean("released_error_m").mean
