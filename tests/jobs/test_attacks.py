"""The attack as a job: whom it takes, whom it refuses, and what it says."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from dphmm.attack import Moves, parse_channel
from dphmm.errors import ConfigurationError, DataFileError, InvalidInputError
from dphmm.jobs import Data, attack, learn, region
from dphmm.jobs.adversaries import EachHabits
from dphmm.jobs.attacks import LEAST_DAYS, halves
from dphmm.jobs.models import load_model
from dphmm.readers import read
from dphmm.space import Grid, Trajectory

TOWN = "data/sample/geolife"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A model of everybody in the sample but two."""
    path = tmp_path_factory.mktemp("attack") / "model.npz"
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    learn(Data((TOWN,), exclude_users=("000", "001")), space, step_seconds=600, output=path)
    return path


def two() -> Data:
    return Data((TOWN,), users=("000", "001"))


def test_the_same_seed_says_the_same_and_another_draws_anew(model):
    channels = ("gaussian:300m", "offset:300m")
    once, again, other = (attack(two(), model, channels, most_steps=30, seed=seed).facts() for seed in (0, 0, 1))
    assert once == again
    assert once["channels"] != other["channels"]


def test_a_channel_says_the_same_whatever_else_is_tried(model):
    alone = attack(two(), model, ["disc:300m"], most_steps=30).facts()["channels"][0]
    among = attack(two(), model, ["round:2", parse_channel("disc:300m"), "nothing"], most_steps=30)
    assert among.facts()["channels"][1] == alone


def test_facts_are_json_and_the_table_has_a_row_for_each_channel(model, tmp_path):
    found = attack(two(), model, ["round:2", "trim:500m", "nothing"], most_steps=20)
    facts = json.loads(json.dumps(found.facts(), allow_nan=False))
    assert facts["people"] == 2
    assert facts["fixes"] == 40
    assert facts["model_learned_from_these_people"] == "no"
    assert facts["channels"][2]["released_error_m"] is None
    found.write_table(tmp_path / "PRIVATE-attack.csv")
    assert (tmp_path / "PRIVATE-attack.csv").stat().st_mode & 0o077 == 0
    with (tmp_path / "PRIVATE-attack.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["channel"] for row in rows] == [one["channel"] for one in facts["channels"]]
    assert float(rows[0]["hindsight_m"]) == pytest.approx(facts["channels"][0]["hindsight_m"], rel=1e-4)
    assert rows[2]["released_error_m"] == ""


def test_people_whom_the_model_has_seen_are_refused_unless_that_is_allowed(model):
    seen = Data((TOWN,), users=("002",))
    with pytest.raises(ConfigurationError, match="user 002 is among those that the model was learned from"):
        attack(seen, model, ["round:2"], most_steps=5)
    found = attack(seen, model, ["round:2"], most_steps=5, allow_own_model=True)
    assert found.learned_from_them == "not checked (--allow-own-model)"


def test_coarse_cells_are_warned_of(tmp_path):
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=2.0)
    learned = learn(Data((TOWN,), exclude_users=("000", "001")), space, step_seconds=600).model
    found = attack(two(), learned, ["round:2"], most_steps=5, home_within_km=0.3)
    assert [text.partition(",")[0] for text in found.warnings()] == [
        "the adversary tells apart squares of 400 m"
    ]  # fmt: skip
    assert not attack(two(), learned, ["round:2"], most_steps=5, home_within_km=0.5).warnings()


