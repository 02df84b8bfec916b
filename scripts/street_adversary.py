"""Fit and measure the adversary of ``dphmm hide`` who has a street map.

Usage: python -m scripts.street_adversary fit|measure|report FOLDER [--homes N] [--output FILE] [--picture FILE]

FOLDER contains extracts of OpenStreetMap. A user rides from home to random destinations 2 to 8 km away, and back. Each
way is the shortest one if lengths are multiplied by random factors: lasting preferences of the user for main roads,
streets and paths, lasting preferences for quarters of 150 m, and new factors of each ride for quarters and for single
pieces of street. Fixes have errors of 4 m. Homes are sampled from the prior of the zone of 500 m.

``fit`` prints the constants of `dphmm.hide.street_inference`. It uses `FITTED` only, with other homes and ways than
``measure``. ``measure`` appends a line per home to FILE, and continues a file that it finds. ``report`` prints tables,
and plots the reliability of the stated probabilities.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize, minimize_scalar
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, dijkstra
from scipy.spatial import KDTree
from scipy.stats import beta

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import ConfigurationError
from dphmm.hide.fixed_squares import Square
from dphmm.hide.square_size import RING_RATIO, choose_square
from dphmm.hide.street_inference import AHEAD_KM, STREET, ZoneStreets, compute_candidate_posteriors
from dphmm.hide.zone import Gate, HiddenZone, Stretch
from dphmm.hide.zone_inference import ADVERSARIES, compute_log_likelihoods
from dphmm.space.projection import LocalProjection
from dphmm.tables.street_map import STREET_CLASSES, read_street_map

FITTED = ("campo-grande.osm.gz", "north-bayreuth.osm.gz")
KEPT_OUT = ("andorra.osm.pbf",)
WITHIN_KM = 0.5
RIDES = (1, 3, 10)
NEAR_KM = 0.1
VARIANTS = ("--within 500m", "--within 500m, ring doubled", "--within 500m --among 50", "--among 50")

_STEP_KM = 0.005
_FIX_STD_KM = 0.004
_QUARTER_KM = 0.15
_MARGIN_KM = 1.8
_MIN_TRIP_KM = 2.0
_MAX_TRIP_KM = 8.0
# Standard deviations of the logarithms of factors: lasting ones, and those of a ride for quarters and pieces.
_LASTING_STD = 0.2
_RIDE_STD = 0.3
_PIECE_STD = 0.3
_NUM_BINS = 5


class Network:
    """The connected streets of an extract without motorways.

    Parameters
    ----------
    path
        The extract.
    """

    def __init__(self, path: Path) -> None:
        self.map = read_street_map(path)
        self.projection = LocalProjection(*self.map.nodes.mean(axis=0))
        self.points = self.projection.to_plane(*self.map.nodes.T)
        is_used = ~self.map.is_motorway
        self.edges, self.classes = self.map.edges[is_used], self.map.classes[is_used]
        self.lengths = self.map.lengths_km[is_used]
        _, component = connected_components(self.graph(np.zeros(len(self.edges))), directed=False)
        largest = np.bincount(component[self.edges[:, 0]]).argmax()
        self.nodes = np.flatnonzero(component == largest)
        self._tree = KDTree(self.points[self.nodes])
        self.middles = self.points[self.edges].mean(axis=1)
        self._quarters = np.floor((self.middles - self.middles.min(axis=0)) / _QUARTER_KM).astype(np.int64)
        # Some ways leave the extract.
        self._low, self._high = np.percentile(self.points[self.nodes], [1, 99], axis=0)

    def graph(self, log_factors: FloatArray) -> Any:
        """Return the graph with the products of lengths and factors."""
        size = len(self.points)
        return csr_array((self.lengths * np.exp(log_factors), self.edges.T), shape=(size, size))

    def sample_places(self, rng: np.random.Generator) -> Iterator[FloatArray]:
        """Yield random places of buildings, or of streets if few buildings are mapped."""
        is_street = np.isin(self.classes, [STREET_CLASSES.index(name) for name in ("road", "street")])
        lengths = np.where(is_street, self.lengths, 0.0)
        places = self.map.buildings
        if len(places) < 10 * lengths.sum():
            places = self.projection.to_latlon(self.middles[rng.choice(len(lengths), 5000, p=lengths / lengths.sum())])
        while True:
            place = places[rng.integers(len(places))]
            point = self.projection.to_plane(*place[None].T)[0]
            if (point >= self._low + _MARGIN_KM).all() and (point <= self._high - _MARGIN_KM).all():
                yield place

    def _sample_quarter_factors(self, rng: np.random.Generator, std: float) -> FloatArray:
        field = rng.normal(0, std, self._quarters.max(axis=0) + 1)
        return np.asarray(field[tuple(self._quarters.T)])

    def sample_rides(self, home: FloatArray, rng: np.random.Generator, count: int) -> list[list[FloatArray]]:
        """Return rides: the fixes of the ways to a destination and back, both from home."""
        point = self.projection.to_plane(*home[None].T)[0]
        start = self.nodes[self._tree.query(point)[1]]
        away = np.hypot(*(self.points[self.nodes] - self.points[start]).T)
        destinations = self.nodes[(away >= _MIN_TRIP_KM) & (away <= _MAX_TRIP_KM)]
        lasting = rng.normal(0, _LASTING_STD, len(STREET_CLASSES))[self.classes]
        lasting += self._sample_quarter_factors(rng, _LASTING_STD)
        rides = []
        for destination in rng.choice(destinations, count):
            ways = []
            for _ in range(2):
                factors = (
                    lasting + self._sample_quarter_factors(rng, _RIDE_STD) + rng.normal(0, _PIECE_STD, len(self.edges))
                )
                _, before = dijkstra(self.graph(factors), directed=False, indices=start, return_predecessors=True)
                ways.append(self._sample_fixes(point, _trace_way(before, destination), rng))
            rides.append(ways)
        return rides

    def _sample_fixes(self, home: FloatArray, way: IntArray, rng: np.random.Generator) -> FloatArray:
        corners = np.concatenate([home[None], self.points[way]])
        along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(corners, axis=0).T))])
        steps = np.arange(0.0, along[-1], _STEP_KM)
        fixes = np.column_stack([np.interp(steps, along, corners[:, axis]) for axis in (0, 1)])
        return self.projection.to_latlon(fixes + rng.normal(0, _FIX_STD_KM, fixes.shape))


def _trace_way(before: IntArray, node: int) -> IntArray:
    nodes = [node]
    while before[nodes[-1]] >= 0:
        nodes.append(before[nodes[-1]])
    return np.array(nodes[::-1])


def _leave(zone: HiddenZone, fixes: FloatArray) -> Gate | None:
    """Return the gate of a way from home. None if it does not leave the zone."""
    plane = zone.projection.to_plane(*fixes.T)
    is_inside = np.abs(plane).max(axis=1) <= zone.half_km
    if is_inside.all():
        return None
    first = int(is_inside.argmin())
    kept = plane[first:]
    again = np.flatnonzero(is_inside[first:])
    kept = kept[: again[0]] if len(again) else kept
    direction = kept[min(20, len(kept) - 1)] if len(kept) > 1 else np.full(2, np.nan)
    return Gate(kept[0], direction, kept[min(round(AHEAD_KM / _STEP_KM), len(kept) - 1)])


def _find_stretches(zone: HiddenZone, rides: Sequence[Sequence[FloatArray]]) -> list[list[Stretch]]:
    stretches = []
    for out, back in rides:
        gates = _leave(zone, out), _leave(zone, back)
        ends = [Stretch(None, gates[0]) if gates[0] else None, Stretch(gates[1], None) if gates[1] else None]
        stretches.append([end for end in ends if end is not None])
    return stretches


def _make_zone_today(place: FloatArray) -> HiddenZone:
    return HiddenZone(Square.around(*place.tolist(), 1.5 * WITHIN_KM), WITHIN_KM)


def _make_zone(network: Network, home: FloatArray, variant: str) -> HiddenZone:
    if variant == VARIANTS[0]:
        return _make_zone_today(home)
    if variant == VARIANTS[1]:
        return HiddenZone(_make_zone_today(home).square, 2 * WITHIN_KM)
    within_km = WITHIN_KM if "within" in variant else 0.1
    square = choose_square(network.map, *home.tolist(), 50, 1.5 * within_km)
    return HiddenZone(square, max(within_km, square.side_km / RING_RATIO))


def _sample_home(network: Network, place: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return a home in the core of a place, sampled from the prior."""
    zone = _make_zone_today(place)
    candidates = ZoneStreets(zone, network.map).candidates
    point = candidates.points[rng.choice(len(candidates.prior), p=candidates.prior)]
    return np.asarray(zone.projection.to_latlon(point[None])[0])


