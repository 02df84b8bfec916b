"""What a release says in public, and what only its owner may know."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from math import isfinite
from typing import Any

from dphmm.arguments import checked
from dphmm.errors import InvalidInputError
from dphmm.tables.json_toml import parse_json
from dphmm.tables.values import as_number, one_line, shorten

NO_GAIN = 0.05
"""A gain below this counts as none."""


@dataclass(frozen=True)
class ReleaseRecord:
    """What happened at one time step: nothing in it depends on the true state except `released`.

    Everything else is a function of the public model, policy and past releases (and of `released` itself), so that
    publishing the record costs no more than publishing the release. Lengths are in the unit of the measurements,
    kilometres for locations.

    With ``C`` the constraint set, ``G`` the repaired, that is, protectable graph on it and ``K`` the body that the
    noise is drawn from (for each connected component its own, with ``calibration="component"``), the release ``z``
    satisfies, for all measurable sets ``S`` of releases:

    * ``P(z in S | j) <= exp(epsilon) P(z in S | k)`` for every edge ``jk`` of ``G`` (Definition 4.4, Theorem 6.2);
    * ``P(z in S | j) <= exp(constrained_factor * epsilon) P(z in S | k)`` for all ``j, k`` in ``C`` (Theorem 6.3).

    Parameters
    ----------
    index
        The number of the release within its session, from 0.
    steps
        How many time steps of the model lie between this release and the one before (0 for the first).
    released
        ``z``: the released measurement; None where nothing was drawn.
    estimate
        The posterior mean of the measurement given all releases so far: a better estimate than `released`, at no
        privacy cost. Where nothing was drawn it is the prediction.
    epsilon
        The budget of this release; 0 where nothing was drawn.
    mechanism
        The name of the mechanism.
    exact
        Whether it draws by integers alone, so that the two statements above hold for the numbers that leave the
        computer; otherwise they hold for the real numbers that the program stands for.
    expected_error
        The root mean square distance of a release from the measurement it is drawn around. Where the noise differs by
        component, the mean over ``C`` by the belief before the release: which component this one came from is no part
        of it. Infinite where nothing was drawn.
    possible
        The size of ``C``.
    least_protection
        The least degree of protection over ``C`` after the repair, open states left out; at least 2, but for
        `already_known` and where all of ``C`` is open.
    added
        The edges ``(i, j)`` that the repair added.
    area
        The volume of the sensitivity hull (of ``G``): the area in the plane, 0 below full dimension. In three and more
        dimensions that of ``K``.
    dimension
        The dimension of the sensitivity hull.
    constrained_factor
        ``max ‖f_j - f_k‖_K`` over ``j, k`` in ``C``; infinite where a release can rule a state out, and where there
        are several `components`: between two of them nothing is promised.
    certified
        Whether the repair is proven to be the best.
    gap
        How much of what the repair minimises a better one could save at most, from 0 (proven best) to 1.
    already_known
        Whether ``C`` held one state: the adversary knew it, and `released` is its exact measurement.
    settings, model
        The content hashes of the `Settings` and of the model that the release was made with.
    estimate_radius
        The expected distance of `estimate` from the person, to a reader who knows the model and all releases so
        far: right on average for people who move as the model says, and too small for others.
    adversary_error
        The expected distance of their best guess: of the point that is expected to be nearest to the person. It is told
        at most 2 % too small, and never too large.
    adversary_certainty
        The probability of the state that they hold most probable.
    epsilon_so_far
        The sum of the budgets of all releases about the person up to this one (Theorem 7.1), those that `estimate` has
        forgotten among them; None where those are unknown.
    epsilon_last_day
        The same of the releases in the 24 hours that end with this one; None also where the model has no step.
    reach
        For each cap on an event how probable some output of this release could have made it, as far as outputs were
        looked at; the most that any could is between this and the cap.
    components
        How many components with noise of their own ``C`` falls into: the connected components of ``G``, or 1 where one
        hull serves all. An open state is one.
    component_size, component_certainty, component_error
        Of the likeliest component given all releases so far, this one included, which is what every reader of
        them can work out: its number of possible states, its probability, and the root mean square distance of its
        releases from the measurement they are drawn around. That this one came from it is certain only where the
        probability is 1; no field tells more of where it came from than `released` does.
    open
        Whether the likeliest component is an open state: `released` is then its place as it is, but for a chance of
        ``1 - component_certainty``. It cost nothing on any edge, as no open state has one; `epsilon` is booked all the
        same, because a budget is booked before the draw, when it is not known what will come of it.
    least_error, mean_error, gain
        With ``mechanism="optimal"``, otherwise None: what the expected error of no table over the same components is
        below, as far as the program proves it (None where a component has a fallback); the expected error of the
        posterior mean of K-norm noise with the same budget on the same components, each known, to about 2 %; and by
        what share `expected_error` is less than that. Where that is below 5 % (`gains_nothing`) the program gains
        nothing that K-norm noise does not have; it may be negative, as a mean may lie between places.
    reason
        Why nothing was drawn, which only public things decide: ``"target"`` or ``"budget"``, a `Schedule` says, or
        ``"caps"`` on events. Empty where something was.
    held_radius
        The radius of a circle about `estimate` that holds 90 % of moments on average over people the model was not
        learned from, as far as people like the training people were followed; see `dphmm.model.point_estimate`. None
        where the model says nothing of that, or it is not known when the last draw was.
    """

    index: int
    steps: int
    released: tuple[float, ...] | None
    estimate: tuple[float, ...]
    epsilon: float
    mechanism: str
    exact: bool
    expected_error: float
    possible: int
    least_protection: int
    added: tuple[tuple[int, int], ...]
    area: float
    dimension: int
    constrained_factor: float
    certified: bool
    gap: float
    already_known: bool
    settings: str
    model: str
    estimate_radius: float
    adversary_error: float
    adversary_certainty: float
    epsilon_so_far: float | None
    epsilon_last_day: float | None
    reach: tuple[float, ...] = ()
    components: int = 1
    component_size: int = 0
    component_certainty: float = 1.0
    component_error: float = 0.0
    open: bool = False
    reason: str = ""
    least_error: float | None = None
    mean_error: float | None = None
    gain: float | None = None
    held_radius: float | None = None

    @property
    def withheld(self) -> bool:
        """Whether nothing was drawn at this moment; the record tells the prediction."""
        return self.reason != ""

    @property
    def gains_nothing(self) -> bool:
        """Whether the table of least error gains nothing: its `gain` is below 5 %."""
        return self.gain is not None and self.gain < NO_GAIN

    @property
    def constrained_epsilon(self) -> float:
        """``constrained_factor * epsilon``: the level of constrained differential privacy of this step."""
        return self.constrained_factor * self.epsilon if self.constrained_factor > 0 else 0.0

    def to_json(self) -> str:
        """The record as a JSON object on one line, from which `from_json` makes it again, to the last bit.

        An infinite number is written as ``Infinity``, which Python's JSON reads.

        Returns
        -------
        str
            The JSON text.
        """
        return json.dumps(vars(self))

    @classmethod
    @checked
    def from_json(cls, text: str) -> ReleaseRecord:
        """The record that `to_json` wrote.

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
            When the text is no record.
        """
        try:
            values, read = parse_json(text), _readers()
            if not isinstance(values, dict) or values.keys() != read.keys():
                raise ValueError("its names are others")
            return cls(**{name: read[name](value, name) for name, value in values.items()})
        except ValueError as problem:
            raise InvalidInputError(f"text is no release record ({one_line(problem)})") from None

    @staticmethod
    def cost_from_json(text: str) -> tuple[float, float]:
        """The budget and the constrained factor of a record that `to_json` wrote; nothing else is looked at.

        Parameters
        ----------
        text
            What `to_json` wrote.

        Returns
        -------
        tuple of float
            The budget, and the constrained factor.

        Raises
        ------
        ValueError, AttributeError
            When the text says neither.
        """
        values = parse_json(text)
        return (
            _number(values.get("epsilon"), "epsilon"),
            _factor(values.get("constrained_factor"), "constrained_factor"),
        )


@cache
def _readers() -> dict[str, Callable[[Any, str], Any]]:
    """What reads each entry of a record."""
    kinds = {field.name: str(field.type) for field in fields(ReleaseRecord)}
    return {name: _factor if name in _MAY_BE_INFINITE else _READ[kind] for name, kind in kinds.items()}


def _whole_number(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
        raise ValueError(f"{name} is {shorten(value)}; give a whole number")
    return value


def _factor(value: Any, name: str) -> float:
    number = as_number(value, name)
    if not number >= 0:
        raise ValueError(f"{name} is {shorten(value)}; give a number that is not negative")
    return number


def _number(value: Any, name: str) -> float:
    number = as_number(value, name)
    if not isfinite(number):
        raise ValueError(f"{name} is {shorten(value)}; give a finite number")
    return number


def _if_told(value: Any, name: str) -> float | None:
    return None if value is None else _number(value, name)


def _point(value: Any, name: str) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is {shorten(value)}; give a list of numbers")
    return tuple(_number(part, name) for part in value)


def _drawn(value: Any, name: str) -> tuple[float, ...] | None:
    return None if value is None else _point(value, name)


def _edges(value: Any, name: str) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, list) or not all(isinstance(edge, list) and len(edge) == 2 for edge in value):
        raise ValueError(f"{name} is {shorten(value)}; give a list of pairs")
    return tuple((_whole_number(first, name), _whole_number(second, name)) for first, second in value)


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {shorten(value)}; give true or false")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is {shorten(value)}; give a text")
    return value


_LARGEST = 1 << 62
_READ: Mapping[str, Callable[[Any, str], Any]] = {
    "int": _whole_number,
    "float": _number,
    "float | None": _if_told,
    "str": _text,
    "bool": _flag,
    "tuple[float, ...]": _point,
    "tuple[float, ...] | None": _drawn,
    "tuple[tuple[int, int], ...]": _edges,
}
"""The type of a field, as it is written above → what reads it out of JSON."""
_MAY_BE_INFINITE = frozenset({"expected_error", "component_error", "constrained_factor"})


@dataclass(frozen=True)
class PrivateDiagnostics:
    """What needs the truth to compute. Never publish it: it tells where the person was.

    Parameters
    ----------
    index
        The number of the release that this belongs to.
    true_state
        The state that stands for where the person was.
    used_state
        The state whose measurement was released with noise.
    stood_in
        Whether `used_state` is not `true_state`: the model did not think the true state possible, and the nearest
        possible one, its surrogate, stood in.
    error
        The distance of the release from where the person was; NaN where nothing was drawn.
    estimate_error
        The distance of the posterior mean from where the person was.
    degree_of_protection
        The degree of protection of `used_state`.
    expected_error
        The root mean square distance of releases of `used_state` from the measurement there.
    """

    index: int
    true_state: int
    used_state: int
    stood_in: bool
    error: float
    estimate_error: float
    degree_of_protection: int
    expected_error: float
