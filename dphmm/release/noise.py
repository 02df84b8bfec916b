"""What is measured in each state, and the noise it is released with: one for all states, by component, or by tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import (
    RELATIVE_TOLERANCE,
    BoolArray,
    FloatArray,
    IntArray,
    RandomSource,
    Rng,
    as_floats,
    content_hash,
    frozen,
)
from dphmm.errors import ConfigurationError, CoordinateError, InvalidInputError, PolicyError
from dphmm.geometry.hull import SensitivityHull
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.span import exact_span
from dphmm.mechanisms import norm_noise
from dphmm.mechanisms.base import PLANAR_ONLY, TABLES, Mechanism
from dphmm.mechanisms.lattice import LatticeKNormMechanism, Spacing
from dphmm.mechanisms.optimal_table import LARGEST_PROGRAM, LARGEST_TABLE, TableMechanism, hops_between, is_clique
from dphmm.model.belief import Belief
from dphmm.policy.by_component import NoiseBody
from dphmm.policy.protection import Protection
from dphmm.release.settings import Settings

_ROUNDING = 4 * float(np.finfo(np.float64).eps)
"""How wide a flat is on which real-valued noise stays, relative to the largest coordinate: as far as rounding goes."""


@dataclass(frozen=True)
class LikeliestComponent:
    """What a record says of the component that a release came from: of the likeliest one, given everything.

    Parameters
    ----------
    components
        How many components with noise of their own the possible states fall into.
    component_size
        How many possible states the likeliest has.
    component_certainty
        How probable it is, given all releases so far.
    component_error
        The root mean square distance of its releases from what they were drawn around.
    open
        Whether it is an open state.
    """

    components: int
    component_size: int
    component_certainty: float
    component_error: float
    open: bool


@dataclass(frozen=True, eq=False)
class StepNoise:
    """The noise of a step: one or several parts, each for some of the possible states; no part where nothing is drawn.

    Both ends of every edge are in one part, so that an edge's two states are told apart by at most the part's epsilon.
    Between parts nothing is promised: which one a state is in, a release may tell.

    Parameters
    ----------
    query
        What is measured in each state.
    parts
        The mechanism of each part.
    part_of
        ``(N,)``: the part of each possible state, -1 for others.
    components
        ``(N,)``: the component of each possible state, counted from 0, -1 for others.
    mean_errors
        With tables of least error: the squared error that the posterior mean of K-norm noise would have in each part,
        with the same budget, where the part is known. Empty with other noise.
    """

    query: Query
    parts: tuple[Mechanism, ...]
    part_of: IntArray
    components: IntArray
    mean_errors: tuple[float, ...] = ()

    def at(self, state: int) -> Mechanism:
        """The mechanism that a possible state is released by."""
        return self.parts[int(self.part_of[state])]

    @cached_property
    def members(self) -> tuple[IntArray, ...]:
        """The states of each part."""
        return tuple(np.flatnonzero(self.part_of == part) for part in range(len(self.parts)))

    def each_part(self) -> Iterator[tuple[Mechanism, BoolArray]]:
        """Each part's mechanism, and which possible states ``(N,)`` are released by it."""
        for number, part in enumerate(self.parts):
            yield part, self.part_of == number

    # ---- draws ---------------------------------------------------------------------------------------------------

    def draw(self, state: int, source: RandomSource) -> npt.NDArray[Any]:
        """A release of what is measured in a possible state."""
        return self.at(state).draw(self.query.values[state], source)

    def sample(self, states: IntArray, rng: Rng) -> npt.NDArray[Any]:
        """A release of what is measured in each of some possible states ``(k,)``: ``(k, d)``, as noise gives them."""
        found = np.empty_like(values := self.query.values[states])
        for number in np.unique(self.part_of[states]).tolist():
            here = self.part_of[states] == number
            found[here] = self.parts[number].sample(values[here], rng)
        return found

    # ---- densities -----------------------------------------------------------------------------------------------

    def log_density(self, released: npt.NDArray[Any]) -> FloatArray:
        """``log p(z | s)`` of a release for every possible state, ``(N,)``, by its own normaliser; -inf for others.

        Densities of exact noise are probabilities. Otherwise those of parts whose noise stays on a point or a line
        count as spread over as little beside it as rounding does, so that they can be compared with the densities of
        the others: they are larger by that much, and nothing is ever ruled out by rounding.

        Parameters
        ----------
        released
            ``z``, ``(d,)``, as noise gives it.
        """
        values, found = self.query.values, np.full(len(self.part_of), -inf)
        farthest = float(np.abs(released).max())
        reach = self.query.reach + farthest
        for number, (part, states) in enumerate(zip(self.parts, self.members, strict=True)):
            if len(states) == 0:
                continue
            law = part.planar_law(reach)
            if law is not None:
                found[states] = law.log_densities(released, self.query.columns.take(states, axis=1))
            else:
                found[states] = part.unchecked_log_density(released, values[states])
            if self._missing[number]:
                found[states] -= self._missing[number] * self._log_width(farthest)
        return found

    def log_densities(self, outputs: npt.NDArray[Any], states: IntArray) -> FloatArray:
        """The same of outputs ``(c, d)`` for some possible states ``(k,)``: ``(c, k)``."""
        found, part_of = np.full((len(outputs), len(states)), -inf), self.part_of[states]
        for number in np.unique(part_of[part_of >= 0]).tolist():
            here = np.flatnonzero(part_of == number)
            values = np.tile(self.query.values[states[here]], (len(outputs), 1))
            logs = self.parts[number].log_density(np.repeat(outputs, len(here), axis=0), values)
            found[:, here] = logs.reshape(len(outputs), -1)
            if self._missing[number]:
                found[:, here] -= self._missing[number] * self._log_width(np.abs(outputs).max(axis=1, keepdims=True))
        return found

    @cached_property
    def _missing(self) -> list[int]:
        """How many dimensions of the widest part's span each part of real-valued noise lacks."""
        ranks = [0 if self.query.is_exact else part.rank for part in self.parts]
        return [max(ranks) - rank for rank in ranks]

    def _log_width(self, farthest: Any) -> Any:
        """The logarithm of how wide the flat is that a release with such a largest coordinate stays on."""
        return np.log(_ROUNDING * np.maximum(np.maximum(farthest, self.query.reach), 1e-300))

    # ---- errors --------------------------------------------------------------------------------------------------

    def error_at(self, state: int) -> float:
        """The root mean square distance of a release of a possible state from what is measured there. Private."""
        if not self.parts:
            return inf
        return sqrt(self.at(state).squared_error_from(self.query.values[state])) * self.query.step

    def mean_squared_error(self, weights: FloatArray) -> float:
        """The mean squared error of a release, the possible states in proportion to probabilities ``(N,)``."""
        return float(self._shares(weights) @ np.array([part.squared_error for part in self.parts]))

    def expected_error(self, prior: Belief) -> float:
        """The root mean square distance of a release from what it was drawn around, in the measurements' unit.

        Where that differs by part it is the mean over a belief, of which possible states' probabilities count in
        proportion. Infinite where nothing is drawn.
        """
        if not self.parts:
            return inf
        several = len(self.parts) > 1
        squared = self.mean_squared_error(prior.probabilities) if several else self.parts[0].squared_error
        return sqrt(squared) * self.query.step

    def comparison(self, prior: Belief) -> dict[str, Any]:
        """What records say of tables of least error, where the possible states are as probable as in a belief.

        Returns
        -------
        dict
            ``least_error``: what no table's expected error is below, as far as the program proves; None where some
            component has another. ``mean_error``: the expected error of the posterior mean of K-norm noise with the
            same budget, each component known. ``gain``: by what share the tables' expected error is less than that.
            Empty with other noise.
        """
        if not self.mean_errors:
            return {}
        shares = self._shares(prior.probabilities)
        bounds = [part.least_squared_error for part in self.parts]
        least = None if None in bounds else sqrt(float(shares @ np.array(bounds)))
        mean, table = sqrt(float(shares @ np.array(self.mean_errors))), self.expected_error(prior)
        return {"least_error": least, "mean_error": mean, "gain": 1.0 - table / mean if mean > 0 else 0.0}

    def _shares(self, weights: FloatArray) -> FloatArray:
        """How probable each part is among the possible states; all of these alike where doubles hold none of it."""
        shares = np.bincount(self.part_of + 1, weights, len(self.parts) + 1)[1:]
        if not shares.sum() > 0:
            shares = np.bincount(self.part_of + 1, minlength=len(self.parts) + 1)[1:]
        return np.asarray(shares / shares.sum())

    # ---- components ----------------------------------------------------------------------------------------------

    @cached_property
    def component_count(self) -> int:
        """How many components the possible states fall into."""
        return int(self.components.max()) + 1

    def likeliest_component(self, probabilities: FloatArray, open_states: BoolArray) -> LikeliestComponent:
        """What every reader sees of the component that a release came from.

        Parameters
        ----------
        probabilities
            ``(N,)``: of the possible states after the release, those for which they stand in counted to them.
        open_states
            ``(N,)``: the states that are released as they are.
        """
        shares: FloatArray = np.ones(1)
        if self.component_count > 1:
            shares = np.bincount(self.components + 1, probabilities)[1:].astype(np.float64)
        likeliest = int(np.argmax(shares))
        members = np.flatnonzero(self.components == likeliest)
        first = int(members[0])
        error = sqrt(self.at(first).squared_error) * self.query.step if self.parts else inf
        certainty = min(1.0, float(shares[likeliest]))
        return LikeliestComponent(len(shares), len(members), certainty, error, bool(open_states[first]))


