"""Speed of event odds, and the cost of event caps in time and estimate error.

The plain form of the recursion stores all masses as logarithms in a dense array and sums them state by state. A capped
step chooses its budget by branch and bound over all outputs. It is compared with steps of the same user without a cap
in the same run. Errors are those of the public estimate at every timestep, with or without a release.
"""

from __future__ import annotations

from functools import partial
from statistics import mean, median

import numpy as np
from scipy.sparse import eye_array

from dphmm import MarkovModel, Measurements, PolicyGraph, Releaser
from dphmm.events import Cap, EventOdds, Presence, log_odds
from scripts.benchmarks.report import Report, time_once
from scripts.benchmarks.town import CELL_KM, RADIUS_KM, build_model, make_points, sample_path

EPSILON = 1.0


def run(report: Report, options: object) -> None:  # noqa: ARG001 - every stage has this signature
    for side, length in ((20, 12),) if report.small else ((20, 100), (32, 1000), (100, 1000)):
        moves, rows = build_model(side, side), sample_emissions(side, length)
        event = Presence(select_place(side), length // 2, length - 1)
        literal = {"by logarithms": partial(compute_by_logs, moves, rows, event)} if side == 20 else {}
        odds = partial(log_odds, moves.transition, moves.initial, rows, event)
        report.time(f"log odds, {side * side:,} states, {length:,} releases", odds, literal)
    time_capped_steps(report, 12 if report.small else 32, 6 if report.small else 60)
    report_errors(report, 1 if report.small else 60)
    report_worst_prior(report, 2 if report.small else 6)


def select_place(side: int) -> list[int]:
    """Return four cells in the middle of the town."""
    corner = (side // 2 - 1) * side + side // 2 - 1
    return [corner, corner + 1, corner + side, corner + side + 1]


def sample_emissions(side: int, length: int) -> np.ndarray:
    """Return ``(T, N)`` log likelihoods of a walk under Laplace noise of a kilometre."""
    rng, f = np.random.default_rng(0), make_points(side, side)
    moves = build_model(side, side)
    seen = f[sample_path(moves, length, rng)] + rng.laplace(size=(length, 2))
    return -np.abs(seen[:, np.newaxis] - f).sum(axis=2)


def compute_by_logs(moves: MarkovModel, rows: np.ndarray, event: Presence) -> np.ndarray:
    """Compute the recursion literally, in logarithms over dense arrays."""
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
    odds = []
    for t, row in enumerate(rows):
        if t:
            masses = np.logaddexp.reduce(matrix[np.newaxis] + masses[:, :, np.newaxis], axis=1)
        if event.first <= t <= event.last:
            masses[1, within] = np.logaddexp(masses[1, within], masses[0, within])
            masses[0, within] = -np.inf
        masses = masses + row
        yes = np.logaddexp(np.logaddexp.reduce(masses[1]), np.logaddexp.reduce(masses[0] + to_come[t, 0]))
        odds.append(yes - np.logaddexp.reduce(masses[0] + to_come[t, 1]))
    return np.array(odds)


def make_engine(side: int, *caps: Cap, moves: MarkovModel | None = None) -> Releaser:
    f = Measurements(make_points(side, side))
    policy = PolicyGraph.utility(f, RADIUS_KM)
    return Releaser(moves or build_model(side, side), f, policy, EPSILON, "lattice", rng=7, caps=caps)


def time_capped_steps(report: Report, side: int, length: int) -> None:
    """Medians over one user's steps, capped and not."""
    event = Presence(select_place(side), length // 4, length - 1)
    prior = 1 / (
        1 + np.exp(-EventOdds(build_model(side, side).transition, build_model(side, side).initial, event).prior)
    )
    walk = sample_path(build_model(side, side), length, np.random.default_rng(1))

    def time_steps(releaser: Releaser) -> list[float]:
        releaser.release(walk[0])
        return [time_once(partial(releaser.release, state)) for state in walk[1:]]

    free = time_steps(make_engine(side))
    for share in (0.5, 0.1):
        cap = prior + (1 - prior) * share
        taken = time_steps(make_engine(side, Cap(event, float(cap))))
        name = f"step at {side * side:,} states, probability at most {cap:.2f}, prior {prior:.2f}"
        report.row(name, 1e3 * median(taken), "ms", {"no cap": 1e3 * median(free)})


def report_errors(report: Report, num_users: int) -> None:
    """Report errors and largest posteriors with and without caps on the presence in a place.

    There are 144 cells; users stay in at least seven of ten timesteps. The place has sixteen cells.
    """
    side, length = 12, 40
    walking = build_model(side, side)
    moves = MarkovModel(0.7 * eye_array(walking.size, format="csr") + 0.3 * walking.transition, walking.initial)
    middle = range(side // 2 - 2, side // 2 + 2)
    event, f = Presence([side * y + x for y in middle for x in middle], 6, 26), make_points(side, side)
    rng = np.random.default_rng(3)
    walks = [sample_path(moves, length, rng) for _ in range(num_users)]
    free: dict[str, float] = {}
    for probability in (None, 0.9, 0.7, 0.5):
        caps = () if probability is None else (Cap(event, probability),)
        away = []
        certain = []
        withheld = 0
        for walk in walks:
            releaser = make_engine(side, *caps, moves=moves)
            odds = EventOdds(moves.transition, moves.initial, event)
            for state in walk:
                step = releaser.prepare()
                record = releaser.draw(step, state)
                withheld += record.withheld
                odds.update(releaser.log_likelihood(step, record.released))
                away.append(float(np.hypot(*(np.array(record.estimate) - f[state]))))
                certain.append(1 / (1 + np.exp(-odds.log_odds)))
        name = "no cap" if probability is None else f"probability at most {probability}"
        report.row(f"mean error of the estimate, {name}", mean(away), "km", free)
        free = free or {"no cap": mean(away)}
        report.row("    largest posterior probability", max(certain), "")
        report.row("    withheld timesteps", withheld / len(away), "of all")


def report_worst_prior(report: Report, num_users: int) -> None:
    """Report the change of an event's log odds for the worst prior on two places.

    The policy connects neighbours of 36 cells; the window has eight of eleven timesteps. The change is compared with
    that of an adversary with a uniform prior.
    """
    side, length = 6, 11
    moves = build_model(side, side)
    event = Presence(select_place(side), 2, 9)
    f = Measurements(make_points(side, side))
    policy = PolicyGraph.utility(f, CELL_KM)
    rng = np.random.default_rng(5)
    walks = [sample_path(moves, length, rng) for _ in range(num_users)]
    before = compute_likelihoods_by_start(moves, np.ones((length, moves.size)), event)
    share = 1 / (1 + np.exp(-np.linspace(-12, 12, 49)))[:, np.newaxis, np.newaxis]
    for epsilon in (0.1, 0.3, 1.0):
        worst, even = [], []
        for walk in walks:
            releaser, rows = Releaser(moves, f, policy, epsilon, "lattice", rng=7), []
            for state in walk:
                step = releaser.prepare()
                rows.append(releaser.log_likelihood(step, releaser.draw(step, state).released))
            likelihoods = np.exp(np.array(rows) - np.max(rows, axis=1, keepdims=True))
            seen = compute_likelihoods_by_start(moves, likelihoods, event)
            on_two = [share * logs[:, np.newaxis] + (1 - share) * logs for logs in (*seen, *before)]
            moved = np.log(on_two[0]) - np.log(on_two[1]) - np.log(on_two[2]) + np.log(on_two[3])
            worst.append(float(np.abs(moved).max()))
            ends = [logs.mean() for logs in (*seen, *before)]
            even.append(float(abs(np.log(ends[0] / ends[1]) - np.log(ends[2] / ends[3]))))
        name = f"change of log odds, epsilon {epsilon:g}, worst prior on two places"
        report.row(name, median(worst), "", {"uniform prior": median(even)})


def compute_likelihoods_by_start(
    moves: MarkovModel, likelihoods: np.ndarray, event: Presence
) -> tuple[np.ndarray, np.ndarray]:
    """Return likelihoods of releases with and without the event for each start, ``(N,)``."""
    within = np.isin(np.arange(moves.size), event.states)
    none = any_ = np.ones(moves.size)
    for t in range(len(likelihoods) - 1, -1, -1):
        if t < len(likelihoods) - 1:
            none, any_ = moves.transition @ none, moves.transition @ any_
        none, any_ = none * likelihoods[t], any_ * likelihoods[t]
        if event.first <= t <= event.last:
            none = np.where(within, 0.0, none)
    return any_ - none, none
