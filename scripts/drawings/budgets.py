"""Error of the estimate by what was spent, with schedules and without, in the synthetic city; picture and table.

The city of `dphmm demo`: cells of 250 m, steps of five minutes, the model learned from 22 people, utility:1km, exact
noise; one other person, five days (1,363 moments). Means over several runs of the noise. *Constant*: something is drawn
at every moment. *Gaussian guess*: a draw when the root mean square error of the prediction passes a target, with the
epsilon, at most 1, that would bring a Gaussian back to it. *Target* and *budget a day*: `dphmm.Schedule`, at most 1
or 4 a release.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from dphmm import MarkovModel, Releaser, ReleaseSettings, Schedule
from dphmm.arrays import IntArray
from dphmm.cli.demo import CELL_KM, DAYS, PEOPLE, RELEASED, STEP_SECONDS
from dphmm.model.moves import state_sequences
from dphmm.readers.synthetic_city import build_city, synthetic_trajectories
from dphmm.space.grid import Grid
from scripts.drawings.sheet import finish, panels, save, write

DATA: tuple[str, ...] = ()
RUNS = 5
SMOOTHING = 0.5
CONSTANT = (1.0, 0.3, 0.1)
GUESSED = (0.6, 0.9, 1.2)
TARGETS = (0.5, 0.7, 0.9, 1.2, 1.5)
DAILY = (5.0, 12.0, 24.0, 48.0, 96.0)


def draw(options: argparse.Namespace) -> None:
    model, steps, states = town(1 if options.small else DAYS)
    if options.small:
        steps, states = steps[:40], states[:40]
    few = slice(1) if options.small else slice(None)
    rules: dict[str, list[tuple[str, ReleaseSettings, float | None]]] = {
        "constant": [(f"{e:g}", settings(e), None) for e in CONSTANT[few]],
        "Gaussian guess": [(f"{t:g} km", settings(1.0), t) for t in GUESSED[few]],
    }
    for most in (1.0, 4.0)[few]:
        rules[f"target, at most {most:g} a release"] = [
            (f"{t:g} km", settings(most, Schedule(t)), None) for t in TARGETS[few]
        ]
        rules[f"budget a day, at most {most:g} a release"] = [
            (f"{b:g} a day", settings(most, Schedule(window_epsilon=b)), None) for b in DAILY[few]
        ]
    figure, (ax,) = panels(1, 7.0)
    rows = []
    for name, points in rules.items():
        found = []
        for label, how, guess in points:
            runs = np.array([walked(how, model, steps, states, options.seed + k, guess) for k in range(options.runs)])
            spent, error = runs.mean(axis=0)
            found.append((spent, error))
            rows.append(
                [name, label, round(float(spent), 1), round(float(error), 3), round(float(runs[:, 1].std()), 3)]
            )
            print(*rows[-1], flush=True)
        ax.plot(*zip(*sorted(found), strict=True), "o-", ms=4, label=name)
    x, y = "sum of all budgets over five days", "mean error of the estimate, km"
    finish(ax, x, y, "One person, five days: spent evenly, and where it tells most", xscale="log")
    save(figure, options.folder / "budgets.png")
    write(options.folder / "budgets.csv", ["rule", "setting", "spent", "error_km", "deviation_km"], rows)


def settings(epsilon: float, schedule: Schedule | None = None) -> ReleaseSettings:
    return ReleaseSettings(policy="utility:1km", epsilon=epsilon, schedule=schedule)


def town(days: int) -> tuple[MarkovModel, IntArray, IntArray]:
    """The model, and the steps between one person's moments with the states at them."""
    city = build_city()
    people = synthetic_trajectories(PEOPLE, days, STEP_SECONDS / 60, city=city)
    space = Grid.over(city.box, CELL_KM)
    others = [one for one in people if one.user not in RELEASED]
    sequences = state_sequences(others, space, STEP_SECONDS, None)
    model = MarkovModel.fit(sequences, space.size, SMOOTHING, states=space, step_seconds=float(STEP_SECONDS))
    (one,) = (person.resample(float(STEP_SECONDS)) for person in people if person.user == RELEASED[0])
    return model, np.diff(one.slots, prepend=one.slots[0] - 1), space.locate(one.latitude, one.longitude)


def walked(
    how: ReleaseSettings, model: MarkovModel, steps: IntArray, states: IntArray, seed: int, guess: float | None
) -> tuple[float, float]:
    """What one run spends, and the mean distance of its estimates from the person's places."""
    engine = how.engine(model, seed)
    points, spent, away = engine.measurements.points, 0.0, []
    choose = (lambda _: None) if guess is None else gaussian(engine, guess)
    for step, state in zip(steps.tolist(), states.tolist(), strict=True):
        prior = engine.prior(step)
        epsilon = choose(prior.probabilities)
        if epsilon == 0.0:
            engine.resume(prior, 1)
            estimate = prior.mean(points)
        else:
            record = engine.release(state, epsilon, step)
            spent, estimate = spent + record.epsilon, np.array(record.estimate)
        away.append(float(np.hypot(*(estimate - points[state]))))
    return spent, float(np.mean(away))


def gaussian(engine: Releaser, target: float) -> Callable[[np.ndarray], float]:
    """The plain rule: the epsilon, at most 1, that would bring a Gaussian belief back to its error; or 0."""
    plan = engine.plan(engine.prior())
    noise = engine.noise(plan, 1.0).expected_error(engine.prior())
    points = engine.measurements.points

    def choose(probabilities: np.ndarray) -> float:
        off = points - probabilities @ points
        variance = float(probabilities @ np.einsum("nd,nd->n", off, off))
        if variance <= target**2:
            return 0.0
        return min(1.0, round(noise * float(np.sqrt(1 / target**2 - 1 / variance)), 6) or 1e-6)

    return choose
