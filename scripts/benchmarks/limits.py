"""Stages compared with lower bounds of their work or other libraries, in the same run.

A lower bound is the unavoidable work: one sparse product and one pass over the numbers for a step of a belief, one
dense product per observation of a filter, random words for samples. Other libraries are hmmlearn and dynamax.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np
from scipy.sparse import csr_array

from dphmm import (
    LatticeKNormMechanism,
    MarkovModel,
    Measurements,
    PolicyGraph,
    Releaser,
    ReleaseSettings,
    SensitivityHull,
)
from dphmm.jobs import Data, audit_session, learn, region, release, synthesize
from dphmm.model import (
    Belief,
    Observations,
    filter_releases,
    find_release_path,
    learn_from_releases,
    smooth_releases,
)
from dphmm.model.multi_step import build_homogeneous_gap
from dphmm.model.time_classes import ClassScheme
from dphmm.space import Streets
from scripts.benchmarks.lattice import HULLS
from scripts.benchmarks.peers import NAMES as PEERS
from scripts.benchmarks.peers import build_works as peers_of
from scripts.benchmarks.report import Report, time_median, time_once
from scripts.benchmarks.town import RADIUS_KM, build_model, forget, make_points, make_releaser, sample_path

ROOT = Path(__file__).parents[2]
# Models of gaps: time classes, step in seconds, and cell size in kilometres.
_GAPS: tuple[tuple[ClassScheme | None, float, float], ...] = (
    ("hour", 300.0, 0.27),
    ("weekday-hour", 3600.0, 0.5),
    (None, 3600.0, 0.2),
)
# Number of steps after which all loops are compiled. With over 100,000 states, the important ones are sooner.
_WARM_AFTER = 2_500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--largest", type=int, default=1_000_000, metavar="STATES", help="default: 1000000")


def run(report: Report, options: argparse.Namespace) -> None:
    largest = 1_024 if report.small else options.largest
    for side in (32, 100, 316, 1000):
        if side * side <= largest:
            time_spread_masses(report, side)
    for side in (32,) if report.small else (32, 100):
        for policy in ("utility", "transition", "complete"):
            time_changing_sets(report, side, policy)
    time_delta_location_set(report, 32 if report.small else 316)
    time_streets(report, 10 if report.small else 99)
    time_draws(report, 10_000 if report.small else 1_000_000)
    for size in (40,) if report.small else (100, 400, 1000):
        time_dense_inference(report, size, 50 if report.small else 1000)
    time_gap(report, 20 if report.small else 128, 100 if report.small else 1440)
    time_sparse_filter(report, 20 if report.small else 100, 50 if report.small else 1000)
    measure_users(report, 1 if report.small else 17)
    for by, step, cell in _GAPS:
        time_yearly_gap(report, by, step, cell)
    time_nights(report)


def time_spread_masses(report: Report, side: int) -> None:
    """Time a warm step with masses thousands of nats apart, as after many releases."""
    engine, state = make_releaser(side, "utility", "lattice"), side * side // 2
    far = make_points(side, side)
    away = np.hypot(*(far - far[state]).T)
    belief = Belief.from_probabilities(np.full(side * side, 1 / side**2)).update(-(4000 / away.max()) * away)
    engine.resume(belief, 1)
    for _ in range(1 if report.small else _choose_warm_up(side * side)):
        engine.release(state)
    count = 5 if report.small else max(15, 600_000 // side**2)
    taken = [time_once(partial(engine.release, state)) for _ in range(count)]
    forwards, values = engine.model.transition.tocsc().T, np.random.default_rng(0).random(side * side)

    def multiply_once() -> None:
        np.exp(forwards @ values)

    beside = {"a sparse product and a pass": 1e3 * time_median(multiply_once, 15)}
    report.row(f"warm step, {side * side:,} states, masses e^4000 apart", 1e3 * median(taken), "ms", beside)


def time_changing_sets(report: Report, side: int, policy: str) -> None:
    """Time steps with changing constraint sets, with and without cached hulls."""
    for mechanism in ("lattice", "k-norm"):
        size, f = side * side, Measurements(make_points(side, side))
        rng = np.random.default_rng(1)
        taken = []
        anew = []
        engine = make_releaser(side, policy, mechanism)
        warm = 0 if report.small else _choose_warm_up(size)
        for k in range(20 if report.small else warm + 120):
            near = np.hypot(*(f.points - f.points[rng.integers(size)]).T) < 0.4 * f.points.max()
            engine.resume(Belief.from_probabilities(near / near.sum()), 1)
            if k % 2:
                forget(engine, engine.soundness)
            (anew if k % 2 else taken).append(time_once(partial(engine.release, int(np.flatnonzero(near)[0]))))
        values = -rng.random(size)
        floor = 1e3 * time_median(partial(np.exp, values), 15)
        beside = {"without cached hulls": 1e3 * median(anew[4 + warm // 2 :]), "a pass over the states": floor}
        name = f"step with new constraints, {size:,} states, {policy}, {mechanism}"
        report.row(name, 1e3 * median(taken[4 + warm // 2 :]), "ms", beside)


def _choose_warm_up(size: int) -> int:
    """Return the number of warm-up steps after which the relevant loops are compiled."""
    return _WARM_AFTER if size <= 100_000 else 20


def time_delta_location_set(report: Report, side: int) -> None:
    """Time a warm step with a changing delta-location set, and without delta."""
    f = Measurements(make_points(side, side))
    moves = build_model(side, side)
    state = side * side // 2
    taken = {}
    for delta in (0.01, None):
        policy = PolicyGraph.utility(f, RADIUS_KM)
        engine = Releaser(moves, f, policy, 1.0, "lattice", delta=delta, rng=3)
        for _ in range(1 if side < 100 else _choose_warm_up(side * side)):
            engine.release(state)
        taken[delta] = 1e3 * median(time_once(partial(engine.release, state)) for _ in range(12))
    report.row(f"step with delta = 0.01, {side * side:,} states", taken[0.01], "ms", {"without": taken[None]})


def time_streets(report: Report, side: int) -> None:
    """Time releases along streets with and without delta, and the policy's setup."""
    rng = np.random.default_rng(4)
    at = 450_000_000 + 9_000 * np.stack(np.meshgrid(*2 * [np.arange(side)]), axis=-1)
    # Junctions are moved by up to 20 m: a raster, which is faster, does not fit these streets.
    at += rng.integers(-2_000, 2_001, at.shape)
    ends = [np.stack(pair, axis=-2).reshape(-1, 2) for pair in ((at[1:], at[:-1]), (at[:, 1:], at[:, :-1]))]
    vertices = np.concatenate(ends)
    streets = Streets(vertices, np.full(len(vertices) // 2, 2))
    first, second, lengths = (np.concatenate(parts) for parts in zip(*streets.iterate_pairs_within(0.75), strict=True))
    weights = np.exp(-2 * lengths)
    weights /= np.bincount(first, weights)[first]
    start = np.full(streets.size, 1 / streets.size)
    moves = MarkovModel(csr_array((weights, (first, second)), shape=2 * (streets.size,)), start, states=streets)
    states = sample_path(moves, 5 if report.small else 80, rng)
    taken = {}
    for delta in (0.01, None):
        settings = ReleaseSettings("streets:300m", epsilon=1.0, delta=delta)
        setup = time_once(lambda settings=settings: settings.build_graph(moves), process_time)
        engine = settings.engine(moves, 3)
        # The first releases compile loops and build trees.
        times = [time_once(partial(engine.release, state), process_time) for state in states]
        taken[delta] = 1e3 * median(times[len(times) // 3 :])
    what = f"release along a drive, {streets.size:,} segments, {moves.transition.nnz:,} moves"
    report.row(what, taken[None], "ms", {"with delta = 0.01": taken[0.01]})
    report.row(f"policy along streets, {streets.size:,} segments", 1e3 * setup, "ms")


def time_draws(report: Report, count: int) -> None:
    """Time exact samples and the same number of random words."""
    words = partial(os.urandom, 8 * count)
    for name, epsilon in (("340 m grid cells", 1.0), ("1 km, coprime vertices", 5.0), ("1 km, coprime vertices", 20.0)):
        mechanism = LatticeKNormMechanism(SensitivityHull(HULLS[name]), epsilon)
        draw = partial(mechanism.sample, [0, 0], size=count)
        report.rate(f"exact draws, {name}, epsilon {epsilon:g}", draw, count, "draws", {"random words": (words, count)})


def time_dense_inference(report: Report, size: int, length: int) -> None:
    """Time inference over a full matrix, and one iteration of learning it from releases."""
    rng = np.random.default_rng(size)
    matrix, start = rng.dirichlet(np.ones(size), size), np.full(size, 1 / size)
    moves, rows = MarkovModel(matrix, start), rng.normal(0, 3, (length, size))
    observed, likelihood = Observations(rows), np.exp(rows - rows.max(axis=1, keepdims=True))

    def multiply_all() -> None:
        values = start
        for row in likelihood:
            values = (values @ matrix) * row
            values /= values.sum()

    peers = {name: peers_of(name, start, matrix, rows) for name in PEERS}
    for name, peer in peers.items():
        if peer is None:
            report.skip(f"{name} at {size} states", "not installed")
    calls = {
        "filter": partial(filter_releases, moves, observed),
        "smoother": lambda: smooth_releases(moves, observed, filter_releases(moves, observed), ()),
        "path": partial(find_release_path, moves, observed),
        "learning": partial(learn_from_releases, moves, [observed], 1),
    }
    for work, call in calls.items():
        beside = {name: peer[work] for name, peer in peers.items() if peer is not None}
        if work == "filter":
            beside["a dense product each"] = multiply_all
        report.time(f"{work}, full matrix of {size:,} states, {length:,} releases", call, beside)


def time_gap(report: Report, side: int, steps: int) -> None:
    """Time the prediction over a gap after a release: by default a day of one-minute steps."""
    moves = build_model(side, side)
    far = make_points(side, side)
    away = np.hypot(*(far - far[len(far) // 2]).T)
    belief = Belief.from_probabilities(moves.initial).predict(moves).update(-away)
    forwards = moves.transition.tocsc().T.tocsr()

    def multiply_all() -> None:
        values = moves.initial
        for _ in range(steps):
            values = forwards @ values

    beside = {"one sparse product per step": multiply_all}
    report.time(f"gap of {steps:,} steps, {moves.size:,} states", partial(belief.predict, moves, steps), beside)


def time_sparse_filter(report: Report, side: int, length: int) -> None:
    """Time the filter over a town."""
    moves, rng = build_model(side, side), np.random.default_rng(2)
    rows = rng.normal(0, 3, (length, moves.size))
    likelihood, forwards = np.exp(rows - rows.max(axis=1, keepdims=True)), moves.transition.tocsc().T

    def multiply_all() -> None:
        values = moves.initial
        for row in likelihood:
            values = (forwards @ values) * row
            values /= values.sum()

    call, beside = partial(filter_releases, moves, Observations(rows)), {"a sparse product each": multiply_all}
    report.time(f"filter, {moves.size:,} states of a town, {length:,} releases", call, beside)


def measure_users(report: Report, days: int) -> None:
    """Time the jobs on the days of one user, in milliseconds per release."""
    with tempfile.TemporaryDirectory() as here:
        folder = Path(here)
        space = region(bbox=(44.95, -30.06, 45.05, -29.94), cell_km=1.0 if report.small else 0.27)
        moves = learn(ROOT / "data" / "sample" / "geolife", space, 300).model
        synthesize(moves, folder / "user.csv", 1, days, rng=3)
        town, written = Data((str(folder / "user.csv"),)), folder / "released.csv"
        taken = time_once(lambda: release(town, moves, ReleaseSettings("utility:1km"), output=written))
        count = written.read_bytes().count(b"\n") - 1
        whole = f"{count:,} releases, {moves.size:,} states, {moves.transition.nnz / moves.size**2:.0%} full"
        forwards = moves.transition.toarray().T.copy()
        floor = time_median(lambda: forwards @ moves.initial, 50)
        beside = {"a dense product": 1e3 * floor}
        report.row(f"release job, {whole}", 1e3 * taken / count, "ms", beside)
        taken = time_once(lambda: audit_session(written, moves, "utility:1km"))
        report.row(f"audit of the session, {whole}", 1e3 * taken / count, "ms", beside)


def time_yearly_gap(report: Report, by: ClassScheme | None, step: float, cell: float) -> None:
    """Time a year without a release: the first one, with its preparation, and later ones."""
    step, cell = (3600.0, 1.0) if report.small else (step, cell)
    space = region(bbox=(44.95, -30.06, 45.05, -29.94), cell_km=cell)
    varying = {"time_classes": by, "zone": "UTC"} if by else {}
    moves = learn(ROOT / "data" / "sample" / "geolife", space, step, **varying).model
    day = int(86_400 // step)
    year = int(365 * 86_400 // step)
    slot = 470_003 * int(3600 // step)
    belief = Belief.initial(moves, slot)
    what = f"a year without a release, {moves.size:,} states" + (f" by {by}" if by else "")
    what += f", {step:g} s"
    report.row(f"{what}, the first", time_once(partial(belief.predict, moves, year, slot), process_time), "s")
    steps = [partial(belief.predict, moves, 1, slot + k) for k in range(day)]
    beside = {"the steps of a day separately": sum(time_once(step, process_time) for step in steps)}
    if by is None:
        walked = build_homogeneous_gap(moves.one_step_operators[0], year)
        beside["without powers, until it is steady"] = time_once(
            partial(walked.propagate_forward, belief.chain_logs), process_time
        )
    taken = time_median(partial(belief.predict, moves, year, slot), 1 if report.small else 3, process_time)
    report.row(f"{what}, later ones", taken, "s", beside)


def time_nights(report: Report) -> None:
    """Time a year of twelve-hour gaps under a full transition matrix."""
    space = region(bbox=(44.95, -30.06, 45.05, -29.94), cell_km=1.0 if report.small else 0.27)
    moves = learn(ROOT / "data" / "sample" / "geolife", space, 3600.0).model
    belief = Belief.initial(moves)
    hours = 12
    count = 10 if report.small else 365

    def walk_hours() -> None:
        now = belief
        for _ in range(hours):
            now = now.predict(moves)

    whole = time_once(lambda: [belief.predict(moves, hours) for _ in range(count)], process_time)
    what = f"{count} gaps of {hours} steps, {moves.size:,} states, {moves.transition.nnz / moves.size**2:.0%} full"
    report.row(what, whole, "s", {"their steps separately": count * time_median(walk_hours, 5, process_time)})