# ---- what is measured ------------------------------------------------------------------------------------------------

_REMEMBERED = 64
_MISWRITTEN = 0.01
"""How far a place that a table released may lie from where it is read, as a share of the way to the next one."""

_Made = Callable[[NoiseBody, float], Mechanism]

_OF_A_BODY: Mapping[str, _Made] = {
    "k-norm": lambda body, epsilon: norm_noise.KNormMechanism(body.hull, epsilon),
    "laplace": lambda body, epsilon: norm_noise.LaplaceMechanism(
        float(np.abs(body.hull.spanning).sum(axis=1).max()), epsilon, body.hull.ambient_dimension
    ),
    "planar-isotropic": lambda body, epsilon: norm_noise.PlanarIsotropicMechanism(body.hull, epsilon),
    "planar-laplace": lambda body, epsilon: norm_noise.PlanarLaplaceMechanism(epsilon, body.body.circumradius),
}
"""Real-valued noise drawn from a body that is more than a point."""


class Query:
    """What is measured in each state and how noise is put on it.

    Parameters
    ----------
    settings
        The mechanism, and the spacing of the lattice for exact noise.
    measurements
        What is measured; rounded to the published lattice for exact noise.

    Raises
    ------
    InvalidInputError
        When the mechanism needs planar measurements and these are not; for exact noise, when they span more than two
        dimensions.
    CoordinateError
        When measurements are too far away for the lattice.
    """

    def __init__(self, settings: Settings, measurements: Measurements) -> None:
        if settings.mechanism in PLANAR_ONLY and measurements.dimension != 2:
            raise InvalidInputError(
                f"mechanism {settings.mechanism!r} needs planar measurements, not {measurements.dimension}-dimensional "
                "ones"
            )
        self._name, self._given = settings.mechanism, measurements
        self.is_exact = settings.is_exact
        """Whether noise is drawn by integers alone."""
        self.measurements = measurements
        """The measurements, on the published lattice for exact noise."""
        self.values: npt.NDArray[Any] = measurements.points
        """``(N, d)``: what the mechanism takes as true values: points, or whole steps of the published lattice."""
        self.step = 1.0
        """The length of a unit of the values in that of the measurements."""
        self._made: dict[tuple[bytes, float], Mechanism] = {}
        self._tables = Tables(settings, self) if settings.mechanism in TABLES else None
        self._lattice: Spacing | None = None
        if settings.mechanism == "lattice":
            self._lattice = Spacing(settings.spacing)
            self.values = self._lattice.nearest(measurements.points, "measurements")
            self.step = float(self._lattice.step)
            # A repair may join any two states, so that the span of all measurements counts and not that of the policy.
            rank = len(exact_span(self.values - self.values[:1]).axes) if measurements.dimension > 2 else 0
            if rank > 2:
                raise InvalidInputError(
                    f"mechanism 'lattice' must have measurements that span at most 2 dimensions, got {rank}; use "
                    "mechanism 'k-norm'"
                )
            self.measurements = Measurements.on_lattice(self.values, self.step)

    def check_told_apart(self) -> None:
        """Refuse measurements of which rounding to the lattice makes different ones equal.

        Raises
        ------
        CoordinateError
            Naming the spacing.
        """
        if self._lattice is None:
            return
        points = self._given.points
        if np.abs(points - self.values * self.step).max() <= RELATIVE_TOLERANCE * self.step:
            return
        if len(np.unique(self.values, axis=0)) < len(np.unique(points, axis=0)):
            raise CoordinateError(
                f"measurements that differ are equal on a lattice with spacing {self._lattice.step}; choose a smaller "
                "spacing"
            )

    def noise(self, protection: Protection, epsilon: float, prior: Belief | None = None) -> StepNoise:
        """The noise for a repaired graph.

        In lattice steps for ``"lattice"``, otherwise in the unit of the measurements. Tables are made for a prior.
        """
        if self._tables is not None:
            return self._tables(protection, epsilon, prior)
        parts = tuple(self._mechanism(body, epsilon) for body in protection.parts)
        return StepNoise(self, parts, protection.part_of, protection.components)

    def no_noise(self, protection: Protection) -> StepNoise:
        """The noise of a step at which nothing is drawn."""
        return StepNoise(self, (), protection.part_of, protection.components)

    def _mechanism(self, body: NoiseBody, epsilon: float) -> Mechanism:
        """The mechanism of one body; most are those of the step before."""
        # In space equal vertices may come with other cones, of which seeded draws are made, so differences are the key.
        hull = body.coordinate_hull
        key = (hull.vertices if hull.dimension <= 2 else hull.differences).tobytes(), epsilon
        if key not in self._made:
            if len(self._made) >= _REMEMBERED:
                del self._made[next(iter(self._made))]
            if self._lattice is not None:
                hull = body.coordinate_hull.in_steps(self.measurements.steps_per_coordinate)
                self._made[key] = LatticeKNormMechanism(hull, epsilon)
            elif body.hull.dimension == 0:
                self._made[key] = norm_noise.KNormMechanism(body.hull, epsilon)
            else:
                self._made[key] = _OF_A_BODY[self._name](body, epsilon)
        return self._made[key]

    def place(self, released: npt.NDArray[Any]) -> tuple[float, ...]:
        """What a mechanism drew, in the measurements' unit."""
        return tuple((released if self._lattice is None else self._lattice.points(released)).tolist())

    def value(self, released: npt.ArrayLike) -> npt.NDArray[Any]:
        """A release in the measurements' unit as a mechanism drew it.

        Raises
        ------
        CoordinateError
            When it has another dimension, is not finite, or lies off the lattice.
        """
        point = as_floats(released, "the coordinates of a release", CoordinateError)
        if point.shape != (self.measurements.dimension,):
            raise CoordinateError(f"the release has shape {point.shape}; give ({self.measurements.dimension},) numbers")
        if self._tables is not None:
            return self._nearest_place(point)
        return point if self._lattice is None else self._lattice.steps(point, "released")

    def _nearest_place(self, point: FloatArray) -> FloatArray:
        """The measurement that a table released, of which a file may hold the first digits."""
        places = self.measurements.points
        apart = np.linalg.norm(places - point, axis=1)
        state = int(np.argmin(apart))
        others = apart[(places != places[state]).any(axis=1)]
        if apart[state] > _MISWRITTEN * others.min(initial=inf):
            raise CoordinateError(f"the release {point.tolist()} is at no state's place; tables release nothing else")
        return np.asarray(places[state])

    @cached_property
    def columns(self) -> FloatArray:
        """The true values' coordinates, ``(d, N)``, as doubles, which hold those of lattices."""
        return np.ascontiguousarray(self.values.T, dtype=np.float64)

    @cached_property
    def reach(self) -> float:
        """The largest of them."""
        return float(np.abs(self.columns).max())