def test_a_table_and_samples_are_read_from_their_files(model, tmp_path):
    size = 182
    np.savez(tmp_path / "mine.npz", probabilities=np.eye(size), places=np.full((size, 2), np.nan))
    people = read(TOWN).trajectories
    lines = ["user_id,tracked_at,latitude,longitude"]
    for person in people:
        if person.user in ("000", "001"):
            rows = zip(person.times, person.latitude + 0.003, person.longitude, strict=True)
            lines += [f"{person.user},{time}Z,{latitude:.6f},{longitude}" for time, latitude, longitude in rows]
    (tmp_path / "app.csv").write_text("\n".join(lines) + "\n")
    given = [f"table:{tmp_path / 'mine.npz'}", f"samples:{tmp_path / 'app.csv'}"]
    table, app = attack(two(), model, given, most_steps=30).results
    assert table.figure("right").mean == 1.0
    assert table.figure("withheld").mean == 1.0
    assert app.figure("released_error_m").mean == pytest.approx(333, abs=3)
    with pytest.raises(DataFileError, match=r"mine\.npz.*has 182 states and the model 676"):
        attack(channels=given[:1], most_steps=5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"data": TOWN}, "data and a model go together"),
        ({"model": "model.npz"}, "data and a model go together"),
        ({"channels": []}, "no channel is given"),
        ({"channels": ["rot13"]}, "channel 'rot13' is none"),
        ({"home_within_km": 0.0}, "home_within_km is 0.0"),
        ({"home_within_km": float("inf")}, "home_within_km is inf"),
        ({"most_steps": 0}, "most_steps 0"),
        ({"seed": -1}, "seed -1"),
    ],
)
def test_what_cannot_be_is_refused(arguments, said):
    with pytest.raises(InvalidInputError, match=said):
        attack(**arguments)


def test_data_elsewhere_and_models_of_another_kind_are_refused(model, tmp_path):
    (tmp_path / "away.csv").write_text("user_id,tracked_at,latitude,longitude\na,2024-03-07T10:00:00Z,10,10\n")
    with pytest.raises(ConfigurationError, match="no place of the data lies in the model's region"):
        attack(tmp_path / "away.csv", model, ["round:2"])
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=1.0)
    hourly = learn(Data((TOWN,), exclude_users=("000",)), space, step_seconds=600, by="hours", zone="UTC").model
    with pytest.raises(ConfigurationError, match="classes of time; an attack needs one without --by"):
        attack(Data((TOWN,), users=("000",)), hourly, ["round:2"])


@pytest.mark.parametrize("days", [LEAST_DAYS - 1, LEAST_DAYS, 7])
def test_the_later_half_of_the_days_is_blurred_and_habits_are_of_the_earlier_alone(model, days):
    learned = load_model(model)
    moves, first = Moves(learned), 20_000 * 144
    slots = np.concatenate([first + 144 * day + np.arange(0, 144, 7) for day in range(days)])
    steps = np.random.default_rng(1).choice(learned.space.size, len(slots))

    def halves_of(states):
        places = learned.space.latlon(states)
        times = (slots * 600).astype("datetime64[s]").astype("datetime64[us]")
        track, moments = halves(Trajectory("ann", times, *places.T), moves, 50)
        return track, EachHabits(learned, (moments,))[0]

    track, known = halves_of(steps)
    half = days // 2 if days >= LEAST_DAYS else 0
    assert len(track) == min(50, len(slots) - 21 * half)
    assert track.slots[0] == first + 144 * half
    if days < LEAST_DAYS:
        assert known is None
        return
    later = np.where(slots < track.slots[0], steps, steps[::-1])
    earlier = np.where(slots < track.slots[0], 0, steps)
    kept, changed = (halves_of(states)[1] for states in (later, earlier))
    assert kept is not None
    assert changed is not None
    np.testing.assert_array_equal(kept.transition.toarray(), known.transition.toarray())
    assert np.abs(changed.initial - known.initial).max() > 0.01


def test_invented_people_are_said_to_be_invented():
    found = attack(channels=["round:3"], most_steps=6)
    assert found.is_invented
    assert found.people == found.habits_known == 8
    assert found.facts()["which_to_take"] == []
    assert found.about == "people of the synthetic city, who do not exist"


def test_rounding_and_noise_of_people_of_geolife_are_seen_through(few_of_geolife):
    """Three people, for a day of ten-minute steps; the rest of them make the model."""
    people, users = str(few_of_geolife), ("000", "001", "003")
    grid = Grid.over((39.87, 116.29, 39.97, 116.46), 0.75)
    learned = learn(Data((people,), exclude_users=users), grid, step_seconds=600).model
    found = attack(Data((people,), users=users), learned, ["exact", "round:3", "disc:500m"], most_steps=144)
    exact, rounded, disc = (result.figure("hindsight_m").mean for result in found.results)
    assert max(exact, rounded) < 150 < found.results[2].figure("released_error_m").mean
    assert disc < found.results[2].figure("released_error_m").mean
