"""Classes of time at fixed UTC offsets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from dphmm.model import MarkovModel, TimeClasses

HOURS = tuple(range(168))
WEEK = 168 * 3600


def sort_rotations(classes):
    """Return the first rotation of a sequence in lexicographic order."""
    return min(classes[k:] + classes[:k] for k in range(len(classes)))


def list_classes_by_clock(step, zone, year, month):
    """Return the hours of the week in which the steps of a week begin, by the clock of a zone."""
    first = int(datetime(year, month, 10, tzinfo=UTC).timestamp()) // step
    starts = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=(first + k) * step) for k in range(WEEK // step))
    local = [start.astimezone(ZoneInfo(zone)) for start in starts]
    return [24 * time.weekday() + time.hour for time in local]


@pytest.mark.parametrize("step", [1800, 2400, 2700, 5400, 7200, 25200])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC"])
def test_fixed_offsets_have_the_classes_of_every_date(zone, step):
    by_date = {
        tuple(sort_rotations(list_classes_by_clock(step, zone, year, month)))
        for year in (1970, 1975, 1981, 1982, 1990, 2024, 2090)
        for month in (1, 7)
    }
    fixed = [
        tuple(sort_rotations([classes.get_class(slot) for slot in range(WEEK // step)]))
        for classes in TimeClasses(HOURS, step, zone).with_fixed_offsets()
    ]
    assert len(set(fixed)) == len(fixed)
    assert set(fixed) == by_date


def test_model_at_fixed_offsets_has_their_hash():
    classes = TimeClasses((0, 1) * 84, 7200.0, "Europe/Berlin")
    model = MarkovModel([[[1.0]]] * 2, [[1.0]] * 2, step_seconds=7200.0, time_classes=classes)
    hashes = {model.content_hash, *(fixed.content_hash for fixed in model.with_fixed_offsets())}
    assert len(hashes) == 3
