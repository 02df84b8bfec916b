"""The user whose timesteps ``dphmm explore`` shows, and the model of the invented city."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np

from dphmm.arrays import IntArray
from dphmm.errors import ConfigurationError, DataFileError
from dphmm.jobs.audit.adversaries import LocationHistory, extract_history
from dphmm.jobs.input_data import Data, DataLike
from dphmm.jobs.model.learn import learn
from dphmm.jobs.model.loading import Model
from dphmm.jobs.model.region import region
from dphmm.jobs.model.training_users import find_training_users, refuse_training_users
from dphmm.model import MarkovModel
from dphmm.model.path_sampling import sample_paths
from dphmm.readers.synthetic_city import build_city, sample_synthetic_trajectories
from dphmm.release.ledger import steps_per_day
from dphmm.release.trajectory_release import locate_states
from dphmm.space import Trajectory
from dphmm.tables import iso_time
from dphmm.tables.table import write_csv
from dphmm.validation import Integers

# The default number of timesteps on the time axis.
NUM_STEPS = 48

# The maximum number of timesteps, each of which is computed once per settings and kept.
MAX_STEPS = 2_000

NumSteps = Annotated[int, Integers(1, MAX_STEPS, error=ConfigurationError)]

# A sampled user has this history, from which an adversary learns habits.
_HISTORY_DAYS = 5
_MAX_HISTORY_STEPS = 5_000
# A Monday at seven, in mean solar time: a day of a learned model then begins with the way to work.
_FIRST_SECOND = 1_710_140_400

_CITY_USERS = 24
_CITY_DAYS = 5
_CITY_STEP_S = 300
_CITY_CELL_KM = 0.25
# The users that 'dphmm demo' releases. The city's model is learned from the others, there and here.
_CITY_RELEASED = ("p01", "p02")
CITY_PREPARATION = "dphmm demo"


def build_city_model() -> MarkovModel:
    """Learn the model of the invented city, as ``dphmm demo`` does.

    Returns
    -------
    MarkovModel
        The model.
    """
    south, west, north, east = (round(side, 4) for side in build_city().box)
    with TemporaryDirectory(prefix="dphmm-explore-") as folder:
        path = Path(folder, "users.csv")
        rows = (
            (trajectory.user, iso_time(time), latitude, longitude)
            for trajectory in sample_synthetic_trajectories(_CITY_USERS, _CITY_DAYS, _CITY_STEP_S / 60)
            if trajectory.user not in _CITY_RELEASED
            for time, latitude, longitude in zip(
                trajectory.times, trajectory.latitude.tolist(), trajectory.longitude.tolist(), strict=True
            )
        )
        write_csv(path, ("user_id", "tracked_at", "latitude", "longitude"), rows)
        space = region(bbox=(south, west, north, east), cell_km=_CITY_CELL_KM)
        # Calibrated radii take most of the time of learning. The page reports the errors that the model expects.
        return learn(path, space, step_seconds=_CITY_STEP_S, calibrate_radii=False).model


@dataclass(frozen=True, eq=False)
class ExploredUser:
    """The user whose timesteps are shown. Private if it is a real one.

    Parameters
    ----------
    name
        The user's name; empty for a user sampled from the model.
    slots, states
        ``(t,)`` each: the timesteps and the true states.
    history
        Slots and states before them, from which an adversary learns the user's habits. None without any.
    num_outside
        The number of timesteps outside the region, of which the state is the nearest one.
    """

    name: str
    slots: IntArray
    states: IntArray = field(repr=False)
    history: LocationHistory | None = field(default=None, repr=False)
    num_outside: int = field(default=0, repr=False)

    @property
    def is_private(self) -> bool:
        """Whether the user is a real one."""
        return self.name != ""


def sample_user(model: MarkovModel, num_steps: int = NUM_STEPS, seed: int = 1) -> ExploredUser:
    """Sample a user and a history of some days from a model.

    Parameters
    ----------
    model
        The model.
    num_steps
        The number of timesteps.
    seed
        The seed, which makes the user reproducible.

    Returns
    -------
    ExploredUser
        The user.
    """
    longitude = float(model.space.latlon()[:, 1].mean())
    first = int((_FIRST_SECOND - longitude * 240) // model.step)
    num_before = min(_HISTORY_DAYS * (steps_per_day(model.step) or 1), _MAX_HISTORY_STEPS)
    path = sample_paths(model, 1, num_before + num_steps, first - num_before, rng=seed)[0].astype(np.int64)
    slots = np.arange(first - num_before, first + num_steps)
    # A path of a model with outside states may leave the region; such a timestep has the nearest state inside.
    inside = _move_inside(model, path)
    return ExploredUser("", slots[num_before:], inside[num_before:], (slots[:num_before], path[:num_before]))


def _move_inside(model: MarkovModel, states: IntArray) -> IntArray:
    """Replace states outside the region by the last state inside, or the first one."""
    is_inside = states < model.size
    if is_inside.all():
        return states
    if not is_inside.any():
        return np.zeros_like(states)
    last = np.maximum.accumulate(np.where(is_inside, np.arange(len(states)), -1))
    last[last < 0] = int(np.argmax(is_inside))
    return np.asarray(states[last])


def select_user(
    model: MarkovModel, source: Model | None, data: DataLike, user: str | None = None, num_steps: int = NUM_STEPS
) -> ExploredUser:
    """Read a user's last timesteps, and the history before them.

    Parameters
    ----------
    model
        The model.
    source
        The model, or its file, next to which the list of its training users is stored.
    data
        The recording.
    user
        The user: one of the recording's, or the name of the user of a recording without names. Defaults to the first
        one.
    num_steps
        The number of timesteps.

    Returns
    -------
    ExploredUser
        The user.

    Raises
    ------
    ConfigurationError
        If there is no such user, the model was trained on the user, or the user is never inside the region.
    DataFileError
        If the recording cannot be read.
    """
    tracks = _read_tracks(Data.from_any(data).with_region(model.states), user)
    names = [track.user for track in tracks]
    if user is not None and user not in names:
        raise ConfigurationError(f"user must be one of {', '.join(names[:5])}{', …' * (len(names) > 5)}, got {user!r}")
    track = tracks[0 if user is None else names.index(user)]
    if source is not None:
        refuse_training_users(find_training_users(source, model), [track.user], "choose another user")
    slotted = track.resample(model.step)
    states, is_outside = locate_states(model.space, slotted.latitude, slotted.longitude, "clamp")
    if is_outside.all():
        raise ConfigurationError(
            f"data must contain a location inside the model's region, got {len(states):,} timesteps outside it: use a "
            "model that covers them"
        )
    slots = slotted.slots[-num_steps:]
    history = extract_history(track, model, int(slots[0]))
    num_outside = int(is_outside[-num_steps:].sum())
    return ExploredUser(track.user or "recording", slots, states[-num_steps:], history, num_outside)


def _read_tracks(data: Data, user: str | None) -> tuple[Trajectory, ...]:
    """Read the trajectories of all users. Those without a user name are of the given user."""
    try:
        return data.read().trajectories
    except DataFileError as problem:
        if user is None:
            raise
        try:
            return replace(data, user=user).read().trajectories
        except ConfigurationError:  # the format has user names, so that the file has another flaw
            raise problem from None
