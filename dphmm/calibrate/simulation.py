"""Simulated users that follow a model: errors and posteriors of their releases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import chain, count, islice, repeat
from math import gcd, inf, nan, sqrt
from typing import Annotated, Any

import numpy as np
from scipy.sparse import csr_array, issparse
from scipy.special import betaincinv, expit, stdtrit

from dphmm.arrays import FloatArray, IntArray, as_floats
from dphmm.audit.empirical_epsilon import CONFIDENCE
from dphmm.audit.inference_metrics import compute_inference_metrics, predict_without_releases
from dphmm.errors import EventError, InvalidInputError
from dphmm.events import Event, EventOdds
from dphmm.events.automaton import Automaton
from dphmm.events.chain_start import make_chain
from dphmm.formatting import exported
from dphmm.mechanisms.registry import TABLE_MECHANISMS
from dphmm.model import Belief, MarkovModel, Observations, filter_releases, sample_paths, smooth_releases
from dphmm.model.forward_backward import Filtering
from dphmm.model.point_estimate import Inference, expected_distance
from dphmm.model.stationary_distribution import compute_stationary_distribution
from dphmm.model.time_classes import HOURS_PER_WEEK
from dphmm.random import derive_seed
from dphmm.release import Releaser, StepPlan
from dphmm.release.step_noise import StepNoise
from dphmm.space.trajectory import round_to_microseconds
from dphmm.validation import Integers, NoiseEpsilon, PositiveInt, SeedOrGenerator, check_arguments

# Approximate number of output–state pairs with densities computed at a time.
_BLOCK_PAIRS = 1 << 20


class PathReleaser:
    """Releases of simulated users at one budget, one release per timestep.

    Noise with unbounded support excludes no state, so the possible states and the noise of each step follow from the
    model alone. The releases of a path are then sampled together. Otherwise the engine releases them one by one.

    Parameters
    ----------
    engine
        The engine.
    epsilon
        The budget.
    steps
        Number of releases of each user.
    first
        Time slot of the first release, counted from 1970.
    """

    def __init__(self, engine: Releaser, epsilon: float, steps: int, first: int) -> None:
        self.engine = engine
        self.epsilon = epsilon
        self.steps = steps
        self.first = first
        self._plans = _build_public_plans(engine, steps, first)

    @property
    def is_sequential(self) -> bool:
        """Whether the engine releases timestep by timestep."""
        return self._plans is None

    def release(self, path: IntArray, rng: np.random.Generator) -> tuple[FloatArray, float, float, float]:
        """Release a path ``(steps,)``.

        Returns
        -------
        rows
            ``(steps, N)``: log densities in every state, all 0 if the timestep is withheld.
        spent, withheld
            The sum of the budgets, and the share of withheld timesteps.
        error
            The root mean square error of the releases, NaN if all timesteps are withheld.
        """
        rows = None if self._plans is None else self._release_vectorized(self._plans, path, rng)
        if rows is not None:
            return rows, self.epsilon * self.steps, 0.0, self._compute_rms_error(rows)
        engine = self.engine.spawn(rng)
        rows = np.empty((self.steps, self.engine.model.size))
        spent = 0.0
        withheld = 0
        squares = []
        engine.restart(self.first)
        for at, state in enumerate(path.tolist()):
            step = engine.prepare(self.epsilon)
            record = engine.draw(step, state)
            rows[at] = engine.log_likelihood(step, record.released)
            spent = spent + record.epsilon
            withheld = withheld + record.withheld
            if not record.withheld:
                squares.append(record.expected_error**2)
        return rows, spent, withheld / self.steps, float(np.mean(squares)) ** 0.5 if squares else nan

    @cached_property
    def _noises(self) -> list[StepNoise]:
        """The noise of each plan."""
        assert self._plans is not None, "plans are public"
        return [self.engine.planner.build_noise(plan, self.epsilon) for _, plan in self._plans]

    def _compute_rms_error(self, rows: FloatArray) -> float:
        """Compute the root mean square error of releases with plans that depend on no output."""
        assert self._plans is not None, "plans are public"
        counts = np.diff([*(start for start, _ in self._plans), self.steps])
        model = self.engine.model
        belief = Belief.initial(model, self.first)
        if all(len(noise.parts) == 1 for noise in self._noises):
            return sqrt(float(counts @ [noise.expected_error(belief) ** 2 for noise in self._noises]) / self.steps)
        # The error differs between parts, and earlier releases reveal which part the state belongs to.
        total = 0.0
        for at, noise in enumerate(chain.from_iterable(map(repeat, self._noises, counts.tolist()))):
            total += noise.expected_error(belief) ** 2
            belief = belief.update(rows[at]).predict(model, 1, self.first + at)
        return sqrt(total / self.steps)

    def _release_vectorized(
        self, plans: list[tuple[int, StepPlan]], path: IntArray, rng: np.random.Generator
    ) -> FloatArray | None:
        """Sample all releases of a path. None if an output excludes a possible state."""
        size = self.engine.model.size
        rows = np.full((self.steps, size), -np.inf)
        block = max(1, _BLOCK_PAIRS // size)
        ends = [start for start, _ in plans[1:]] + [self.steps]
        for (start, plan), noise, end in zip(plans, self._noises, ends, strict=True):
            states = np.flatnonzero(plan.constraint)
            surrogates = self.engine.planner.map_to_surrogates(np.arange(size), plan.constraint)
            for at in range(start, end, block):
                part = slice(at, min(at + block, end))
                rows[part, states] = noise.log_densities(noise.sample(path[part], rng), states)
                rows[part] = rows[part][:, surrogates]
                if np.isneginf(rows[part, states]).any():
                    return None
        return rows


def iterate_beliefs(model: MarkovModel, first: int = 0) -> Iterator[Belief]:
    """Iterate over the beliefs that follow from the model alone, without releases.

    Parameters
    ----------
    model
        The model.
    first
        Time slot of the first belief, counted from 1970.

    Yields
    ------
    Belief
        One belief for each step, without end.
    """
    belief = Belief.initial(model, first)
    for step in count(first):
        yield belief
        belief = belief.predict(model, 1, step)


def _build_public_plans(engine: Releaser, steps: int, first: int) -> list[tuple[int, StepPlan]] | None:
    """Build the plans of the releases, each with its first step.

    The plans follow from the model alone. The result is None if plans depend on the noise: with a δ-location set, event
    caps, a schedule, lookup tables, or a repair chosen by the belief. Noise of lower dimension can exclude states, too,
    which shows in the densities.
    """
    settings = engine.settings
    planned = list[tuple[int, StepPlan]]()
    if (
        settings.delta is not None
        or settings.caps
        or settings.schedule is not None
        or settings.mechanism in TABLE_MECHANISMS
    ):
        return None
    before: Belief | None = None
    for step, belief in enumerate(islice(iterate_beliefs(engine.model, first), steps)):
        plan = engine.planner.build_plan(belief)
        if plan.repair_prior is not None:
            return None
        if not planned or plan.repair_id != planned[-1][1].repair_id:
            planned.append((step, plan))
        elif engine.model.is_plain and before is not None and (belief.support == before.support).all():
            return planned
        before = belief
    return planned


# Approximate number of user states sampled in total and at a time, to find users for whom an event occurs.
_MAX_SAMPLED_STATES = 1 << 27
_BLOCK_STATES = 1 << 22

# Maximum number of a user's releases, evenly spaced, at which errors are computed.
MAX_EVALUATED_STEPS = 96


@dataclass(frozen=True)
class MeanEstimate:
    """A mean over users with a confidence interval.

    Parameters
    ----------
    mean
        The mean.
    margin
        Half the width of the interval with confidence `CONFIDENCE` (Student's t, for approximately normal values).
        Infinite for a single user.
    """

    mean: float
    margin: float

    @property
    def lower_bound(self) -> float:
        """The lower end of the interval."""
        return self.mean - self.margin

    @classmethod
    @check_arguments
    def from_values(cls, values: FloatArray) -> MeanEstimate:
        """Compute the mean of independent values ``(n,)``, at least one.

        Parameters
        ----------
        values
            ``(n,)``: one value for each user.

        Returns
        -------
        MeanEstimate
            The mean and its margin.

        Raises
        ------
        InvalidInputError
            If the values are not a non-empty list of finite numbers.
        """
        numbers = as_floats(values, "values", InvalidInputError)
        if numbers.ndim != 1 or not len(numbers) or not np.isfinite(numbers).all():
            raise InvalidInputError(f"values must be a list of at least one finite number, got shape {numbers.shape}")
        count = len(numbers)
        mean = float(numbers.mean())
        if count < 2:
            return cls(mean, inf)
        quantile = float(stdtrit(count - 1, 0.5 + CONFIDENCE / 2))
        return cls(mean, quantile * float(numbers.std(ddof=1)) / count**0.5)


@dataclass(frozen=True, eq=False)
class Simulation:
    """Metrics of the releases of simulated users. Errors are in the unit of the measurements.

    Parameters
    ----------
    epsilon
        The maximum budget of a release, and its budget without event caps or a schedule.
    steps
        Number of timesteps of each user.
    metric
        The only metric that was computed, None for all. Other errors and posteriors are NaN.
    estimate_error, filtered_error, smoothed_error, smoothed_max_posterior
        ``(n,)``: means over each user's timesteps, or over `MAX_EVALUATED_STEPS` evenly spaced ones. They are the
        expected error of the published estimate, the expected error of the adversary's point estimate given past and
        given all releases, and the probability of the most probable state given all releases.
    epsilon_spent, withheld_share
        ``(n,)``: the sum of the budgets, and the share of withheld timesteps.
    released_error
        ``(n,)``: the root mean square error of each user's releases.
    max_event_probability
        ``(n,)``: the largest probability of the event before or after any release. None without an event.
    """

    epsilon: float
    steps: int
    metric: str | None
    estimate_error: FloatArray = field(repr=False, metadata=exported("estimate_error_m", scale=1000))
    filtered_error: FloatArray = field(repr=False, metadata=exported("adversary_error_m", scale=1000))
    smoothed_error: FloatArray = field(repr=False, metadata=exported("smoothed_adversary_error_m", scale=1000))
    smoothed_max_posterior: FloatArray = field(repr=False, metadata=exported("smoothed_adversary_max_posterior"))
    epsilon_spent: FloatArray = field(repr=False, metadata=exported())
    withheld_share: FloatArray = field(repr=False, metadata=exported())
    released_error: FloatArray = field(repr=False, metadata=exported("released_error_m", scale=1000))
    max_event_probability: FloatArray | None = field(default=None, repr=False, metadata=exported())

    @property
    def num_users(self) -> int:
        """The number of simulated users."""
        return len(self.estimate_error)

    def estimate_mean(self, name: str) -> MeanEstimate:
        """Estimate the mean of a metric over users, the RMS for `released_error`.

        Parameters
        ----------
        name
            Name of a metric, an attribute of `Simulation`.

        Returns
        -------
        MeanEstimate
            The mean with its interval.

        Raises
        ------
        InvalidInputError
            If the metric does not exist or was not simulated.
        """
        values = vars(self).get(name)
        if not isinstance(values, np.ndarray) or (self.metric not in (None, name)):
            raise InvalidInputError(f"name must be a metric that was simulated, such as 'smoothed_error', got {name!r}")
        if name != "released_error":
            return MeanEstimate.from_values(values)
        square = MeanEstimate.from_values(values**2)
        root = sqrt(square.mean)
        # The derivative of the root (delta method). The root is 0 if all releases are exact.
        return MeanEstimate(root, square.margin / (2 * root or inf))

    def to_dict(self, *names: str) -> dict[str, float]:
        """Return the means and margins of metrics, with errors in metres.

        Parameters
        ----------
        *names
            Names of metrics, attributes of `Simulation`.

        Returns
        -------
        dict
            JSON key of each metric → its mean, and the key with ``_margin`` → its margin.
        """
        values: dict[str, float] = {}
        for metric in fields(self):
            if metric.name in names:
                key = metric.metadata["exported"] or metric.name
                scale = metric.metadata["scale"]
                estimate = self.estimate_mean(metric.name)
                values |= {key: scale * estimate.mean, f"{key}_margin": scale * estimate.margin}
        return values

    def estimate_share_above(self, probability: float) -> tuple[float, float]:
        """Estimate the share of users for whom the event's probability ever exceeded a limit.

        The second value is a one-sided exact upper bound (Clopper and Pearson) with confidence `CONFIDENCE`.

        Parameters
        ----------
        probability
            The limit, in [0, 1].

        Returns
        -------
        tuple of float
            The share of simulated users above the limit, and the upper bound for all users.

        Raises
        ------
        InvalidInputError
            If the simulation has no event.
        """
        if self.max_event_probability is None:
            raise InvalidInputError("event must be set for the simulation: call simulate() with an event")
        num_above = int((self.max_event_probability > probability).sum())
        bound = (
            1.0
            if num_above == self.num_users
            else float(betaincinv(num_above + 1, self.num_users - num_above, CONFIDENCE))
        )
        return num_above / self.num_users, bound


@check_arguments
def simulate(
    releaser: Releaser,
    epsilon: NoiseEpsilon,
    num_users: Annotated[int, Integers(2)],
    steps: PositiveInt,
    rng: SeedOrGenerator = 0,
    watch: Callable[[Iterable[int]], Iterable[int]] = iter,
    event: Event | None = None,
    first: int = 0,
    habits: Sequence[MarkovModel] = (),
    metric: str | None = None,
) -> Simulation:
    """Simulate users that follow the engine's model, release them, and compute metrics.

    The recipient's belief is correct for such users. The mean error that it expects is therefore the mean error of the
    estimate, with less variance than the errors themselves.

    Parameters
    ----------
    releaser
        An engine, left unchanged. An engine with event caps or a schedule withholds timesteps as they require. It is
        far slower, as is an engine with noise that depends on earlier releases.
    epsilon
        The budget of each release, or its maximum.
    num_users, steps
        Number of users, at least 2, and of timesteps of each.
    rng
        Seed or generator of the users. One seed gives the same paths and the same random bytes for every budget.
    watch
        Iterates over the users' indices and may show the progress.
    event
        An event, in steps from the first release. Its probability after the releases is computed. All users are then
        such that the event occurs, sampled from the model by rejection.
    first
        Time slot of the first release, counted from 1970. Needed for time-dependent models.
    habits
        Movement models of the users, assigned in turn. The adversary knows the user's model. The estimate follows from
        the engine's model, and its expected error from the user's. By default, all users follow the engine's model.
    metric
        The only metric to compute, such as ``"smoothed_error"``. None means all.

    Returns
    -------
    Simulation
        The metrics of the simulated users' releases.

    Raises
    ------
    InvalidInputError
        If there are fewer than 2 users or no step.
    EventError
        If the event is invalid for the model, or too rare to sample users for whom it occurs.
    DphmmError
        See `Releaser.release`.

    Examples
    --------
    >>> from dphmm import MarkovModel, PolicyGraph, Releaser
    >>> model = MarkovModel([[0.9, 0.1], [0.2, 0.8]], [0.5, 0.5])
    >>> engine = Releaser(model, [[0, 0], [1, 0]], PolicyGraph.complete(2), 1.0)
    >>> simulation = simulate(engine, 0.5, num_users=8, steps=5)
    >>> filtered, smoothed = (simulation.estimate_mean(name).mean for name in ("filtered_error", "smoothed_error"))
    >>> simulation.num_users, smoothed < filtered < 0.5
    (8, True)
    """
    seed = derive_seed(rng)
    releases = PathReleaser(releaser, epsilon, steps, first)
    odds = None if event is None else EventOdds(*make_chain(releaser.model, first), event)
    if habits and event is not None:
        raise InvalidInputError("event cannot be combined with habits: it needs users that follow the engine's model")
    user_models = [habits[i % len(habits)] for i in range(num_users)] if habits else [releaser.model] * num_users
    path_rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
    if habits:
        paths = np.concatenate(
            [sample_paths(user_model, 1, steps, first, path_rng) for user_model in user_models]
        ).astype(np.int64)
    elif event is None or odds is None:
        paths = sample_paths(releaser.model, num_users, steps, first, path_rng).astype(np.int64)
    else:
        prior = float(expit(odds.prior))
        paths = _sample_paths_with_event(releaser.model, event, prior, num_users, steps, first, path_rng)
    values = np.array(
        [
            _compute_user_metrics(releases, odds, paths[index], seed, index, user_models[index], metric)
            for index in watch(range(num_users))
        ]
    )
    return Simulation(epsilon, steps, metric, *values.T)


def _sample_paths_with_event(
    model: MarkovModel, event: Event, probability: float, count: int, steps: int, first: int, rng: np.random.Generator
) -> IntArray:
    """Sample paths ``(count, steps)`` of a model on which an event occurs."""
    if model.outside is not None:
        raise EventError(
            "event cannot be combined with a model with outside states: the state nearest to a user outside is not "
            "distinguished from a visit; train one with outside_states = false"
        )
    length = max(steps, event.last + 1)
    if count * length > _MAX_SAMPLED_STATES * probability:
        raise EventError(
            f"event must be less rare: its probability {probability:.2g} under the model is too small to sample "
            f"{count} users for whom it occurs; use fewer users or another event"
        )
    automaton = Automaton.compile(event, model.size)
    path_parts = list[IntArray]()
    batch = 2 * count
    while sum(map(len, path_parts)) < count:
        paths = sample_paths(model, batch, length, first, rng).astype(np.int64)
        path_parts.append(paths[automaton.happens(paths), :steps])
        batch = min(4 * batch, max(count, _BLOCK_STATES // length))
    return np.concatenate(path_parts)[:count]


@dataclass(frozen=True, eq=False)
class _UserMetrics:
    """Metrics of one user's releases at the inspected timesteps, computed on demand.

    The estimate follows from the engine's model, and its expected error from `user_model`. All other metrics are those
    of an adversary who knows `user_model`.
    """

    engine: Releaser
    observed: Observations
    user_model: MarkovModel

    @cached_property
    def inspected(self) -> list[int]:
        return _select_timesteps(len(self.observed.log_likelihood))

    @cached_property
    def filtering(self) -> Filtering:
        return filter_releases(self.user_model, self.observed)

    @cached_property
    def smoothed(self) -> list[Inference]:
        return self._infer(smooth_releases(self.user_model, self.observed, self.filtering, self.inspected))

    def _infer(self, beliefs: Sequence[Belief]) -> list[Inference]:
        # A search requests one metric of thousands of users: `Inference` computes what it is asked for.
        columns = np.asfortranarray(self.engine.measurements.points)
        cell = self.engine.cell
        return [Inference(belief.probabilities, columns, cell, belief.outside_belief) for belief in beliefs]

    @property
    def estimate_error(self) -> list[float]:
        points = self.engine.measurements.points
        filtered = self.filtering.select(self.inspected)
        published = filtered
        if self.user_model is not self.engine.model:
            published = filter_releases(self.engine.model, self.observed).select(self.inspected)
        # With habits, the recipient's belief is not correct for this user, so the adversary's determines the error.
        return [
            expected_distance(
                belief.probabilities, points, self.engine.cell, belief.outside_belief, other.probabilities @ points
            )
            for belief, other in zip(filtered, published, strict=True)
        ]

    @property
    def filtered_error(self) -> list[float]:
        return [inference.error_lower_bound for inference in self._infer(self.filtering.select(self.inspected))]

    @property
    def smoothed_error(self) -> list[float]:
        return [inference.error_lower_bound for inference in self.smoothed]

    @property
    def smoothed_max_posterior(self) -> list[float]:
        return [inference.max_probability for inference in self.smoothed]


def _compute_user_metrics(
    releases: PathReleaser,
    odds: EventOdds | None,
    path: IntArray,
    seed: int,
    index: int,
    user_model: MarkovModel,
    metric: str | None,
) -> tuple[float, ...]:
    """Compute the metrics of one user in the order of `Simulation`, NaN if not requested."""
    noise_rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1, index)))
    rows, spent, withheld, error = releases.release(path, noise_rng)
    observed = Observations(rows, np.ones(releases.steps, dtype=np.int64), releases.first)
    metrics = _UserMetrics(releases.engine, observed, user_model)
    errors = (
        float(np.mean(getattr(metrics, name))) if metric in (None, name) else nan
        for name in ("estimate_error", "filtered_error", "smoothed_error", "smoothed_max_posterior")
    )
    measured = (*errors, spent, withheld, error)
    if odds is None:
        return measured
    new_odds = odds.copy()
    reached = odds.log_odds
    for row in rows:
        new_odds.update(row)
        reached = max(reached, new_odds.log_odds)
    return *measured, float(expit(reached))


def _select_timesteps(steps: int) -> list[int]:
    return [int(step) for step in np.unique(np.linspace(0, steps - 1, MAX_EVALUATED_STEPS).astype(np.int64))]


def compute_errors_without_releases(
    releaser: Releaser, steps: int, first: int = 0, model: MarkovModel | None = None
) -> tuple[float, float]:
    """Compute the errors that follow from the model alone, without releases.

    Returns
    -------
    tuple of float
        The mean expected error of the point estimate, and that of the posterior mean.
    """
    beliefs = predict_without_releases(model or releaser.model, np.ones(steps, dtype=np.int64), None, first)
    points = releaser.measurements.points
    cell = releaser.cell
    inspected = [beliefs[t] for t in _select_timesteps(steps)]
    radii = [expected_distance(belief.probabilities, points, cell, belief.outside_belief) for belief in inspected]
    error = float(compute_inference_metrics(inspected, points, 1, cell).error.mean())
    return error, float(np.mean(radii))


# Distance, relative to the largest probability, at which a stream is taken for the first one.
_RELATIVE_MARGIN = 1e-3
# Relative margin of the bound by the stationary distribution, which some models approach slowly.
_REST_MARGIN = 1e-2
# Change in a period below which a distribution has settled.
_SETTLED_DISTANCE = 1e-12
# Share of non-zero transitions above which dense products are faster, and their speed relative to sparse ones.
_MIN_DENSE_FILL = 0.05
_DENSE_SPEED = 8
# Maximum number of probabilities at a time (400 MB).
_MAX_CELLS = 50_000_000
# Time of a step without its multiplications, in multiplications.
_STEP_WORK = 30_000
# The number of multiplications that take a few seconds.
MAX_WORK = 3e9


def count_period_steps(model: MarkovModel) -> int:
    """Return the steps after which transitions repeat, without changes of the clocks."""
    if model.time_classes is None:
        return 1
    week = HOURS_PER_WEEK * 3_600_000_000
    return model.time_classes.period or week // gcd(week, round_to_microseconds(model.step, "step"))


def compute_max_prior(model: MarkovModel, first: int | None = None, max_work: float = MAX_WORK) -> float | None:
    """Compute a bound on the probability of any state at any timestep without releases.

    The probabilities are followed until they settle. The bound may exceed the largest of them by one hundredth. With
    time classes, changes of the clocks after the first timesteps are not covered.

    Parameters
    ----------
    model
        The model.
    first
        Time slot of the first release, counted from 1970. Defaults to any slot of a period at the UTC offset of 1970;
        see `MarkovModel.with_fixed_offsets`.
    max_work
        Maximum number of multiplications.

    Returns
    -------
    float or None
        The bound; None if it takes too long.
    """
    period = count_period_steps(model)
    num_starts = period if first is None else 1
    start = 0 if first is None else first
    operators = [_build_forward_matrix(matrix) for matrix in model.transitions]
    of_context = model.state_of_context
    states: Any = csr_array((np.ones(len(of_context)), (of_context, np.arange(len(of_context)))))
    rest = None if model.time_classes is not None else compute_stationary_distribution(model.transitions[0])
    masses = np.empty((model.chain_size, 0))  # a column for each start
    checkpoint = masses
    max_prior = 0.0
    margin = 0.0
    work = 0.0
    for index in count():
        operator = operators[model.get_class(start + index)]
        masses = operator @ masses
        masses /= masses.sum(axis=0)
        if index < num_starts:
            masses = np.column_stack((masses, np.exp(model.initial_logs(start + index))))
        max_prior = max(max_prior, float((states @ masses).max()))
        work += _STEP_WORK + masses.shape[1] * (operator.nnz if issparse(operator) else operator.size / _DENSE_SPEED)
        is_late = masses.size > _MAX_CELLS or work > max_work
        if rest is not None:
            # Steps do not increase the total variation distance of two distributions. No later probability therefore
            # differs by more than the present distance from that of the stationary distribution.
            later = float((states @ rest).max() + np.abs(masses[:, 0] - rest).sum() / 2)
            if later <= (1 + _REST_MARGIN) * max_prior:
                return max(max_prior, later)
        if is_late:
            return None
        # For the same reason, a stream that comes near the first one stays near it.
        distances = np.abs(masses - masses[:, :1]).sum(axis=0) / 2
        is_separate = distances > _RELATIVE_MARGIN * max_prior
        margin = max(margin, float(distances[~is_separate].max()))
        is_separate[0] = True
        masses = masses[:, is_separate]
        periods, number = divmod(index, period)
        if number == 0 and index >= num_starts:
            is_settled = masses.shape == checkpoint.shape
            if is_settled and np.abs(masses - checkpoint).sum(axis=0).max() <= _SETTLED_DISTANCE:
                break
            # Compare with doubling periods, so that distributions that return after several periods are recognised.
            if periods & (periods - 1) == 0:
                checkpoint = masses
    return max_prior + margin


def _build_forward_matrix(transitions: csr_array) -> csr_array | FloatArray:
    """Return the matrix that multiplies distributions in columns, dense if that is faster."""
    matrix = csr_array(transitions.T)
    return matrix if matrix.nnz < _MIN_DENSE_FILL * matrix.shape[0] ** 2 else matrix.toarray()
