"""Attacks on obfuscation methods in common use and on this package's releases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.attack.deployed_channels import DEFAULT_CHANNELS, parse_channel
from dphmm.attack.mesh import MeshMovement
from dphmm.attack.noise_channel import Channel, SampledChannel, TableChannel
from dphmm.attack.outcomes import MEASURES, ChannelResult, attack_tracks
from dphmm.attack.posterior import Track
from dphmm.attack.recommendation import recommend_channel
from dphmm.errors import ConfigurationError
from dphmm.formatting import Result, exported
from dphmm.jobs.audit.adversaries import HabitModels, LocationHistory, extract_history
from dphmm.jobs.input_data import Data, DataLike
from dphmm.jobs.model.loading import Model, load_model
from dphmm.jobs.model.region import region
from dphmm.jobs.model.training_users import read_unseen_users
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.model import MarkovModel, fit_shrunk, state_sequences
from dphmm.random import derive_seed
from dphmm.readers.synthetic_city import build_city, sample_synthetic_trajectories
from dphmm.release.ledger import DAY_SECONDS
from dphmm.space import OUTSIDE, Trajectory
from dphmm.tables import create_file, write_csv
from dphmm.validation import Kilometres, PositiveInt, SeedOrGenerator, check_arguments

# Default of the largest error of an estimated home that counts as found.
HOME_WITHIN_KM = 0.2
# Default of the maximum number of times of each user: two days at ten minutes.
DEFAULT_MAX_STEPS = 288
# Number of days with a location that a user needs for habits to be learned from the earlier half.
MIN_HABIT_DAYS = 4

# Synthetic users for an attack without data: the first are attacked, under a model of the others.
_CITY_USERS = 24
_CITY_ATTACKED = 8
_CITY_DAYS = 8
_CITY_MINUTES = 10.0
_CITY_CELL_KM = 0.25
_CITY = "users of the synthetic city"


@dataclass(frozen=True, eq=False)
class AttackResult(Result):
    """Result of `attack`. Private if the users are real.

    Parameters
    ----------
    population
        Description of the users.
    num_users, num_fixes
        Number of attacked users, and their total number of evaluated times.
    num_users_outside
        Number of users without a fix in the region.
    num_users_with_habits
        Number of users with habits learned from the earlier half of their days.
    cell_km, adversary_resolution_km
        The sides of the model's cells, and of the parts that the adversary distinguishes.
    step_seconds
        The model's step.
    home_within_km
        Largest error of an estimated home that counts as found.
    trained_on_users
        Whether the model was trained on these users, as far as that is known.
    seed
        Seed of the noise.
    results
        One element per channel, in the given order.
    is_synthetic
        Whether the users are synthetic.
    """

    population: str = field(metadata=exported())
    num_users: int = field(metadata=exported())
    num_fixes: int = field(metadata=exported())
    num_users_outside: int = field(metadata=exported())
    num_users_with_habits: int = field(metadata=exported())
    cell_km: float = field(metadata=exported())
    adversary_resolution_km: float = field(metadata=exported())
    step_seconds: float = field(metadata=exported())
    home_within_km: float = field(metadata=exported("home_within_m", scale=1000))
    trained_on_users: str = field(metadata=exported())
    seed: int = field(metadata=exported())
    results: tuple[ChannelResult, ...] = field(metadata=exported("channels"))
    is_synthetic: bool

    def _derive_fields(self) -> dict[str, Any]:
        return {"advice": self.advice}

    @property
    def advice(self) -> list[str]:
        """Recommended settings of this package. See `recommend_channel`."""
        return recommend_channel(self.results)

    def list_warnings(self) -> list[str]:
        """Return warnings about the interpretation of the result.

        Returns
        -------
        list of str
            Sentences, empty without warnings.
        """
        if self.adversary_resolution_km <= self.home_within_km:
            return []
        return [
            f"the adversary's resolution of {1000 * self.adversary_resolution_km:,.0f} m is coarser than the "
            f"{1000 * self.home_within_km:,.0f} m within which a home counts as found; train a model with smaller cells"
        ]

    def write_table(self, path: str | Path, overwrite: bool = False) -> None:
        """Write a CSV table of means, margins and homes found, with a row for each channel.

        Parameters
        ----------
        path
            The .csv file.
        overwrite
            Whether an existing file may be replaced.

        Raises
        ------
        OutputError
            If the file exists and may not be replaced, or cannot be written.
        """
        measures = [name for measure in MEASURES for name in (measure, f"{measure}_margin")]
        header = ["channel", *measures, "num_homes_found", "num_homes", "source"]
        with create_file(path, overwrite, private=not self.is_synthetic) as part:
            rows = (
                [_format_cell(values[name]) for name in header]
                for values in (result.to_dict() for result in self.results)
            )
            write_csv(part, header, rows)


def _format_cell(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


@check_arguments
def attack(
    data: DataLike | None = None,
    model: Model | None = None,
    channels: Sequence[str | Channel] = DEFAULT_CHANNELS,
    *,
    home_within_km: Kilometres = HOME_WITHIN_KM,
    max_steps: PositiveInt = DEFAULT_MAX_STEPS,
    allow_training_users: bool = False,
    rng: SeedOrGenerator = 0,
    watch: ProgressCallback = suppress_progress,
) -> AttackResult:
    """Attack obfuscation methods with one adversary, as ``dphmm attack`` does.

    Every channel obfuscates the same true locations. The public adversary knows the channel and the model and infers
    the locations from past releases and from all releases (see `dphmm.attack`). For users with at least
    `MIN_HABIT_DAYS` days, the later half is obfuscated, and an informed adversary has learned the user's habits from
    the earlier half (`dphmm.model.habits`).

    Parameters
    ----------
    data
        The users' data. By default, eight users of the synthetic city with a model of sixteen others.
    model
        The adversary's model, or its file, over the cells of a grid.
    channels
        Specifications as in `dphmm.attack.parse_channel`, ``table:FILE`` for a table of ``k(z | s)`` (see
        `dphmm.attack.TableChannel.read`), ``samples:FILE`` for an app's releases of these users (see
        `dphmm.attack.SampledChannel`), or channels.
    home_within_km
        Largest error of an estimated home that counts as found.
    max_steps
        Maximum number of times of each user: the first ones in the region in the later half of the days.
    allow_training_users
        Whether to attack users that the model was trained on. The adversary then already has information about them.
    rng
        Seed or generator of the noise. Nothing is published.
    watch
        Progress callback, see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    AttackResult
        The outcomes of each channel.

    Raises
    ------
    ConfigurationError
        If only one of data and model is given, a channel or the model is invalid, the model was trained on these users,
        or no user has a fix in its region.
    DataFileError, DphmmError
        If the data, the model's file or a channel's file are invalid.

    Examples
    --------
    >>> result = attack(channels=("round:3", "disc:2km"), max_steps=48)
    >>> [channel.name for channel in result.results]
    ['rounded to 3 digits', 'fresh within 2 km']
    >>> sharp, noisy = (channel.estimate_mean("smoothed_error_m").mean for channel in result.results)
    >>> sharp < noisy < result.results[1].estimate_mean("released_error_m").mean
    True
    """
    seed = derive_seed(rng)
    if (data is None) != (model is None):
        raise ConfigurationError("data and model must be given together (--model), or neither for the synthetic city")
    if isinstance(channels, str) or not isinstance(channels, Sequence) or not channels:
        raise ConfigurationError(f"channels must be a non-empty list, such as ['round:3'], got {channels!r}")
    if data is None or model is None:
        everyone, learned = _simulate_city()
        population = _CITY
        trained_on_users = "no"
    else:
        learned = load_model(model)
        population = "users of the data"
    moves = MeshMovement(learned)
    truths = dict[str, Trajectory]()
    parsed_channels = [_resolve_channel(channel, moves, truths) for channel in channels]  # fail before reading data
    if data is not None:
        user_tracks, trained_on_users = read_unseen_users(data, model, learned, allow_training_users)
        everyone = user_tracks.trajectories
    truths.update((track.user, track) for track in everyone)
    split_tracks = [both for trajectory in everyone if (both := split_track(trajectory, moves, max_steps)) is not None]
    if not split_tracks:
        raise ConfigurationError("no input location lies inside the model's region; train a model that covers it")
    tracks, histories = zip(*split_tracks, strict=True)
    habits = HabitModels(learned, histories)
    within = 1000 * home_within_km
    results = attack_tracks(
        tracks, parsed_channels, moves, within, seed, habits, lambda items: watch(items, "Attacking", len(items))
    )
    return AttackResult(
        population=population if len(tracks) > 1 else population.replace("users", "user"),
        num_users=len(tracks),
        num_fixes=sum(map(len, tracks)),
        num_users_outside=len(everyone) - len(tracks),
        num_users_with_habits=sum(history is not None for history in histories),
        cell_km=moves.grid.cell_km,
        adversary_resolution_km=moves.mesh.cell_km,
        step_seconds=learned.step,
        home_within_km=home_within_km,
        trained_on_users=trained_on_users,
        seed=seed,
        results=results,
        is_synthetic=data is None,
    )


def split_track(
    trajectory: Trajectory, moves: MeshMovement, max_slots: int
) -> tuple[Track, LocationHistory | None] | None:
    """Split a user's data into the later half of the days and the history of the earlier half.

    Days are in UTC. For a user with fewer than `MIN_HABIT_DAYS` days with a location, the track contains all days.
    The history is then None. The result is None if no fix lies in the region.
    """
    slotted = trajectory.resample(moves.model.step)
    day = int(DAY_SECONDS // moves.model.step)
    inside = slotted.slots[moves.grid.locate(slotted.latitude, slotted.longitude) != OUTSIDE]
    days = np.unique(inside // max(1, day))
    begins = int(days[len(days) // 2]) * day if day and len(days) >= MIN_HABIT_DAYS else None
    track = Track.from_trajectory(trajectory, moves, max_slots, begins)
    history = None if begins is None else extract_history(trajectory, moves.model, begins)
    return None if track is None else (track, history)


def _simulate_city() -> tuple[tuple[Trajectory, ...], MarkovModel]:
    """Simulate users of the synthetic city, and fit a model to other users there."""
    city = build_city()
    trajectories = sample_synthetic_trajectories(_CITY_USERS, _CITY_DAYS, _CITY_MINUTES / 2, city=city)
    grid = region(bbox=city.box, cell_km=_CITY_CELL_KM)
    step = 60 * _CITY_MINUTES
    return trajectories[:_CITY_ATTACKED], fit_shrunk(
        state_sequences(trajectories[_CITY_ATTACKED:], grid, step), grid, step
    ).model


def _resolve_channel(specification: str | Channel, moves: MeshMovement, truths: Mapping[str, Trajectory]) -> Channel:
    if isinstance(specification, Channel):
        return specification
    if not isinstance(specification, str):
        raise ConfigurationError(
            f"channel must be a string or a dphmm.attack.Channel, got {type(specification).__name__}"
        )
    kind, _, file = specification.partition(":")
    if kind == "table" and file:
        return TableChannel.read(file, moves.grid.size)
    if kind == "samples" and file:
        released = {track.user: track for track in Data.from_any(file).with_region(moves.grid).read().trajectories}
        return SampledChannel(f"samples {Path(file).stem}", released, truths)
    return parse_channel(specification)