def _find_nearest(streets: ZoneStreets, home: FloatArray) -> int:
    point = streets.zone.projection.to_plane(*home[None].T)[0]
    return int(np.hypot(*(streets.candidates.points - point).T).argmin())


# ---- fit -------------------------------------------------------------------------------------------------------------


def fit(folder: Path, homes: int) -> dict[str, float]:
    """Return the constants of the greatest likelihood of gates, and of homes after rides.

    Parameters
    ----------
    folder
        The folder of extracts.
    homes
        The number of homes for each of `FITTED`.

    Returns
    -------
    dict
        The scale in kilometres, the share of users who wander, and the dependence.
    """
    gates, zones = list[tuple[FloatArray, FloatArray]](), list[tuple[ZoneStreets, int, list[list[Stretch]]]]()
    for number, name in enumerate(FITTED):
        network, rng = Network(folder / name), np.random.default_rng([1, number])
        for count, place in enumerate(network.sample_places(rng)):
            if count == homes:
                break
            home = _sample_home(network, place, rng)
            zone = _make_zone_today(home)
            streets = ZoneStreets(zone, network.map, scale_km=1.0, wandering=0.0)
            stretches = _find_stretches(zone, network.sample_rides(home, rng, max(RIDES)))
            at = _find_nearest(streets, home)
            zones.append((streets, at, stretches))
            for stretch in (stretch for ride in stretches for stretch in ride):
                gate = stretch.left or stretch.entered
                assert gate is not None
                excess = -np.log(np.maximum(streets.gate_probabilities(gate.towards)[at], 1e-300))
                gates.append((excess - excess.min(), streets.gate_weights(gate.point)))
            print(f"{name}: {count + 1} of {homes}", file=sys.stderr)

    def compute_loss(values: FloatArray) -> float:
        scale, wandering = np.exp(values[0]), 1 / (1 + np.exp(-values[1]))
        total = 0.0
        for excess, weights in gates:
            probabilities = np.exp(-excess / scale)
            probabilities /= probabilities.sum()
            total -= np.log(((1 - wandering) * probabilities + wandering / len(weights)) @ weights)
        return float(total / len(gates))

    best = minimize(compute_loss, [np.log(0.1), -3.0], method="Nelder-Mead", options={"xatol": 0.01, "fatol": 1e-5}).x
    scale, wandering = float(np.exp(best[0])), float(1 / (1 + np.exp(-best[1])))
    logs = []
    for streets, at, stretches in zones:
        streets.scale_km = scale
        streets.wandering = max(wandering, 0.01)
        streets.dependence = 0.0
        ends = [streets.log_likelihood(ride) for ride in stretches]
        counts = [len(ride) for ride in stretches]
        logs += [(streets.candidates.prior, sum(ends[:n]), sum(counts[:n]), at) for n in RIDES]

    def compute_surprise(dependence: float) -> float:
        total = 0.0
        for prior, log, count, at in logs:
            weighted = log / (1 + dependence * max(count - 1, 0)) + np.log(prior)
            total += np.logaddexp.reduce(weighted) - weighted[at]
        return total / len(logs)

    dependence = float(minimize_scalar(compute_surprise, bounds=(0.0, 1.0), method="bounded").x)
    return {"scale_km": scale, "wandering": wandering, "dependence": dependence, "gates": len(gates)}


