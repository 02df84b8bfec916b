"""Tests of the messages of apps: only fixes are read from them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

import dphmm
from dphmm.errors import InvalidInputError
from dphmm.serve.incoming_messages import (
    Fix,
    Received,
    parse_fix,
    read_gpslogger,
    read_home_assistant,
    read_osmand,
    read_overland,
    read_owntracks,
    read_plain,
    read_traccar,
)
from dphmm.space.fix_quality import MAX_ACCURACY_M
from tests.serve.conftest import START, make_location

PLACE = Fix(np.datetime64(START, "s").astype("datetime64[us]"), 45.0, -30.0)
ISO = datetime.fromtimestamp(START, UTC).isoformat()


def encode_body(value: object) -> bytes:
    return json.dumps(value).encode()


OVERLAND = {
    "locations": [
        {
            "type": "Feature",
            "geometry": {"type": "Point", "coordinates": [-30.0, 45.0, 12.0]},
            "properties": {
                "timestamp": ISO.replace("+00:00", "Z"), "altitude": 12, "speed": 0, "horizontal_accuracy": 30,
                "vertical_accuracy": -1, "motion": ["driving", "stationary"], "pauses": False, "activity": "other",
                "desired_accuracy": 100, "deferred": 1000, "significant_change": "disabled", "locations_in_payload": 1,
                "battery_state": "charging", "battery_level": 0.8, "device_id": "x", "wifi": "Home", "unique_id": "y",
            },
        }
    ],
    "trip": {"mode": "car"},
}  # fmt: skip
TRACCAR = {
    "device_id": "t",
    "location": {
        "timestamp": ISO, "coords": {"latitude": 45.0, "longitude": -30.0, "accuracy": 5, "speed": 1.2, "heading": 3,
        "altitude": 12}, "is_moving": True, "odometer": 3, "event": "motionchange", "battery": {"level": 0.5,
        "is_charging": False}, "activity": {"type": "walking"}, "extras": {},
    },
}  # fmt: skip
OSMAND = {
    "id": "t", "timestamp": str(START), "lat": "45.0", "lon": "-30.0", "speed": "0.0", "bearing": "0", "batt": "51",
}  # fmt: skip


@pytest.mark.parametrize(
    "received",
    [
        read_owntracks(encode_body(make_location())),
        read_owntracks(encode_body(make_location() | {"tst": str(START)})),
        read_overland(encode_body(OVERLAND)),
        read_overland(encode_body({"current": OVERLAND["locations"][0]})),
        read_traccar(encode_body(TRACCAR)),
        read_osmand(OSMAND),
        read_osmand(OSMAND | {"timestamp": f"{START}000"}),
        read_osmand({"id": "t", "timestamp": ISO, "location": "45.0,-30.0"}),
        read_gpslogger({"lat": "45.0", "lon": "-30.0", "timestamp": str(START), "acc": "4", "batt": "51"}),
        read_gpslogger({"latitude": "45.0", "longitude": "-30.0", "time": ISO, "device": "x", "battery": "3"}),
        read_plain(encode_body({"time": ISO, "latitude": 45.0, "longitude": -30})),
    ],
    ids=[
        "owntracks",
        "owntracks, string time",
        "overland",
        "overland, current",
        "traccar",
        "osmand",
        "osmand, milliseconds",
        "osmand, location",
        "gpslogger",
        "gpslogger, long names",
        "plain",
    ],
)
def test_message_of_each_app_is_read_as_fix(received):
    assert received == Received((replace(PLACE, accuracy_m=received.fixes[0].accuracy_m),))


def test_accuracy_of_each_app_is_read():
    message = {"type": "update_location", "data": {"gps": [45.0, -30.0], "gps_accuracy": 20}}
    for received, metres in (
        (read_owntracks(encode_body(make_location())), 4),
        (read_overland(encode_body(OVERLAND)), 30),
        (read_traccar(encode_body(TRACCAR)), 5),
        (read_osmand(encode_body(TRACCAR)), 5),
        (read_osmand(OSMAND | {"accuracy": "12,5"}), 12.5),
        (read_gpslogger({"lat": "45.0", "lon": "-30.0", "timestamp": str(START), "acc": "4"}), 4),
        (read_home_assistant(encode_body(message)), 20),
        (read_plain(encode_body({"time": ISO, "latitude": 45.0, "longitude": -30, "accuracy": 7})), 7),
        (read_owntracks(encode_body(make_location() | {"acc": -1})), -1),
        (read_owntracks(encode_body(make_location() | {"acc": "unknown"})), None),
    ):
        assert received.fixes[0].accuracy_m == metres


def test_decimal_commas_are_read_and_failures_have_reason():
    fields = {"lat": "45,0", "lon": "-30,0", "timestamp": str(START), "acc": "4,0"}
    assert read_gpslogger(fields).fixes == (replace(PLACE, accuracy_m=4.0),)
    assert read_osmand(OSMAND | fields).fixes == (PLACE,)
    assert read_osmand(OSMAND | {"lat": "1,045,0"}).rejected == ("malformed",)
    assert read_gpslogger(fields | {"timestamp": "2024-03-07T09:00:00"}).rejected == ("no_timezone",)
    assert read_owntracks(encode_body({"_type": "encrypted", "data": "…"})).rejected == ("encrypted",)


def test_home_assistant_and_gpslogger_default_to_current_time():
    message = {"type": "update_location", "data": {"gps": [45.0, -30.0], "gps_accuracy": 20, "battery": 5, "speed": 0}}
    for received in (read_home_assistant(encode_body(message)), read_gpslogger({"lat": "45.0", "lon": "-30.0"})):
        (fix,) = received.fixes
        assert (fix.latitude, fix.longitude) == (45.0, -30.0)
        assert abs(fix.time - np.datetime64("now", "us")) < np.timedelta64(5, "s")


@pytest.mark.parametrize(
    "message",
    [
        {"_type": "transition", "lat": 45, "lon": -30, "tst": START, "event": "enter", "desc": "Home"},
        {"_type": "waypoint", "lat": 45, "lon": -30, "tst": START, "rad": 50, "desc": "Home"},
        {"_type": "waypoints", "waypoints": []},
        {"_type": "lwt", "tst": START},
        {"_type": "dump", "configuration": {}},
        {"_type": "card", "name": "Ann", "face": "…"},
        [],
        "location",
        None,
    ],
    ids=["transition", "waypoint", "waypoints", "lwt", "dump", "card", "list", "string", "null"],
)
def test_other_owntracks_messages_contain_no_fix(message):
    assert read_owntracks(encode_body(message)) == Received()


@pytest.mark.parametrize(
    "raw",
    [b"", b"\xff", b"{", b"[" * 5000, b"1" * 5000, b'{"_type": "location"'],
    ids=["empty", "not UTF-8", "brace", "deep list", "long number", "truncated"],
)
def test_invalid_json_contains_no_fix(raw):
    for read in (read_owntracks, read_overland, read_home_assistant):
        assert not read(raw).fixes
    with pytest.raises(InvalidInputError, match="JSON"):
        read_plain(raw)


@pytest.mark.parametrize(
    ("time", "latitude", "longitude"),
    [
        (START, 91, 0),
        (START, 0, 181),
        (START, float("nan"), 0),
        (START, True, 0),
        (START, None, 0),
        (START, "north", 0),
        (START, 10**400, 0),
        (-1, 45, 0),
        (1e30, 45, 0),
        (True, 45, 0),
        (None, 45, 0),
        ("yesterday", 45, 0),
        ("2024-03-07T09:00:00", 45, 0),
        ([START], 45, 0),
    ],
)
def test_malformed_fix_is_counted_and_does_not_block_others(time, latitude, longitude):
    with pytest.raises((ValueError, TypeError, AttributeError)):
        parse_fix(time, latitude, longitude)
    bad = {"geometry": {"type": "Point", "coordinates": [longitude, latitude]}, "properties": {"timestamp": time}}
    received = read_overland(encode_body({"locations": [bad, *OVERLAND["locations"], {"geometry": None}, 7]}))
    assert received.fixes == (replace(PLACE, accuracy_m=30.0),)
    assert len(received.rejected) == 3


@pytest.mark.parametrize("name", ["recorder/demo-iphone.rec", "dawarich/2023-02_old.rec", "dawarich/2024-03.rec"])
def test_recorded_messages_match_file_reader(real_data, name):
    file = real_data / "owntracks" / name
    fixes_read = [
        fix for line in file.read_bytes().splitlines() for fix in read_owntracks(line[line.find(b"{") :]).fixes
    ]
    (track,) = dphmm.read(file, user="ann").trajectories
    fixes_read = [fix for fix in fixes_read if (fix.accuracy_m or 0) < MAX_ACCURACY_M]  # refused, also by the relay
    places = {(fix.time, fix.latitude, fix.longitude) for fix in fixes_read}
    expected = set(zip(track.times, track.latitude.tolist(), track.longitude.tolist(), strict=True))
    assert expected
    assert expected <= places  # the reader keeps one fix per timestamp
    assert {time for time, _, _ in places} == set(track.times)


def test_repr_of_fixes_contains_no_location():
    message = read_owntracks(encode_body(make_location(latitude=45.12345)))
    assert "45.1" not in repr(message) + repr(message.fixes[0]) + str(message)
