"""What a release says in public, and what only its owner may know."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from dphmm.errors import InvalidInputError


@dataclass(frozen=True)
class ReleaseRecord:
    """What happened at one time step: nothing in it depends on the true state except `released`.

    Everything else is a function of the public model, policy and past releases (and of `released` itself), so that
    publishing the record costs no more than publishing the release. Lengths are in the unit of the measurements,
    kilometres for locations.

    With ``C`` the constraint set, ``G`` the repaired, that is, protectable graph on it and ``K`` the body that the
    noise is drawn from, the release ``z`` satisfies, for all measurable sets ``S`` of releases:

    * ``P(z in S | j) <= exp(epsilon) P(z in S | k)`` for every edge ``jk`` of ``G`` (Definition 4.4, Theorem 6.2);
    * ``P(z in S | j) <= exp(constrained_factor * epsilon) P(z in S | k)`` for all ``j, k`` in ``C`` (Theorem 6.3).

    Parameters
    ----------
    index
        The number of the release within its session, from 0.
    steps
        How many time steps of the model lie between this release and the one before (0 for the first).
    released
        ``z``: the released measurement.
    estimate
        The posterior mean of the measurement given all releases so far: a better estimate than `released`, at no
        privacy cost.
    epsilon
        The budget of this release.
    mechanism
        The name of the mechanism.
    expected_error
        The root mean square distance of `released` from the measurement it was drawn around.
    possible
        The size of ``C``.
    least_protection
        The least degree of protection over ``C`` after the repair; at least 2, but for `already_known`.
    added
        The edges ``(i, j)`` that the repair added.
    area
        The volume of the sensitivity hull (of ``G``): the area in the plane, 0 below full dimension.
    dimension
        The dimension of the sensitivity hull.
    constrained_factor
        ``max ‖f_j - f_k‖_K`` over ``j, k`` in ``C``; infinite where a release can rule a state out.
    certified
        Whether the repair is proven to be the best.
    already_known
        Whether ``C`` held one state: the adversary knew it, and `released` is its exact measurement.
    settings, model
        The content hashes of the `ReleaseSettings` and of the model that the release was made with.
    """

    index: int
    steps: int
    released: tuple[float, ...]
    estimate: tuple[float, ...]
    epsilon: float
    mechanism: str
    expected_error: float
    possible: int
    least_protection: int
    added: tuple[tuple[int, int], ...]
    area: float
    dimension: int
    constrained_factor: float
    certified: bool
    already_known: bool
    settings: str
    model: str

    @property
    def constrained_epsilon(self) -> float:
        """``constrained_factor * epsilon``: the level of constrained differential privacy of this step."""
        return self.constrained_factor * self.epsilon if self.constrained_factor > 0 else 0.0

    def to_json(self) -> str:
        """The record as a JSON object on one line, from which `from_json` makes it again, to the last bit.

        An infinite number is written as ``Infinity``, which Python's JSON reads.
        """
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> ReleaseRecord:
        """The record that `to_json` wrote.

        Raises
        ------
        InvalidInputError
            When the text is no record.
        """
        try:
            return cls(**{name: _tuples(value) for name, value in json.loads(text).items()})
        except (ValueError, TypeError, AttributeError) as problem:
            raise InvalidInputError(f"text is no release record ({problem})") from None


def _tuples(value: Any) -> Any:
    return tuple(_tuples(entry) for entry in value) if isinstance(value, list) else value


@dataclass(frozen=True)
class PrivateDiagnostics:
    """What needs the truth to compute. Never publish it: it tells where the person was.

    Parameters
    ----------
    index
        The number of the release that this belongs to.
    true_state
        Where the person was.
    used_state
        The state whose measurement was released with noise.
    stood_in
        Whether `used_state` is not `true_state`: the model did not think the true state possible, and the nearest
        possible one, its surrogate, stood in.
    error
        The distance of the release from the true measurement.
    estimate_error
        The distance of the posterior mean from the true measurement.
    degree_of_protection
        The degree of protection of `used_state`.
    """

    index: int
    true_state: int
    used_state: int
    stood_in: bool
    error: float
    estimate_error: float
    degree_of_protection: int
