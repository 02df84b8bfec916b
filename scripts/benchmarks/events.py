"""What releases tell of an event, how fast; what a cap on it costs, in time and in the error of the estimate.

The plain form of the recursion holds all masses as logarithms in a dense array and sums them state by state. A capped
step chooses its budget by branch and bound over all outputs; it stands beside the same steps without a cap, of the same
person in the same run. The errors are those of the best public estimate at every moment, with or without a release.
"""

from __future__ import annotations

from functools import partial
from statistics import mean, median

import numpy as np

from dphmm import MarkovModel, Measurements, PolicyGraph, Releaser
from dphmm.events import Cap, EventOdds, Presence, log_odds
from scripts.benchmarks.report import Report, once
from scripts.benchmarks.town import RADIUS_KM, model, path, points

EPSILON = 1.0


def run(report: Report, options: object) -> None:  # noqa: ARG001 - as every stage
    for side, length in ((20, 100),) if report.small else ((20, 100), (32, 1000), (100, 1000)):
        moves, rows = model(side, side), emissions(side, length)
        event = Presence(place(side), length // 2, length - 1)
        literal = {"by logarithms": partial(by_logs, moves, rows, event)} if side == 20 else {}
        told = partial(log_odds, moves.transition, moves.initial, rows, event)
        report.time(f"log odds, {side * side:,} states, {length:,} releases", told, literal)
    capped_steps(report, 12 if report.small else 32, 6 if report.small else 60)
    errors(report, 2 if report.small else 60)


def place(side: int) -> list[int]:
    """Four cells in the middle of the town."""
    corner = (side // 2 - 1) * side + side // 2 - 1
    return [corner, corner + 1, corner + side, corner + side + 1]


def emissions(side: int, length: int) -> np.ndarray:
    """``(T, N)`` log likelihoods of somebody's walk under Laplace noise of a kilometre."""
    rng, f = np.random.default_rng(0), points(side, side)
    moves = model(side, side)
    seen = f[path(moves, length, rng)] + rng.laplace(size=(length, 2))
    return -np.abs(seen[:, np.newaxis] - f).sum(axis=2)


def by_logs(moves: MarkovModel, rows: np.ndarray, event: Presence) -> np.ndarray:
    """The recursion as it is written, in logarithms over dense arrays."""
    with np.errstate(divide="ignore"):
        matrix, masses = np.log(moves.transition.toarray()), np.full((2, moves.size), -np.inf)
        masses[0] = np.log(moves.initial)
    within = np.isin(np.arange(moves.size), event.states)
    to_come = np.zeros((len(rows), 2, moves.size))
    to_come[event.last :] = [[[-np.inf], [0.0]]]
    for t in range(event.last - 1, -1, -1):
        ahead = to_come[t + 1].copy()
        if event.first <= t + 1:
            ahead[:, within] = [[0.0], [-np.inf]]
        to_come[t] = np.logaddexp.reduce(matrix + ahead[:, np.newaxis, :], axis=2)
    found = []
    for t, row in enumerate(rows):
        if t:
            masses = np.logaddexp.reduce(matrix[np.newaxis] + masses[:, :, np.newaxis], axis=1)
        if event.first <= t <= event.last:
            masses[1, within] = np.logaddexp(masses[1, within], masses[0, within])
            masses[0, within] = -np.inf
        masses = masses + row
        yes = np.logaddexp(np.logaddexp.reduce(masses[1]), np.logaddexp.reduce(masses[0] + to_come[t, 0]))
        found.append(yes - np.logaddexp.reduce(masses[0] + to_come[t, 1]))
    return np.array(found)


def engine(side: int, *caps: Cap) -> Releaser:
    f = Measurements(points(side, side))
    return Releaser(model(side, side), f, PolicyGraph.utility(f, RADIUS_KM), EPSILON, "lattice", rng=7, caps=caps)


def capped_steps(report: Report, side: int, length: int) -> None:
    """Medians over one person's steps, capped and not."""
    event = Presence(place(side), length // 4, length - 1)
    prior = 1 / (1 + np.exp(-EventOdds(model(side, side).transition, model(side, side).initial, event).prior))
    walk = path(model(side, side), length, np.random.default_rng(1))

    def steps(releaser: Releaser) -> list[float]:
        releaser.release(walk[0])
        return [once(partial(releaser.release, state)) for state in walk[1:]]

    free = steps(engine(side))
    for share in (0.5, 0.1):
        cap = prior + (1 - prior) * share
        taken = steps(engine(side, Cap(event, float(cap))))
        name = f"step at {side * side:,} states, never surer than {cap:.2f} of a prior of {prior:.2f}"
        report.row(name, 1e3 * median(taken), "ms", {"no cap": 1e3 * median(free)})


def errors(report: Report, people: int) -> None:
    """144 cells, a window of eleven steps, people who begin anywhere; half of them go by the place."""
    side, length = 12, 25
    event = Presence(place(side), 6, 16)
    moves, f = model(side, side), points(side, side)
    rng = np.random.default_rng(3)
    walks = [path(moves, length, rng) for _ in range(people)]
    for probability in (None, 0.9, 0.7, 0.5):
        caps = () if probability is None else (Cap(event, probability),)
        away, certain, withheld = [], [], 0
        for walk in walks:
            releaser = engine(side, *caps)
            odds = EventOdds(moves.transition, moves.initial, event)
            for state in walk:
                step = releaser.prepare()
                record = releaser.draw(step, state)
                withheld += record.withheld
                odds.update(releaser.log_likelihood(step, record.released))
                away.append(float(np.hypot(*(np.array(record.estimate) - f[state]))))
                certain.append(1 / (1 + np.exp(-odds.log_odds)))
        name = "no cap" if probability is None else f"never surer than {probability}"
        report.row(f"mean error of the estimate, {name}", mean(away), "km")
        report.row("    the surest that anybody got", max(certain), "")
        report.row("    moments withheld", withheld / len(away), "of all")