# ---- tables ----------------------------------------------------------------------------------------------------------

_TABLES_REMEMBERED = 16
CLIQUES = 4
"""How many times as many states a component may have all of which are joined: its program is no slower."""


class Tables:
    """Makes the tables of steps, and keeps the last ones: a component that stays as probable as it was keeps its table.

    Parameters
    ----------
    settings
        Which table, how large a program may be, and what serves where it is larger.
    query
        What is released.
    """

    def __init__(self, settings: Settings, query: Query) -> None:
        self._settings, self._query = settings, query
        self._made: dict[str, TableMechanism] = {}
        self._means: dict[str, float] = {}

    def __call__(self, protection: Protection, epsilon: float, prior: Belief | None) -> StepNoise:
        """A table for each component, under a belief cut to it (all alike, where there is none).

        Raises
        ------
        ConfigurationError
            When a component is above the limit of the program and no fallback is set.
        PolicyError
            When it is above what any table may have.
        """
        components, dimension = protection.components, self._query.measurements.dimension
        as_is: Mechanism = norm_noise.KNormMechanism(SensitivityHull(np.zeros((0, dimension))), epsilon)
        made, part_of = [as_is], np.where(components >= 0, 0, -1)
        optimal = self._settings.mechanism == "optimal"
        means = [0.0] if optimal else []
        for states, edges in component_edges(protection):
            part_of[states] = len(made)
            made.append(self._table(states, edges, epsilon, prior))
            if optimal:
                means.append(self._mean_error(states, protection, epsilon, prior))
        return StepNoise(self._query, tuple(made), part_of, components, tuple(means))

    def _table(self, states: IntArray, edges: IntArray, epsilon: float, prior: Belief | None) -> TableMechanism:
        weights = _weights(states, prior)
        make = TableMechanism.graph_exponential
        if self._settings.mechanism == "optimal":
            if len(states) <= (most := self._most(len(states), edges)):
                make = TableMechanism.optimal
            elif self._settings.fallback == "none":
                raise ConfigurationError(
                    f"fallback is 'none' and a component has {len(states):,} states, above the {most:,} of the "
                    "program; raise optimal_limit, or set fallback to 'graph-exponential'"
                )
        key = content_hash(states, edges, epsilon, weights, make.__name__)
        if key not in self._made:
            if len(self._made) >= _TABLES_REMEMBERED:
                del self._made[next(iter(self._made))]
            self._made[key] = make(self._query.values[states], edges, epsilon, weights)
        return self._made[key]

    def _mean_error(self, states: IntArray, protection: Protection, epsilon: float, prior: Belief | None) -> float:
        """What the posterior mean of K-norm noise has for a squared error, with the budget and hull of a component."""
        hull = protection.parts[int(protection.part_of[states[0]])].hull
        weights = _weights(states, prior)
        key = content_hash(states, hull.vertices, epsilon, weights)
        if key not in self._means:
            if len(self._means) >= _TABLES_REMEMBERED:
                del self._means[next(iter(self._means))]
            noise = norm_noise.KNormMechanism(hull, epsilon)
            self._means[key] = error_of_posterior_mean(noise, self._query.values[states], weights)
        return self._means[key]

    def _most(self, size: int, edges: IntArray) -> int:
        """How many states a component may have for its program to be solved."""
        if is_clique(size, edges):
            return min(CLIQUES * self._settings.optimal_limit, LARGEST_TABLE)
        return min(self._settings.optimal_limit, LARGEST_PROGRAM)


