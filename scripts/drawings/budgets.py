"""Error of the estimate by epsilon spent, with and without schedules, in a synthetic city.

The city is that of `dphmm demo`: cells of 250 m, steps of five minutes, a model of 22 users, utility:1km, exact noise.
One other user is released for five days (1,363 timesteps). Results are means over several runs of the noise.
*Constant* releases at every timestep. *Gaussian rule* releases when the root mean square error of the prediction
exceeds a target, with the epsilon, at most 1, that would bring a Gaussian belief back to it. *Target* and *daily
budget* use `dphmm.Schedule`, with at most 1 or 4 per release.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from dphmm import MarkovModel, Releaser, ReleaseSettings, Schedule
from dphmm.arrays import IntArray
from dphmm.cli.demo import CELL_KM, NUM_DAYS, NUM_USERS, RELEASED_USERS, STEP_SECONDS
from dphmm.model.observed_moves import state_sequences
from dphmm.readers.synthetic_city import build_city, sample_synthetic_trajectories
from dphmm.space.grid import Grid
from scripts.drawings.sheet import create_panels, finish, save, write

DATA: tuple[str, ...] = ()
RUNS = 5
SMOOTHING = 0.5
CONSTANT = (1.0, 0.3, 0.1)
GUESSED = (0.6, 0.9, 1.2)
TARGETS = (0.5, 0.7, 0.9, 1.2, 1.5)
DAILY = (5.0, 12.0, 24.0, 48.0, 96.0)


def draw(options: argparse.Namespace) -> None:
    model, steps, states = build_town(1 if options.small else NUM_DAYS)
    if options.small:
        steps, states = steps[:40], states[:40]
    few = slice(1) if options.small else slice(None)
    rules: dict[str, list[tuple[str, ReleaseSettings, float | None]]] = {
        "constant": [(f"{e:g}", make_settings(e), None) for e in CONSTANT[few]],
        "Gaussian rule": [(f"{t:g} km", make_settings(1.0), t) for t in GUESSED[few]],
    }
    for maximum in (1.0, 4.0)[few]:
        rules[f"target, at most {maximum:g} per release"] = [
            (f"{t:g} km", make_settings(maximum, Schedule(t)), None) for t in TARGETS[few]
        ]
        rules[f"daily budget, at most {maximum:g} per release"] = [
            (f"{b:g} per day", make_settings(maximum, Schedule(window_epsilon=b)), None) for b in DAILY[few]
        ]
    figure, (ax,) = create_panels(1, 7.0)
    rows = []
    for name, points in rules.items():
        pairs = []
        for label, how, guess in points:
            runs = np.array(
                [run_schedule(how, model, steps, states, options.seed + k, guess) for k in range(options.runs)]
            )
            spent, error = runs.mean(axis=0)
            pairs.append((spent, error))
            rows.append(
                [name, label, round(float(spent), 1), round(float(error), 3), round(float(runs[:, 1].std()), 3)]
            )
            print(*rows[-1], flush=True)
        ax.plot(*zip(*sorted(pairs), strict=True), "o-", ms=4, label=name)
    x, y = "total epsilon of five days", "mean error of the estimate (km)"
    finish(ax, x, y, "One user, five days: constant budgets and schedules", xscale="log")
    save(figure, options.folder / "budgets.png")
    write(options.folder / "budgets.csv", ["rule", "setting", "spent", "error_km", "deviation_km"], rows)


def make_settings(epsilon: float, schedule: Schedule | None = None) -> ReleaseSettings:
    return ReleaseSettings(policy="utility:1km", epsilon=epsilon, schedule=schedule)


def build_town(days: int) -> tuple[MarkovModel, IntArray, IntArray]:
    """Return the model, and the released user's steps between timesteps with their states."""
    city = build_city()
    trajectories = sample_synthetic_trajectories(NUM_USERS, days, STEP_SECONDS / 60, city=city)
    space = Grid.over(city.box, CELL_KM)
    others = [trajectory for trajectory in trajectories if trajectory.user not in RELEASED_USERS]
    sequences = state_sequences(others, space, STEP_SECONDS, None)
    model = MarkovModel.fit(sequences, space.size, SMOOTHING, states=space, step_seconds=float(STEP_SECONDS))
    (track,) = (
        trajectory.resample(float(STEP_SECONDS)) for trajectory in trajectories if trajectory.user == RELEASED_USERS[0]
    )
    return model, np.diff(track.slots, prepend=track.slots[0] - 1), space.locate(track.latitude, track.longitude)


def run_schedule(
    how: ReleaseSettings, model: MarkovModel, steps: IntArray, states: IntArray, seed: int, guess: float | None
) -> tuple[float, float]:
    """Return the epsilon spent by one run, and the mean error of its estimates."""
    engine = how.engine(model, seed)
    points = engine.measurements.points
    spent = 0.0
    away = []
    choose = (lambda _: None) if guess is None else make_gaussian_rule(engine, guess)
    for step, state in zip(steps.tolist(), states.tolist(), strict=True):
        prior = engine.predict(step)
        epsilon = choose(prior.probabilities)
        if epsilon == 0.0:
            engine.resume(prior, 1)
            estimate = prior.mean(points)
        else:
            record = engine.release(state, epsilon, step)
            spent, estimate = spent + record.epsilon, np.array(record.estimate)
        away.append(float(np.hypot(*(estimate - points[state]))))
    return spent, float(np.mean(away))


def make_gaussian_rule(engine: Releaser, target: float) -> Callable[[np.ndarray], float]:
    """Return the rule: epsilon, at most 1, to bring a Gaussian belief to the target, or 0."""
    plan = engine.build_plan(engine.predict(), 1.0)
    noise = plan.noise.expected_error(plan.prior)
    points = engine.measurements.points

    def choose(probabilities: np.ndarray) -> float:
        off = points - probabilities @ points
        variance = float(probabilities @ np.einsum("nd,nd->n", off, off))
        if variance <= target**2:
            return 0.0
        return min(1.0, round(noise * float(np.sqrt(1 / target**2 - 1 / variance)), 6) or 1e-6)

    return choose
