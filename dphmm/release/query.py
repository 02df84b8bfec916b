"""One query about a person: what is measured in each state, and the noise that it is released with."""

from __future__ import annotations

from functools import cached_property
from math import inf, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import RELATIVE_TOLERANCE, BoolArray, FloatArray, RandomSource, as_floats
from dphmm.errors import CoordinateError, InvalidInputError
from dphmm.geometry.disc import Disc
from dphmm.geometry.hull import SensitivityHull
from dphmm.geometry.measurements import Measurements
from dphmm.markov.belief import Belief
from dphmm.mechanisms.base import Mechanism, NormMechanism
from dphmm.mechanisms.catalogue import PLANAR_ONLY, TABLES
from dphmm.mechanisms.isotropic import PlanarIsotropicMechanism
from dphmm.mechanisms.knorm import KNormMechanism
from dphmm.mechanisms.laplace import LaplaceMechanism
from dphmm.mechanisms.lattice import LatticeKNormMechanism
from dphmm.mechanisms.planar_laplace import PlanarLaplaceMechanism
from dphmm.mechanisms.spacing import Spacing
from dphmm.mechanisms.table import TableMechanism
from dphmm.policy.by_component import NoiseBody
from dphmm.policy.protection import Protection
from dphmm.release.noise import Compared, ComponentNoise, Hidden
from dphmm.release.settings import ReleaseSettings
from dphmm.release.step import PreparedStep, StepPlan
from dphmm.release.tables import Tables

