"""People of the synthetic city: days between home, work and leisure, as a phone would record them.

Nobody's data are in it, nothing is downloaded, and the same seed gives the same people. What it is good for: a first
run, an example, a test. What it is not: evidence of how well anything works on real movement.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, RandomSource, Rng, random_source
from dphmm.errors import ConfigurationError
from dphmm.readers.city import City, Corner, build_city
from dphmm.space.trajectory import Trajectory

FIRST_DAY = np.datetime64("2024-03-07", "us")
"""A Thursday: five days hold three working days and a weekend."""

UTC_OFFSET_HOURS = 2
"""What to add to the city's clock to have UTC."""

_HOUR = 3600.0
_SPEEDS_KMH = (4.8, 14.0, 26.0)
_REST_KM, _MOVING_KM = 0.006, 0.010
_OFF_SHARE = 0.2
_MISSED_SHARE = 0.01


class _Dice(RandomSource):
    """Draws of the shapes that a diary needs."""

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * float(self.uniform(1)[0])

    def happens(self, share: float) -> bool:
        return self.between(0.0, 1.0) < share

    def pick(self, corners: list[Corner]) -> Corner:
        return corners[int(self.between(0.0, len(corners)))]

    def normal(self, count: int) -> FloatArray:
        """Independent planar normal errors, shape ``(count, 2)`` (Box and Muller, 1958)."""
        radius = np.sqrt(-2 * np.log(self.uniform(count)))
        angle = 2 * np.pi * self.uniform(count)
        return np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])


class _Diary:
    """Someone's days as a polyline in time: seconds since the first midnight of the city's clock, places in km."""

    def __init__(self, city: City, haunts: list[Corner], dice: _Dice) -> None:
        self.city = city
        self.home = self.corner = dice.pick(city.corners("Gardens", "University", "Harbour"))
        self.work = dice.pick(city.corners("Works", "Old Town", "University"))
        self.speed_kmh = _SPEEDS_KMH[int(dice.between(0, len(_SPEEDS_KMH)))]
        self.haunts = (dice.pick(haunts), dice.pick(haunts))
        self.seconds = [0.0]
        self.points = [city.point(self.home)]

    def stay_until(self, second: float) -> None:
        if second > self.seconds[-1]:
            self.seconds.append(second)
            self.points.append(self.points[-1])

    def go(self, corner: Corner) -> None:
        way = self.city.route(self.corner, corner)
        for before, after in pairwise(way):
            hours = float(np.hypot(*(after - before))) / self.speed_kmh
            self.seconds.append(self.seconds[-1] + hours * _HOUR)
            self.points.append(after)
        self.corner = corner

    def stay(self, hours: float) -> None:
        self.stay_until(self.seconds[-1] + hours * _HOUR)

    def at(self, seconds: FloatArray) -> tuple[FloatArray, BoolArray]:
        """Places at the given times, shape ``(n, 2)``, and whether the person rests there."""
        places = np.array(self.points)
        along = np.column_stack([np.interp(seconds, self.seconds, places[:, axis]) for axis in (0, 1)])
        leg = np.clip(np.searchsorted(self.seconds, seconds, side="right") - 1, 0, len(places) - 2)
        return along, (places[leg] == places[leg + 1]).all(axis=1)


def synthetic_trajectories(
    users: int = 12, days: int = 5, step_minutes: float = 5.0, *, city: City | None = None, rng: Rng = 1
) -> tuple[Trajectory, ...]:
    """What the phones of some people of the synthetic city recorded, from 2024-03-07 on.

    A fix every step, with an error of 6 m at rest and 10 m on the way (the standard deviation along each axis); now and
    then one is missing, and on one day in five the phone is off for one or two hours. On working days people go to work
    and back, some to lunch and some out in the evening; on other days they go out.

    Parameters
    ----------
    users
        How many people, 1 to 99.
    days
        How many days, at least one.
    step_minutes
        Minutes between fixes, positive.
    city
        The city; left out, `build_city()`.
    rng
        Decides who the people are and what they do.

    Raises
    ------
    ConfigurationError
        For numbers outside these ranges.

    Examples
    --------
    >>> one, two = synthetic_trajectories(users=2, days=1)
    >>> one.user, len(one) > 200
    ('p01', True)
    """
    if not 1 <= users <= 99 or days < 1 or not step_minutes > 0:
        raise ConfigurationError(
            f"{users} users, {days} days, steps of {step_minutes} min; give 1 to 99 users, some days, a positive step"
        )
    city = city or build_city()
    dice = _Dice(random_source(rng).bytes)
    haunts = [dice.pick(city.corners("Old Town", "Harbour")) for _ in range(6)]
    diaries = [_Diary(city, haunts, dice) for _ in range(users)]
    made = []
    for number, diary in enumerate(diaries, start=1):
        _live(diary, days, dice)
        made.append(_recorded(f"p{number:02d}", diary, days, step_minutes, dice))
    return tuple(made)


def _live(diary: _Diary, days: int, dice: _Dice) -> None:
    for day in range(days):
        midnight = day * 24 * _HOUR
        weekday = (day + 3) % 7 < 5  # the first day is a Thursday, day 3 of a week from Monday
        (_working_day if weekday else _free_day)(diary, midnight, dice)
        diary.go(diary.home)
        diary.stay_until(midnight + 24 * _HOUR)


def _working_day(diary: _Diary, midnight: float, dice: _Dice) -> None:
    diary.stay_until(midnight + dice.between(7.0, 9.0) * _HOUR)
    diary.go(diary.work)
    if dice.happens(0.5):
        diary.stay_until(midnight + dice.between(11.8, 12.6) * _HOUR)
        diary.go(diary.haunts[0])
        diary.stay(dice.between(0.5, 0.8))
        diary.go(diary.work)
    diary.stay_until(midnight + dice.between(16.5, 18.0) * _HOUR)
    if dice.happens(0.4):
        diary.go(diary.haunts[1])
        diary.stay(dice.between(1.0, 2.0))


def _free_day(diary: _Diary, midnight: float, dice: _Dice) -> None:
    for haunt, share, earliest in ((0, 0.8, 9.5), (1, 0.6, 14.0)):
        if dice.happens(share):
            diary.stay_until(midnight + dice.between(earliest, earliest + 1.5) * _HOUR)
            diary.go(diary.haunts[haunt])
            diary.stay(dice.between(1.0, 2.5))


def _recorded(user: str, diary: _Diary, days: int, step_minutes: float, dice: _Dice) -> Trajectory:
    seconds = np.arange(0.0, days * 24 * _HOUR, step_minutes * 60.0)
    points, rests = diary.at(seconds)
    points = points + dice.normal(len(seconds)) * np.where(rests, _REST_KM, _MOVING_KM)[:, None]
    kept = dice.uniform(len(seconds)) >= _MISSED_SHARE
    for day in range(days):
        if dice.happens(_OFF_SHARE):
            start = (day * 24 + dice.between(8.0, 20.0)) * _HOUR
            kept &= (seconds < start) | (seconds > start + dice.between(1.0, 2.0) * _HOUR)
    kept[0] = True
    latitude, longitude = np.round(diary.city.projection.to_latlon(points[kept]), 6).T
    since = np.round((seconds[kept] + UTC_OFFSET_HOURS * _HOUR) * 1e6).astype("timedelta64[us]")
    return Trajectory(user, FIRST_DAY + since, latitude, longitude)