# ---- measurement -----------------------------------------------------------------------------------------------------


def measure(folder: Path, homes: int, output: Path) -> None:
    """Append the measurement of each home to a file.

    Parameters
    ----------
    folder
        The folder of extracts.
    homes
        The number of homes for each network.
    output
        The file of JSON lines. Homes that it contains are not measured again.
    """
    lines = output.read_text().splitlines() if output.exists() else []
    measured = {(row["network"], row["home"]) for row in map(json.loads, lines)}
    for name in (*KEPT_OUT, *FITTED):
        network = None
        for number in range(homes):
            if (name, number) in measured:
                continue
            network = network or Network(folder / name)
            row = {"network": name, "home": number, "variants": _measure_home(network, number)}
            with output.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
            print(f"{name}: {number + 1} of {homes}", file=sys.stderr)


def _measure_home(network: Network, number: int) -> dict[str, Any]:
    rng = np.random.default_rng([2, number, len(network.nodes)])
    place = next(network.sample_places(rng))
    home = _sample_home(network, place, rng)
    rides = network.sample_rides(home, rng, max(RIDES))
    variants = dict[str, Any]()
    for variant in VARIANTS:
        try:
            zone = _make_zone(network, home, variant)
        except ConfigurationError:  # too few candidates
            variants[variant] = None
            continue
        streets = ZoneStreets(zone, network.map)
        at = _find_nearest(streets, home)
        removed = [sum(int(zone.contains(*way.T).sum()) for way in ride) * _STEP_KM for ride in rides]
        stretches = _find_stretches(zone, rides)
        results = {}
        for count in RIDES:
            ends = [stretch for ride in stretches[:count] for stretch in ride]
            uses_all = variant == VARIANTS[0]  # the Markov model of a large zone takes seconds
            flat = dict.fromkeys(ADVERSARIES, np.zeros(len(zone.core)))
            likelihoods = [compute_log_likelihoods(zone, end) if uses_all else flat for end in ends]
            posteriors = compute_candidate_posteriors(streets, likelihoods, ends)
            names = (*ADVERSARIES, STREET) if uses_all else (STREET,)
            results[count] = {name: _score_posterior(streets, posteriors[name], at) for name in names}
        variants[variant] = {
            "side_km": zone.square.side_km,
            "kind": streets.candidates.kind,
            "effective_number": streets.candidates.effective_number,
            "prior_near": _score_posterior(streets, streets.candidates.prior, at)["near"],
            "removed_km": float(np.mean(removed)),
            "rides": results,
        }
    return variants