_REMEMBERED = 64
_MISWRITTEN = 0.01
"""How far a place that a table released may lie from where it is read, as a share of the way to the next one."""


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
        When the mechanism needs planar measurements and these are not.
    CoordinateError
        When measurements are too far away for the lattice.
    """

    def __init__(self, settings: ReleaseSettings, measurements: Measurements) -> None:
        if settings.mechanism in PLANAR_ONLY and measurements.dimension != 2:
            raise InvalidInputError(
                f"mechanism {settings.mechanism!r} needs planar measurements, not {measurements.dimension}-dimensional "
                "ones"
            )
        self._name, self._given = settings.mechanism, measurements
        self.measurements = measurements
        """The measurements, on the published lattice for exact noise."""
        self.values: npt.NDArray[Any] = measurements.points
        """``(N, d)``: what the mechanism takes as true values: points, or whole steps of the published lattice."""
        self._made: dict[tuple[bytes, float], Mechanism] = {}
        self._tables = Tables(settings, measurements) if settings.mechanism in TABLES else None
        self._lattice: Spacing | None = None
        self._step = 1.0
        if settings.mechanism == "lattice":
            self._lattice = Spacing(settings.spacing)
            self.values = self._lattice.nearest(measurements.points, "measurements")
            self._step = float(self._lattice.step)
            self.measurements = Measurements.on_lattice(self.values, self._step)

    def check_told_apart(self) -> None:
        """Refuse measurements of which rounding to the lattice makes different ones equal.

        Raises
        ------
        CoordinateError
            Naming the spacing.
        """
        if self._lattice is None:
            return
        points, step = self._given.points, self._step
        if np.abs(points - self.values * step).max() <= RELATIVE_TOLERANCE * step:
            return
        if len(np.unique(self.values, axis=0)) < len(np.unique(points, axis=0)):
            raise CoordinateError(
                f"measurements that differ are equal on a lattice with spacing {self._lattice.step}; choose a smaller "
                "spacing"
            )

    def noise(
        self, protection: Protection | None, epsilon: float, prior: Belief | None = None
    ) -> Mechanism | ComponentNoise:
        """The noise for a repaired graph, or for one possible state, which is released as it is.

        In lattice steps for ``"lattice"``, otherwise in the unit of the measurements. Tables are made for a prior.
        """
        if self._tables is not None and protection is not None:
            return self._tables(protection, epsilon, prior)
        if protection is None or protection.part_of is None or protection.components is None:
            if protection is not None and protection.coordinate_hull.corners is not None:
                return self._remembered(protection, epsilon)
            return self._mechanism(protection, epsilon)
        made = tuple(self._remembered(part, epsilon) for part in protection.parts)
        return ComponentNoise(protection.part_of, made, protection.components)

    def _remembered(self, body: Protection | NoiseBody, epsilon: float) -> Mechanism:
        """The mechanism of one body; most are those of the step before."""
        key = body.coordinate_hull.vertices.tobytes(), epsilon
        if key not in self._made:
            if len(self._made) >= _REMEMBERED:
                del self._made[next(iter(self._made))]
            self._made[key] = self._mechanism(body, epsilon)
        return self._made[key]

    def _mechanism(self, protection: Protection | NoiseBody | None, epsilon: float) -> Mechanism:
        dimension = self.measurements.dimension
        if self._lattice is not None:
            factors = self.measurements.steps_per_coordinate
            if protection is None:
                return LatticeKNormMechanism(SensitivityHull(np.zeros((0, dimension), dtype=np.int64)), epsilon)
            return LatticeKNormMechanism(protection.coordinate_hull.in_steps(factors), epsilon)
        if protection is None or protection.hull.dimension == 0:
            return KNormMechanism(SensitivityHull(np.zeros((0, dimension))), epsilon)
        body, hull = protection.body, protection.hull
        if isinstance(body, Disc):
            return PlanarLaplaceMechanism(epsilon, body.radius)
        if self._name == "laplace":
            return LaplaceMechanism(float(np.abs(hull.vertices).sum(axis=1).max()), epsilon, dimension)
        return (PlanarIsotropicMechanism if self._name == "planar-isotropic" else KNormMechanism)(hull, epsilon)

    def draw(
        self,
        noise: Mechanism | ComponentNoise,
        state: int,
        source: RandomSource,
        around: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """A release of what is measured in a possible state, or with this state's noise around something else."""
        mechanism = noise.of(state) if isinstance(noise, ComponentNoise) else noise
        if isinstance(mechanism, LatticeKNormMechanism | NormMechanism):
            return mechanism.released(self.values[state] if around is None else around, source)
        return mechanism.sample(self.values[state] if around is None else around, source)

    def error_at(self, noise: Mechanism | ComponentNoise | None, state: int) -> float:
        """The root mean square distance of a release of a possible state from what is measured there. Private."""
        if noise is None:
            return inf
        mechanism = noise.of(state) if isinstance(noise, ComponentNoise) else noise
        if isinstance(mechanism, TableMechanism):
            return sqrt(mechanism.squared_error_at(self.values[state]))
        return sqrt(mechanism.squared_error) * self._step

    def expected_error(self, noise: Mechanism | ComponentNoise | None, prior: Belief) -> float:
        """The root mean square distance of a release from what it was drawn around, in the measurements' unit.

        Where that differs by state it is the mean over a belief, of which possible states' probabilities count in
        proportion. Infinite without noise, where nothing is drawn.
        """
        if noise is None:
            return inf
        if isinstance(noise, ComponentNoise):
            return sqrt(noise.mean_squared_error(prior.probabilities)) * self._step
        return sqrt(noise.squared_error) * self._step

    def compared(self, noise: Mechanism | ComponentNoise | None, prior: Belief) -> Compared:
        """What the tables of least error of a step are beside others; nothing of other noise."""
        if not isinstance(noise, ComponentNoise) or noise.mean_errors is None:
            return Compared()
        return noise.compared(prior.probabilities)

    def hidden(
        self, noise: Mechanism | ComponentNoise | None, posterior: Belief, plan: StepPlan, places: Measurements
    ) -> Hidden:
        """What everybody sees, after a release, of the component that it came from."""
        if noise is None:
            return Hidden(1, int(np.count_nonzero(plan.constraint)), 1.0, inf, False)
        if not isinstance(noise, ComponentNoise):
            return Hidden(1, int(np.count_nonzero(plan.constraint)), 1.0, sqrt(noise.squared_error) * self._step, False)
        probabilities = posterior.probabilities
        outside = np.flatnonzero(posterior.support & ~plan.constraint)
        if len(outside):  # they were released as their stand-ins
            probabilities = probabilities.copy()
            np.add.at(probabilities, places.surrogates(outside, plan.constraint), probabilities[outside])
        shares = noise.by_component(probabilities)
        likeliest = int(np.argmax(shares))
        members = np.flatnonzero(noise.components == likeliest)
        open_ = plan.protection is not None and bool(plan.protection.open[members[0]])
        error = sqrt(noise.of(int(members[0])).squared_error) * self._step
        return Hidden(len(shares), len(members), min(1.0, float(shares[likeliest])), error, open_)

    def place(self, released: npt.NDArray[Any]) -> tuple[float, ...]:
        """What a mechanism drew, in the measurements' unit."""
        return tuple((released if self._lattice is None else self._lattice.points(released)).tolist())

    def drawn(
        self, step: PreparedStep, state: int, wanted: BoolArray, places: Measurements, source: RandomSource
    ) -> tuple[tuple[float, ...] | None, FloatArray]:
        """A release of what is measured in a possible state, and the log likelihoods of wanted states.

        None, and 0 throughout, where nothing is drawn.
        """
        if step.mechanism is None:
            return None, np.zeros(len(wanted))
        released = self.draw(step.mechanism, state, source)
        likelihood = self.log_likelihood(step.mechanism, released, wanted, step.plan.constraint, places)
        return self.place(released), likelihood

    def likelihood_at(
        self, step: PreparedStep, released: npt.ArrayLike | None, wanted: BoolArray, places: Measurements
    ) -> FloatArray:
        """``log p(z | s)``, ``(N,)``, of a release in the measurements' unit; 0 throughout where nothing is drawn.

        Raises
        ------
        CoordinateError
            As `value`.
        """
        if step.mechanism is None or released is None:
            return np.zeros(len(wanted))
        return self.log_likelihood(step.mechanism, self.value(released), wanted, step.plan.constraint, places)

    def log_densities(
        self, noise: Mechanism | ComponentNoise, constraint: BoolArray, places: Measurements, outputs: npt.NDArray[Any]
    ) -> FloatArray:
        """``log p(z | s)`` of outputs ``(c, d)``, as noise gives them, for all possible states: ``(c, N)``."""
        return np.stack([self.log_likelihood(noise, z, constraint, constraint, places) for z in outputs])

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

    def log_likelihood(
        self,
        noise: Mechanism | ComponentNoise,
        released: npt.NDArray[Any],
        wanted: BoolArray,
        constraint: BoolArray,
        places: Measurements,
    ) -> FloatArray:
        """``log p(z | s)``, ``(N,)``, for every wanted state.

        One outside the constraint set has the density of its stand-in, the possible state that is nearest by
        ``places``.
        """
        if isinstance(noise, ComponentNoise):
            likelihood = noise.log_density(released, self.values, self._lattice is not None or self._tables is not None)
        else:
            likelihood = self._log_densities(noise, released, constraint)
        if wanted is constraint:
            return likelihood
        outside = np.flatnonzero(wanted & ~constraint)
        if len(outside):
            likelihood[outside] = likelihood[places.surrogates(outside, constraint)]
        return likelihood

    def _log_densities(self, noise: Mechanism, released: npt.NDArray[Any], constraint: BoolArray) -> FloatArray:
        """``log p(z | s)``, ``(N,)``, by noise that is the same for all possible states; minus infinity for others."""
        law = None
        if isinstance(noise, LatticeKNormMechanism | NormMechanism):
            law = noise.planar_law(self._reach + float(np.abs(released).max()))
        if law is not None:
            return law.log_densities(released, self._columns, constraint)
        density = noise.log_density_of_steps if isinstance(noise, LatticeKNormMechanism) else noise.log_density
        if constraint.all():
            return density(released, self.values)
        likelihood, possible = np.full(len(constraint), -inf), constraint.nonzero()[0]
        likelihood[possible] = density(released, self.values.take(possible, axis=0))
        return likelihood

    @cached_property
    def _columns(self) -> FloatArray:
        """The true values' coordinates, ``(d, N)``, as doubles, which hold those of lattices."""
        return np.ascontiguousarray(self.values.T, dtype=np.float64)

    @cached_property
    def _reach(self) -> float:
        """The largest of them."""
        return float(np.abs(self._columns).max())
