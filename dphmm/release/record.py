"""Public release records and private diagnostics."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from math import isfinite
from typing import Any, Literal

from dphmm.errors import InvalidInputError
from dphmm.tables.json_toml import parse_json
from dphmm.tables.values import as_number, shorten, shorten_message
from dphmm.validation import MAX_INTEGER, check_arguments

# The evidence of a record's guarantee.
Soundness = Literal["verified", "trusted"]

# A relative gain of tables below this is negligible.
NO_GAIN = 0.05


@dataclass(frozen=True)
class ReleaseRecord:
    """The public record of one timestep. Only `released` depends on the true state.

    All other fields are functions of the public model, the policy, past releases and `released` itself. Therefore
    publishing the record costs no more privacy than publishing the release. Lengths are in the unit of the
    measurements, kilometres for locations.

    Let ``C`` be the constraint set, ``G`` the repaired (protectable) graph on it, and ``K`` the body from which the
    noise is sampled. With ``noise_scope="component"``, each connected component has its own body. For all measurable
    sets ``S`` of releases, the release ``z`` satisfies:

    * ``P(z in S | j) <= exp(epsilon) P(z in S | k)`` for every edge ``jk`` of ``G`` (Definition 4.4, Theorem 6.2);
    * ``P(z in S | j) <= exp(constrained_dp_factor * epsilon) P(z in S | k)`` for all ``j, k`` in ``C`` (Theorem 6.3).

    Parameters
    ----------
    index
        Index of the release within its session, from 0.
    steps
        Number of timesteps between the previous release and this one; 0 for the first.
    released
        ``z``: the released measurement; None if the timestep was withheld.
    estimate
        Posterior mean of the measurement given all releases so far. It is a better estimate than `released` and costs
        no privacy. For a withheld timestep it is the prediction.
    epsilon
        Budget of this release; 0 if the timestep was withheld.
    mechanism
        Name of the mechanism.
    soundness
        ``"verified"`` if the guarantee was checked from the parameters of noise of this package; ``"trusted"`` if it
        follows from the statements of a registered mechanism or of an engine with replaced methods, which were checked
        on samples at most; see `dphmm.mechanisms.check_mechanism`. The name of such a mechanism contains its version.
    is_exact
        Whether the mechanism samples with integer arithmetic only. If so, the two statements above hold for the
        published numbers. Otherwise they hold for real-valued noise.
    expected_error
        Root mean square distance of a release from the measurement to which noise is added. If the noise differs by
        component, it is averaged over ``C`` under the belief before the release, so it does not depend on the component
        of this release. It is infinite if the timestep was withheld.
    num_possible_states
        Size of ``C``.
    min_degree_of_protection
        Smallest degree of protection over the protected states of ``C`` after the repair. It is at least 2, except if
        `is_singleton` is true or no state of ``C`` is protected.
    added_edges
        Edges ``(i, j)`` that the repair added.
    hull_volume
        Volume of the sensitivity hull of ``G``: the area in the plane, 0 below full dimension. In three and more
        dimensions, the volume of ``K``.
    dimension
        Dimension of the sensitivity hull.
    constrained_dp_factor
        ``max ‖f_j - f_k‖_K`` over ``j, k`` in ``C``. It is infinite if a release can exclude a state, and if there are
        several components: nothing is guaranteed across components.
    repair_is_optimal
        Whether the repair is proven optimal.
    repair_optimality_gap
        Largest fraction of the repair's objective that a better repair could save, from 0 (proven optimal) to 1.
    is_singleton
        Whether ``C`` contained a single state, which is not open or was withheld. If released, `released` is its exact
        measurement. The adversary knew the state, or with ``delta`` every possible state is released as it.
    settings_hash, model_hash
        Content hashes of the `Settings` and of the model of the release.
    expected_estimate_error
        Expected distance of `estimate` from the user's location, for an adversary who knows the model and all releases
        so far. It is correct on average for users who move as the model states, and too small for those who move
        farther. Models with calibrated radii multiply it by the factor that makes it correct on average over users like
        the training users and over the noise of the calibration. With weak noise or frequent releases it may be too
        small.
    adversary_error
        Lower bound of the expected error of the adversary's best point estimate, the point with the smallest expected
        distance from the user. If the user cannot be outside the region, it is at most 2 % too small for users at the
        points of the states, and counts the position within a cell for a single cell only.
    max_posterior_probability
        Largest posterior probability that the adversary assigns to a state.
    epsilon_total
        Sum of the budgets of all releases about the user up to this one (Theorem 7.1), including releases that
        `estimate` ignores; None if unknown.
    epsilon_24h
        Sum of the budgets of the releases in the 24 hours that end with this one; None if unknown, or if the model has
        no step_seconds.
    max_event_probabilities
        For each event cap, the largest probability of its event after any of the outputs that were checked. The maximum
        over all outputs lies between this value and the cap.
    num_components
        Number of components of ``C`` with separate noise: the connected components of ``G``, or 1 if one hull serves
        all. An unprotected state is a component.
    component_num_states, component_posterior, component_error
        Fields of the component that is most probable given all releases so far, including this one: its number of
        possible states, its probability, and the root mean square distance of its releases from the measurement to
        which noise is added. Every recipient of the releases can compute them. The release is certain to come from this
        component only if its probability is 1. No field reveals more about the component than `released` does.
    is_unprotected
        Whether the most probable component is an unprotected state. Then `released` is its exact location, except with
        probability ``1 - component_posterior``. The release cost nothing on any edge, because an unprotected state has
        no edges. `epsilon` is still charged, because a budget is charged before sampling, when the outcome is unknown.
    table_error_bound, knorm_estimate_error, table_gain
        With ``mechanism="optimal"``, otherwise None. `table_error_bound` is a proven lower bound on the expected error
        of any table over the same components, or None if a component has a fallback. `knorm_estimate_error` is the
        expected error of the posterior mean of K-norm noise with the same budget on the same components, if each is
        known, with an error of about 2 %. `table_gain` is the fraction by which `expected_error` is smaller than that.
        If it is below 5 % (`table_has_no_gain`), the linear program has no advantage over K-norm noise. It may be
        negative, because a mean may lie between locations.
    withheld_reason
        Why the timestep was withheld, decided from public information: ``"target"`` or ``"budget"`` by a `Schedule`,
        ``"budget"`` by the limits of a session, or ``"caps"`` on events. Empty if it was not withheld.
    calibrated_radius_90
        Radius of a circle about `estimate` that contains the user at 90 % of timesteps or more, with each noise of the
        calibration, on average over users who are not training users, if these resemble the training users who were
        followed; see `dphmm.model.point_estimate`.
        None if the model contains no radii, or the time of the last release is unknown.
    """

    index: int
    steps: int
    released: tuple[float, ...] | None
    estimate: tuple[float, ...]
    epsilon: float
    mechanism: str
    is_exact: bool
    expected_error: float
    num_possible_states: int
    min_degree_of_protection: int
    added_edges: tuple[tuple[int, int], ...]
    hull_volume: float
    dimension: int
    constrained_dp_factor: float
    repair_is_optimal: bool
    repair_optimality_gap: float
    is_singleton: bool
    settings_hash: str
    model_hash: str
    expected_estimate_error: float
    adversary_error: float
    max_posterior_probability: float
    epsilon_total: float | None
    epsilon_24h: float | None
    max_event_probabilities: tuple[float, ...] = ()
    num_components: int = 1
    component_num_states: int = 0
    component_posterior: float = 1.0
    component_error: float = 0.0
    is_unprotected: bool = False
    withheld_reason: str = ""
    table_error_bound: float | None = None
    knorm_estimate_error: float | None = None
    table_gain: float | None = None
    calibrated_radius_90: float | None = None
    soundness: Soundness = "verified"

    @property
    def withheld(self) -> bool:
        """Whether the timestep was withheld. The record then contains the prediction."""
        return self.withheld_reason != ""

    @property
    def table_has_no_gain(self) -> bool:
        """Whether the gain of the optimal table is negligible: `table_gain` is below 5 %."""
        return self.table_gain is not None and self.table_gain < NO_GAIN

    @property
    def constrained_epsilon(self) -> float:
        """The constrained-DP level of this step: ``constrained_dp_factor * epsilon``."""
        return self.constrained_dp_factor * self.epsilon if self.constrained_dp_factor > 0 else 0.0

    def to_json(self) -> str:
        """Return the record as a JSON object on one line. `from_json` restores it bit for bit.

        Infinity is written as ``Infinity``, which Python's JSON parser accepts.

        Returns
        -------
        str
            The JSON text.
        """
        # Records of this package's noise are as they were before the field existed.
        values = {name: value for name, value in vars(self).items() if (name, value) != ("soundness", "verified")}
        return json.dumps(values)

    @classmethod
    @check_arguments
    def from_json(cls, text: str) -> ReleaseRecord:
        """Create a record from the text of `to_json`.

        Parameters
        ----------
        text
            The JSON text.

        Returns
        -------
        ReleaseRecord
            The record.

        Raises
        ------
        InvalidInputError
            If the text is not a record.
        """
        try:
            values = parse_json(text)
            read = _get_parsers()
            if not isinstance(values, dict) or {"soundness", *values} != read.keys():
                raise ValueError("it has other fields")
            return cls(**{name: read[name](value, name) for name, value in values.items()})
        except ValueError as problem:
            raise InvalidInputError(f"text is not a release record: {shorten_message(problem)}") from None

    @staticmethod
    def cost_from_json(text: str) -> tuple[float, float]:
        """Return the budget and the constrained-DP factor from the text of `to_json`.

        Other fields are not parsed.

        Parameters
        ----------
        text
            Text of `to_json`.

        Returns
        -------
        tuple of float
            The budget, and the constrained-DP factor.

        Raises
        ------
        ValueError, AttributeError
            If the text does not contain them.
        """
        values = parse_json(text)
        return (
            _parse_finite_number(values.get("epsilon"), "epsilon"),
            _parse_factor(values.get("constrained_dp_factor"), "constrained_dp_factor"),
        )


@cache
def _get_parsers() -> dict[str, Callable[[Any, str], Any]]:
    """Return the parser of each field of a record."""
    types = {field.name: str(field.type) for field in fields(ReleaseRecord)}
    return {
        name: _parse_factor if name in _UNBOUNDED_FIELDS else _PARSERS_BY_TYPE[type_name]
        for name, type_name in types.items()
    }


def _parse_soundness(value: Any, name: str) -> str:
    if value not in ("verified", "trusted"):
        raise ValueError(f"{name} must be 'verified' or 'trusted', got {shorten(value)}")
    return str(value)


def _parse_integer(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_INTEGER:
        raise ValueError(f"{name} must be a non-negative integer, got {shorten(value)}")
    return value


def _parse_factor(value: Any, name: str) -> float:
    number = as_number(value, name)
    if not number >= 0:
        raise ValueError(f"{name} must be a non-negative number, got {shorten(value)}")
    return number


def _parse_finite_number(value: Any, name: str) -> float:
    number = as_number(value, name)
    if not isfinite(number):
        raise ValueError(f"{name} must be a finite number, got {shorten(value)}")
    return number


def _parse_optional_number(value: Any, name: str) -> float | None:
    return None if value is None else _parse_finite_number(value, name)


def _parse_point(value: Any, name: str) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list of numbers, got {shorten(value)}")
    return tuple(_parse_finite_number(part, name) for part in value)


def _parse_optional_point(value: Any, name: str) -> tuple[float, ...] | None:
    return None if value is None else _parse_point(value, name)


def _parse_edges(value: Any, name: str) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, list) or not all(isinstance(edge, list) and len(edge) == 2 for edge in value):
        raise ValueError(f"{name} must be a list of pairs, got {shorten(value)}")
    return tuple((_parse_integer(first, name), _parse_integer(second, name)) for first, second in value)


def _parse_flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {shorten(value)}")
    return value


def _parse_string(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string, got {shorten(value)}")
    return value


# Type of a field, as annotated in `ReleaseRecord` → parser of its JSON value.
_PARSERS_BY_TYPE: Mapping[str, Callable[[Any, str], Any]] = {
    "int": _parse_integer,
    "float": _parse_finite_number,
    "float | None": _parse_optional_number,
    "str": _parse_string,
    "Soundness": _parse_soundness,
    "bool": _parse_flag,
    "tuple[float, ...]": _parse_point,
    "tuple[float, ...] | None": _parse_optional_point,
    "tuple[tuple[int, int], ...]": _parse_edges,
}
_UNBOUNDED_FIELDS = frozenset({"expected_error", "component_error", "constrained_dp_factor"})


@dataclass(frozen=True)
class PrivateDiagnostics:
    """Diagnostics of a release that require the true state. Private: do not publish.

    They reveal where the user was.

    Parameters
    ----------
    index
        Index of the release.
    true_state
        State of the user's location.
    released_state
        State of which the measurement was released with noise.
    used_surrogate
        Whether `released_state` differs from `true_state`: the true state was not possible under the model, so its
        surrogate, the nearest possible state, was released.
    error
        Distance of the release from the user's location; NaN if the timestep was withheld.
    estimate_error
        Distance of the posterior mean from the user's location.
    degree_of_protection
        Degree of protection of `released_state`.
    expected_error
        Root mean square distance of releases of `released_state` from its measurement.
    """

    index: int
    true_state: int
    released_state: int
    used_surrogate: bool
    error: float
    estimate_error: float
    degree_of_protection: int
    expected_error: float
