"""Write the synthetic sample in data/ from `dphmm.readers.synthetic_city`.

The output is deterministic.

Usage: python scripts/make_sample.py [FOLDER]      (by default data/ in the project)
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.random import Rng, as_random_source
from dphmm.readers.synthetic_city import City, Corner, _Dice, build_city, sample_synthetic_trajectories
from dphmm.space import Trajectory

PLT_HEADER = (
    "Geolife trajectory\r\nWGS 84\r\nAltitude is in Feet\r\nReserved 3\r\n0,2,255,My Track,0,0,2,8421376\r\n0\r\n"
)
PLT_EPOCH = np.datetime64("1899-12-30", "us")
DAY = np.timedelta64(1, "D")
HOUR = 3600.0
ALTITUDE_FEET = 98
CHECKIN_REST_POINTS = 4


def iterate_fixes(trajectory: Trajectory) -> Iterator[tuple[str, float, float]]:
    times = np.datetime_as_string(trajectory.times.astype("datetime64[s]"))
    return zip(times.tolist(), trajectory.latitude.tolist(), trajectory.longitude.tolist(), strict=True)


def split_days(trajectory: Trajectory, count: int) -> Iterator[Trajectory]:
    first = trajectory.times[0].astype("datetime64[D]")
    for day in range(count):
        part = trajectory.select_time_range(first + day * DAY, first + (day + 1) * DAY)
        if part is not None:
            yield part


def format_plt(day: Trajectory) -> str:
    since = (day.times - PLT_EPOCH) / DAY
    lines = [
        f"{latitude:.6f},{longitude:.6f},0,{ALTITUDE_FEET},{number:.10f},{time[:10]},{time[11:]}\r\n"
        for (time, latitude, longitude), number in zip(iterate_fixes(day), since.tolist(), strict=True)
    ]
    return PLT_HEADER + "".join(lines)


def format_checkins(tracks: tuple[Trajectory, ...]) -> str:
    """Return one check-in per stay of twenty minutes, newest first, in the format of SNAP."""
    lines, places = [], {}
    for number, track in enumerate(tracks):
        rows = []
        here = None
        length = 0
        done = False
        for time, latitude, longitude in iterate_fixes(track):
            place = (round(latitude, 3), round(longitude, 3))
            here, length, done = (here, length + 1, done) if place == here else (place, 1, False)
            if length == CHECKIN_REST_POINTS and not done:
                done = True
                index = places.setdefault(place, 1000 + len(places))
                rows.append(f"{number}\t{time}Z\t{place[0]:.10f}\t{place[1]:.10f}\t{index}\n")
        lines += reversed(rows)
    return "".join(lines)


def format_table(tracks: tuple[Trajectory, ...]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["user_id", "tracked_at", "latitude", "longitude"])
    for track in tracks:
        writer.writerows(
            [track.user, f"{time}Z", f"{lat:.6f}", f"{lon:.6f}"] for time, lat, lon in iterate_fixes(track)
        )
    return text.getvalue()


def format_geojson(day: Trajectory) -> str:
    features = [
        {
            "type": "Feature",
            "properties": {"user_id": day.user, "tracked_at": f"{time}Z"},
            "geometry": {"type": "Point", "coordinates": [lon, lat]},
        }
        for time, lat, lon in iterate_fixes(day)
    ]
    return json.dumps({"type": "FeatureCollection", "features": features}, separators=(",", ":")) + "\n"


def build_streets_geojson(city: City) -> dict[str, Any]:
    """Return the streets as GeoJSON with the property ``highway`` of OpenStreetMap."""
    features = []
    for start, other, avenue in city.streets.edges(data="avenue"):
        ends = city.projection.to_latlon(np.array([city.get_point(start), city.get_point(other)]))
        geometry = {"type": "LineString", "coordinates": np.round(ends[:, ::-1], 6).tolist()}
        properties = {"highway": "primary" if avenue else "residential"}
        features.append({"type": "Feature", "properties": properties, "geometry": geometry})
    return {"type": "FeatureCollection", "features": features}


def sample_ride(
    city: City,
    home: Corner,
    by: Sequence[Corner],
    speed_kmh: float = 18.0,
    start: str = "2024-03-09T10:12:05",
    rng: Rng = 1,
) -> Trajectory:
    """Sample a bicycle ride from home past corners and back, with a fix every second.

    The ride takes the fastest routes. Errors of fixes have 3 m along each axis and are correlated over about ten
    seconds, as those of receivers are.

    Parameters
    ----------
    city
        The city.
    home, by
        Corner at which the ride starts and ends, and corners that it passes.
    speed_kmh
        Speed in km/h.
    start
        Start time, UTC.
    rng
        Source of the errors.

    Returns
    -------
    Trajectory
        The ride of a user named ``ride``.
    """
    way = np.concatenate([city.route(*leg) for leg in pairwise((home, *by, home))])
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(way, axis=0).T))])
    seconds = np.arange(0.0, along[-1] / speed_kmh * HOUR, 1.0)
    gone = seconds * speed_kmh / HOUR
    points = np.column_stack([np.interp(gone, along, way[:, axis]) for axis in (0, 1)])
    errors = _Dice(as_random_source(rng).bytes).sample_normal(len(seconds))
    for at in range(1, len(errors)):
        innovation = (1 - _ERROR_CORRELATION**2) ** 0.5 * errors[at]
        errors[at] = _ERROR_CORRELATION * errors[at - 1] + innovation
    latitude, longitude = np.round(city.projection.to_latlon(points + 0.003 * errors), 6).T
    return Trajectory(
        "ride", np.datetime64(start, "us") + (seconds * 1e6).astype("timedelta64[us]"), latitude, longitude
    )


# Correlation of the errors of consecutive fixes.
_ERROR_CORRELATION = 0.9


def make_ride(city: City) -> str:
    """Return a bicycle ride as GPX of a watch, with heart rate, cadence and a revealing name."""
    track = sample_ride(city, (4, 8), ((8, 11), (10, 5)))
    minutes = np.arange(len(track)) / 60
    heart = np.round(150 - 70 * np.exp(-minutes / 4)).astype(int)
    points = "".join(
        f'<trkpt lat="{lat:.6f}" lon="{lon:.6f}"><time>{time}Z</time>'
        f"<extensions><x:hr>{hr}</x:hr><x:cad>82</x:cad></extensions></trkpt>\n"
        for (time, lat, lon), hr in zip(iterate_fixes(track), heart.tolist(), strict=True)
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<gpx version="1.1" creator="dphmm" xmlns="http://www.topografix.com/GPX/1/1" '
        'xmlns:x="http://www.garmin.com/xmlschemas/TrackPointExtension/v1">\n'
        f"<metadata><time>{next(iterate_fixes(track))[0]}Z</time></metadata>\n"
        f"<trk><name>From my door and back</name><type>cycling</type><trkseg>\n{points}</trkseg></trk>\n</gpx>\n"
    )


def format_gpx(day: Trajectory) -> str:
    points = "".join(
        f'<trkpt lat="{lat:.6f}" lon="{lon:.6f}"><ele>30</ele><time>{time}Z</time></trkpt>\n'
        for time, lat, lon in iterate_fixes(day)
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<gpx version="1.1" creator="dphmm" xmlns="http://www.topografix.com/GPX/1/1">\n'
        f"<trk><name>{day.user}</name><trkseg>\n{points}</trkseg></trk>\n</gpx>\n"
    )


def format_owntracks(day: Trajectory) -> str:
    lines = []
    for (time, lat, lon), seconds in zip(
        iterate_fixes(day), day.times.astype("datetime64[s]").astype(np.int64), strict=True
    ):
        record = {
            "_type": "location",
            "topic": f"owntracks/{day.user}/phone",
            "tst": int(seconds),
            "lat": lat,
            "lon": lon,
        }
        record |= {"acc": 10, "alt": 30, "vel": 0, "tid": day.user[-2:]}
        lines.append(f"{time}Z\t{'*':18}\t{json.dumps(record, separators=(',', ':'))}\n")
    last = {"_type": "lwt", "tst": int(day.times[-1].astype("datetime64[s]").astype(np.int64))}
    return "".join(lines) + f"{format_last_time(day)}Z\t{'lwt':18}\t{json.dumps(last, separators=(',', ':'))}\n"


def format_cab(day: Trajectory) -> str:
    """Return the file of a taxi, newest first. It is occupied every third hour."""
    seconds = day.times.astype("datetime64[s]").astype(np.int64)
    rows = [
        f"{lat:.5f} {lon:.5f} {int(second // 3600 % 3 == 0)} {second}\n"
        for (_, lat, lon), second in zip(iterate_fixes(day), seconds.tolist(), strict=True)
    ]
    return "".join(reversed(rows))


def format_last_time(day: Trajectory) -> str:
    return str(np.datetime_as_string(day.times[-1].astype("datetime64[s]")))


def sample_files() -> dict[str, bytes]:
    """Return all files of the sample: name → content."""
    city = build_city()
    tracks = sample_synthetic_trajectories(city=city)
    one_day = {track.user: next(split_days(track, 1)) for track in tracks}
    texts = {
        f"sample/geolife/Data/{number:03d}/Trajectory/{format_first_time(day)}.plt": format_plt(day)
        for number, track in enumerate(tracks[:3])
        for day in split_days(track, 3)
    }
    texts |= {
        "sample/table.csv": format_table(tracks[:4]),
        "sample/points.geojson": format_geojson(one_day["p05"]),
        "sample/track.gpx": format_gpx(one_day["p06"]),
        "sample/ride.gpx": make_ride(city),
        "sample/phone.rec": format_owntracks(one_day["p07"]),
        "sample/cabs/new_pacifa.txt": format_cab(one_day["p08"]),
        "sample/cabs/new_pobrid.txt": format_cab(one_day["p09"]),
        "sample/cabs/_cabs.txt": '<cab id="pacifa" updates="1"/>\n<cab id="pobrid" updates="1"/>\n',
        "districts.geojson": json.dumps(city.build_districts_geojson(), indent=1) + "\n",
        "streets.geojson": json.dumps(build_streets_geojson(city), separators=(",", ":")) + "\n",
        "home.geojson": json.dumps(make_home_zone(), indent=1) + "\n",
    }
    files = {name: text.encode("utf-8") for name, text in texts.items()}
    files["sample/checkins.txt.gz"] = gzip.compress(format_checkins(tracks).encode("ascii"), mtime=0)
    return files


def make_home_zone() -> dict[str, object]:
    """Return a private zone: a box of slightly more than two square kilometres."""
    west = -30.012
    south = 45.002
    east = -29.994
    north = 45.016
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    geometry = {"type": "Polygon", "coordinates": [ring]}
    zone = {"type": "Feature", "properties": {"name": "home"}, "geometry": geometry}
    return {"type": "FeatureCollection", "features": [zone]}


def format_first_time(day: Trajectory) -> str:
    start = str(np.datetime_as_string(day.times[0].astype("datetime64[s]")))
    return "".join(character for character in start if character.isdigit())


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "data"
    for name, content in sample_files().items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        print(f"{len(content):8d}  {target}")


if __name__ == "__main__":
    main()