def with_hops(protection: Protection) -> Protection:
    """The protection that tables give: degrees count neighbours, and between two states the loss is a hop's for each.

    A state is indistinguishable from its neighbours in the graph, and from others as far as it is from them in hops:
    that they lie within a hull means nothing here.
    """
    degrees = np.zeros(len(protection.degrees), dtype=np.int64)
    degrees[protection.graph.node_mask] = 1
    diameter = protection.diameter
    for states, edges in component_edges(protection):
        np.add.at(degrees, states[edges.ravel()], 1)
        if np.isfinite(diameter):
            diameter = float(hops_between(len(states), edges).max())
    return replace(protection, degrees=frozen(degrees), diameter=diameter)


def component_edges(protection: Protection) -> list[tuple[IntArray, IntArray]]:
    """The states of each component of more than one, and its edges by places among them.

    Raises
    ------
    PolicyError
        When a component has more states than a table may.
    """
    labels = protection.components
    sizes = np.bincount(labels[labels >= 0])
    if sizes.max() > LARGEST_TABLE:
        raise PolicyError(
            f"a component has {int(sizes.max()):,} states and a table at most {LARGEST_TABLE:,}; choose noise of a "
            "hull, or a policy that joins fewer"
        )
    edges, place = protection.graph.edge_array(), np.zeros(len(labels), dtype=np.int64)
    found = []
    for component in np.flatnonzero(sizes > 1).tolist():
        states = np.flatnonzero(labels == component)
        place[states] = np.arange(len(states))
        found.append((states, place[edges[labels[edges[:, 0]] == component]]))
    return found


