"""Channels as texts."""

from __future__ import annotations

import pytest

from dphmm.attack import DEFAULT_CHANNELS, parse_channel
from dphmm.errors import ConfigurationError, DphmmError
from dphmm.release import ReleaseSettings
from dphmm.release.settings import A_DRAW, Schedule


def test_every_default_is_a_channel_with_a_name_and_a_source_of_its_own():
    made = [parse_channel(text) for text in DEFAULT_CHANNELS]
    assert len({one.name for one in made}) == len(made)
    assert all(one.source for one in made)


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
        ("hourly:4", "one place in 4 h"),
    ],
)
def test_texts_say_what_they_mean(text, name):
    assert parse_channel(text).name == name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rot13", "is none; give one of exact, nothing, android"),
        ("", "is none"),
        ("exact:3", "is none"),
        ("round:8", "a whole number from 0 to 7"),
        ("round:-1", "a whole number from 0 to 7"),
        ("round:²", "a whole number from 0 to 7"),
        ("round", "a whole number from 0 to 7"),
        ("meshtastic:0", "a whole number from 1 to 31"),
        ("meshtastic:32", "a whole number from 1 to 31"),
        ("disc:500", "needs a length from 1m to 1000km with its unit"),
        ("disc:-5m", "needs a length"),
        ("disc:nan", "needs a length"),
        ("android:100m", "a length from 200m"),
        ("offset:1e9km", "needs a length"),
        ("release:utility:1km", "needs a policy and an epsilon"),
        ("release:@1", "needs a policy and an epsilon"),
        ("release:utility:1km@day:x", "could not convert"),
        ("release:utility:1km@day:0", "epsilon"),
        ("release:utility:1km@target:900", "900"),
        ("release:utility:1km@week:3", "could not convert"),
        ("hourly:0", "a whole number from 1 to 168"),
        ("hourly:1.5", "a whole number from 1 to 168"),
        ("release:utility:1km@x", "release:utility:1km@x"),
        ("release:utility:1km@-1", "epsilon"),
    ],
)
def test_other_texts_are_refused_with_what_to_write(text, said):
    with pytest.raises(DphmmError, match=said):
        parse_channel(text)


def test_the_channel_of_the_usual_promise_has_the_settings_of_release():
    found = parse_channel("release:utility:1km@day:3")
    assert found.settings == ReleaseSettings.for_a_day()
    target = parse_channel("release:utility:1km@target:900m").settings
    assert target is not None
    assert (target.epsilon, target.schedule) == (A_DRAW, Schedule(0.9))


def test_channels_of_one_kind_are_a_family_and_others_stand_alone():
    kinds = ("round:2", "round:3", "release:utility:1km@day:3", "release:utility:1km@day:9", "release:utility:1km@3")
    assert [parse_channel(text).family for text in kinds] == [
        *2 * ["rounded to … digits"],
        *2 * ["dphmm utility:1km, ε a day"],
        "dphmm utility:1km, ε each",
    ]
    assert parse_channel("exact").family == parse_channel("nothing").family == ""


def test_a_channel_must_be_a_text():
    with pytest.raises(DphmmError, match="text is 3; give a text"):
        parse_channel(3)
    with pytest.raises(ConfigurationError):
        parse_channel("table:mine.csv")