def _score_posterior(streets: ZoneStreets, posterior: FloatArray, at: int) -> dict[str, Any]:
    """Return the probabilities of the best candidate and the best 100 m, and the truth."""
    points = streets.candidates.points
    top = int(posterior.argmax())
    near = np.array([posterior[members].sum() for members in KDTree(points).query_ball_point(points, NEAR_KM)])
    disc = int(near.argmax())
    return {
        "top": float(posterior[top]),
        "is_top": top == at,
        "near": float(near[disc]),
        "is_near": bool(np.hypot(*(points[disc] - points[at])) <= NEAR_KM),
        "log": float(np.log(max(posterior[at], 1e-300))),
    }


# ---- report ----------------------------------------------------------------------------------------------------------


def compute_interval(hits: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of Clopper and Pearson for a share."""
    low = float(beta.ppf(0.025, hits, count - hits + 1)) if hits else 0.0
    return low, float(beta.ppf(0.975, hits + 1, count - hits)) if hits < count else 1.0


def compute_reliability(stated: Sequence[float], hits: Sequence[bool]) -> list[tuple[float, float, float, float]]:
    """Return for each of five bins the mean stated probability, the true share, its interval."""
    order = np.argsort(stated, kind="stable")
    rows = []
    for members in np.array_split(order, _NUM_BINS):
        right = int(np.asarray(hits)[members].sum())
        rows.append(
            (float(np.asarray(stated)[members].mean()), right / len(members), *compute_interval(right, len(members)))
        )
    return rows


def report(output: Path, picture: Path | None) -> None:
    """Print the tables, and plot the reliability.

    Parameters
    ----------
    output
        The file of ``measure``.
    picture
        The picture to write.
    """
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    today = VARIANTS[0]
    groups = {name: [row for row in rows if row["network"] == name] for name in (*KEPT_OUT, *FITTED)}
    for name, members in {**groups, "all": rows}.items():
        print(f"\n{name}: {len(members)} homes")
        for variant in VARIANTS:
            chosen = [row["variants"] for row in members if row["variants"][variant]]
            if not chosen:
                print(f"{variant}: none")
                continue
            loss = np.median([row[variant]["removed_km"] / row[today]["removed_km"] for row in chosen])
            print(f"{variant}: {len(chosen)} homes, loss × {loss:.2f}, prior within 100 m "
                  f"{np.mean([row[variant]['prior_near'] for row in chosen]):.0%}")  # fmt: skip
            for count in map(str, RIDES):
                for adversary in chosen[0][variant]["rides"][count]:
                    scores = [row[variant]["rides"][count][adversary] for row in chosen]
                    print(f"  {count:>2} rides, {adversary:13}: " + ", ".join(
                        f"{what} stated {np.mean([score[what] for score in scores]):.1%} true "
                        f"{np.mean([score[f'is_{what}'] for score in scores]):.1%}" for what in ("top", "near")
                    ) + f", log {np.mean([score['log'] for score in scores]):.2f}")  # fmt: skip
    curves = {}
    for count in map(str, RIDES):
        for what in ("top", "near"):
            scores = [row["variants"][today]["rides"][count][STREET] for row in rows]
            curve = compute_reliability([score[what] for score in scores], [score[f"is_{what}"] for score in scores])
            curves[what, count] = curve
            bins = "; ".join(
                f"{stated:.1%}: {true:.1%} [{low:.1%}, {high:.1%}]{'' if low <= stated <= high else ' MISS'}"
                for stated, true, low, high in curve
            )
            print(f"reliability of {what}, {count} rides: {bins}")
    if picture is not None:
        _plot_reliability(curves, picture)


def _plot_reliability(curves: dict[tuple[str, str], list[tuple[float, float, float, float]]], picture: Path) -> None:
    from dphmm.plots import canvas

    figure, axes = canvas.create_panels(9.6, 4.6, 1, 2)
    for ax, what, title in zip(axes, ("top", "near"), ("most probable home", "100 m around one point"), strict=True):
        for count, colour in zip(map(str, RIDES), (canvas.BLUE, canvas.PURPLE, canvas.ORANGE), strict=True):
            stated, true, low, high = 100 * np.array(curves[what, count]).T
            label = f"{count} ride{'s' if count != '1' else ''}"
            ax.errorbar(stated, true, [true - low, high - true], fmt="o", color=colour, capsize=3, label=label)
        maximum = max(ax.get_xlim()[1], 1.0)
        ax.plot([0, maximum], [0, maximum], color="0.6", lw=1, zorder=0)
        ax.set(xlabel="stated probability, %", ylabel="share that is right, %", xlim=(0, maximum), ylim=(0, None))
        ax.set_title(title, loc="left")
        ax.legend(loc="upper left", fontsize="small")
    canvas.save_picture(figure, picture, True, private=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=("fit", "measure", "report"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--homes", type=int, default=100)
    parser.add_argument("--output", type=Path, default=Path("street_adversary.jsonl"))
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "fit":
        print(json.dumps(fit(options.folder, options.homes)))
    elif options.command == "measure":
        measure(options.folder, options.homes, options.output)
    else:
        report(options.output, options.picture)


if __name__ == "__main__":
    main()