def _weights(states: IntArray, prior: Belief | None) -> FloatArray:
    if prior is None:
        return np.ones(len(states))
    logs = prior.log_mass[states]
    top = float(logs.max())
    return np.exp(logs - top) if np.isfinite(top) else np.ones(len(states))


# ---- what is known after a release ----------------------------------------------------------------------

NODES = 1024
"""At how many releases the posterior is looked at."""

_SEED = 7
"""Of these releases: the same for every person, and none that is ever drawn for a release."""

_AT_ONCE = 1 << 18


def error_of_posterior_mean(mechanism: Mechanism, points: FloatArray, prior: FloatArray) -> float:
    """The expected squared distance of the mean given one release from the truth.

    It is the mean of the posterior's variance over releases of states in proportion to the prior, with a generator of
    its own: a function of its arguments, off by 2 % or so.

    Parameters
    ----------
    mechanism
        The noise.
    points
        ``(n, d)``: what is measured in the states.
    prior
        ``(n,)``, not negative and not all zero.
    """
    weights = prior / prior.sum()
    order = np.lexsort(points.T)  # so that evenly spread levels are evenly spread places
    true = order[evenly_spread(weights[order], NODES)]
    released = mechanism.sample(points[true], np.random.default_rng(_SEED))
    centred = points - weights @ points
    squares, several, total = np.square(centred).sum(axis=1), max(1, _AT_ONCE // len(points)), 0.0
    with np.errstate(divide="ignore"):
        logs_before = np.log(weights)
    for start in range(0, NODES, several):
        outputs = released[start : start + several]
        pairs = np.repeat(outputs, len(points), axis=0), np.tile(points, (len(outputs), 1))
        logs = mechanism.log_density(*pairs).reshape(len(outputs), len(points)) + logs_before
        posterior = np.exp(logs - logs.max(axis=1, keepdims=True))
        posterior /= posterior.sum(axis=1, keepdims=True)
        means = posterior @ centred
        total += float((posterior @ squares - np.square(means).sum(axis=1)).sum())
    return max(0.0, total / NODES)


def evenly_spread(masses: FloatArray, count: int) -> IntArray:
    """Places of a distribution, as often as they are probable: those at some levels of its mass, evenly apart."""
    levels = (np.arange(count) + 0.5) / count
    return np.asarray(np.searchsorted(np.cumsum(masses), levels * masses.sum()).clip(max=len(masses) - 1))


def distance_after_tables(noise: StepNoise, probabilities: FloatArray) -> float:
    """The expected distance of the posterior mean from the truth after a release by tables: over all outputs, exactly.

    Where states of two components are at one place, what is released there counts as if it were known from which.

    Parameters
    ----------
    noise
        A table for each component; what is released as it is, is known afterwards.
    probabilities
        ``(N,)``: of the states, before the release; those of possible ones count in proportion.
    """
    total = expected = 0.0
    for states, part in zip(noise.members, noise.parts, strict=True):
        total += float(probabilities[states].sum())
        if part.table is None:
            continue
        places = noise.query.values[states]
        joint = probabilities[states][:, None] * np.exp(part.log_density(part.table.points[None], places[:, None]))
        masses = joint.sum(axis=0)
        means = joint.T @ places / np.where(masses > 0, masses, 1.0)[:, None]
        away = np.sqrt(np.square(places[:, None] - means[None]).sum(axis=2))
        expected += float((joint * away).sum())
    return expected / total if total > 0 else expected
