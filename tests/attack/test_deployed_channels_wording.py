"""Tests of channels parsed from strings."""

from __future__ import annotations

import pytest

from dphmm.attack import DEFAULT_CHANNELS, parse_channel
from dphmm.errors import ConfigurationError, DphmmError
from dphmm.release import ReleaseSettings
from dphmm.release.settings import DEFAULT_DRAW_EPSILON, Schedule


def test_default_channels_have_unique_names_and_sources():
    channels = [parse_channel(text) for text in DEFAULT_CHANNELS]
    assert len({channel.name for channel in channels}) == len(channels)
    assert all(channel.source for channel in channels)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("round:0", "rounded to 0 digits"),
        ("meshtastic:31", "Meshtastic, 31 bits"),
        ("snap:1.5km", "snapped to 1.5 km"),
        ("android:500m", "Android approximate, 500 m"),
        (" gaussian:50m ", "fresh Gaussian, 50 m"),
        ("release:utility:500m@0.5", "dphmm utility:500m, ε 0.5"),
        ("release:utility:500m@day:12", "dphmm utility:500m, ε 12 a day"),
        ("release:utility:1km@target:900m", "dphmm utility:1km, target 900 m"),
        ("hourly:4", "exact location every 4 h"),
    ],
)
def test_channel_strings_are_parsed(text, name):
    assert parse_channel(text).name == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rot13", "one of exact, nothing, android"),
        ("", "channel must be one of .* got ''"),
        ("exact:3", "channel must be one of .* got 'exact:3'"),
        ("round:8", "an integer from 0 to 7"),
        ("round:-1", "an integer from 0 to 7"),
        ("round:²", "an integer from 0 to 7"),
        ("round", "an integer from 0 to 7"),
        ("meshtastic:0", "an integer from 1 to 31"),
        ("meshtastic:32", "an integer from 1 to 31"),
        ("disc:500", "channel must have a length from 1m to 1000km with its unit"),
        ("disc:-5m", "channel must have a length"),
        ("disc:nan", "channel must have a length"),
        ("android:100m", "a length from 200m"),
        ("offset:1e9km", "channel must have a length"),
        ("release:utility:1km", "channel must have a policy and an epsilon"),
        ("release:@1", "channel must have a policy and an epsilon"),
        ("release:utility:1km@day:x", "epsilon must be a decimal number, got 'x'"),
        ("release:utility:1km@day:", "epsilon must be a decimal number, got ''"),
        ("release:utility:1km@day:0", "epsilon"),
        ("release:utility:1km@target:900", "900"),
        ("release:utility:1km@week:3", "epsilon must be a decimal number, got 'week:3'"),
        ("hourly:0", "an integer from 1 to 168"),
        ("hourly:1.5", "an integer from 1 to 168"),
        ("release:utility:1km@x", "release:utility:1km@x"),
        ("release:utility:1km@-1", "epsilon"),
    ],
)
def test_invalid_channel_strings_raise(text, message):
    with pytest.raises(DphmmError, match=message):
        parse_channel(text)


def test_daily_budget_channel_has_release_settings():
    channel = parse_channel("release:utility:1km@day:3")
    assert channel.settings == ReleaseSettings.for_a_day()
    target = parse_channel("release:utility:1km@target:900m").settings
    assert target is not None
    assert (target.epsilon, target.schedule) == (DEFAULT_DRAW_EPSILON, Schedule(0.9))


def test_channels_of_same_type_share_family():
    kinds = ("round:2", "round:3", "release:utility:1km@day:3", "release:utility:1km@day:9", "release:utility:1km@3")
    assert [parse_channel(text).family for text in kinds] == [
        *2 * ["rounded to … digits"],
        *2 * ["dphmm utility:1km, ε a day"],
        "dphmm utility:1km, ε each",
    ]
    assert parse_channel("exact").family == parse_channel("nothing").family == ""


def test_non_string_or_table_file_raises():
    with pytest.raises(DphmmError, match="text must be a string"):
        parse_channel(3)
    with pytest.raises(ConfigurationError):
        parse_channel("table:mine.csv")
