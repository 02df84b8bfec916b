"""Everything that a promise is made of, as one value: how a person's places are released.

`dphmm.release.engine` adds to it the engine that it makes: the public `ReleaseSettings`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import isfinite
from typing import Any, Literal, Self, get_args

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import check_budget, check_epsilon
from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.events.cap import Cap
from dphmm.facts import option_of, setting
from dphmm.geometry.hull import Membership
from dphmm.mechanisms.base import EXACT, MECHANISMS, TABLES, MechanismName
from dphmm.mechanisms.exact import Rational, rational
from dphmm.mechanisms.optimal_table import LARGEST_TABLE
from dphmm.model.model import MarkovModel
from dphmm.policy.by_component import Calibration
from dphmm.policy.expression import canonical_policy, parse_policy
from dphmm.policy.graph import PolicyGraph
from dphmm.policy.graph_text import policy_text
from dphmm.policy.hull_repair import Objective
from dphmm.policy.protection import REPAIR_LIMIT, Method, check_repair_limit
from dphmm.policy.zones import PolygonLayer
from dphmm.release.ledger import DAY_SECONDS
from dphmm.tables.json_toml import parse_json, parse_toml
from dphmm.tables.source import file_hash
from dphmm.tables.values import is_text, one_line, shorten, shown

GIVEN = "given:"
"""How the policy of an engine is written that was made from a graph rather than a text; its content hash follows."""

OPTIMAL_LIMIT = 64
"""The most states of a component whose program is solved, unless it is said."""

Fallback = Literal["none", "graph-exponential"]
"""What serves a component that is too large for the program of the best table."""

Outside = Literal["border", "omit"]
"""What becomes of a place outside the region."""
_LARGEST = 1e300

_PROMISE, _NOISE, _CAPS = "Promise", "Noise", "Schedule and caps"
"""The headings of options in help."""


@dataclass(frozen=True)
class Schedule:
    """When there is a release at all: as rarely as a target of error, a budget for a window of time, or both, allow.

    A moment without a release has a record all the same, with the prediction in it: that nothing was drawn is decided
    from the public belief alone, and says nothing of where the person is.

    Parameters
    ----------
    target_error
        Draw only where the estimate's expected distance from the truth would exceed this, in the unit of the
        measurements (kilometres for places). Left out, the least that the budget can pay for.
    window_epsilon
        What the budgets of all releases within any window may sum to. Left out, no such bound.
    window_seconds
        How long a window is; a day, unless it is said.

    Raises
    ------
    ConfigurationError
        When neither a target nor a budget is given, or a number is not positive and finite.

    Examples
    --------
    >>> Schedule(target_error=0.5).to_dict()
    {'target_error': 0.5}
    """

    target_error: float | None = setting(
        None,
        "Draw only where the estimate's expected error would be above this.",
        metavar="500m",
        heading=_CAPS,
        is_text=True,
    )
    window_epsilon: float | None = setting(
        None,
        "Draw so that no 24 hours cost more, and the budget lasts for all of them.",
        name="day_epsilon",
        heading=_CAPS,
    )
    window_seconds: float = setting(
        DAY_SECONDS,
        "With --day-epsilon: a window such as 8h instead of a day.",
        name="epsilon_window",
        metavar="TIME",
        heading=_CAPS,
        is_text=True,
    )

    def __post_init__(self) -> None:
        if self.target_error is None and self.window_epsilon is None:
            raise ConfigurationError("a schedule is without aim; give a target_error, a window_epsilon, or both")
        for name in ("target_error", "window_epsilon", "window_seconds"):
            value = getattr(self, name)
            if value is None:
                continue
            number = isinstance(value, int | float | np.floating | np.integer | Fraction) and value is not True
            if not number or not 0 < value < _LARGEST:
                raise ConfigurationError(f"{name} is {shown(value)}; give a positive number")
            object.__setattr__(self, name, float(value))
        if self.window_epsilon is not None:
            check_epsilon(self.window_epsilon, "window_epsilon")

    def to_dict(self) -> dict[str, Any]:
        """What was given, as plain JSON values.

        Returns
        -------
        dict
            What `from_value` takes.
        """
        found = {"target_error": self.target_error, "window_epsilon": self.window_epsilon}
        if self.window_epsilon is not None:
            found["window_seconds"] = self.window_seconds
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def from_value(cls, given: Any) -> Schedule | None:
        """A schedule, out of one or of what `to_dict` wrote; None for None.

        Parameters
        ----------
        given
            A schedule, a mapping, or None.

        Returns
        -------
        Schedule or None
            The schedule.

        Raises
        ------
        ConfigurationError
            When it is neither.
        """
        if given is None or isinstance(given, Schedule):
            return given
        if not isinstance(given, Mapping) or not set(given) <= {"target_error", "window_epsilon", "window_seconds"}:
            raise ConfigurationError(
                f"schedule is {shown(given)}; give a target_error, a window_epsilon and its window_seconds, or some"
            )
        return cls(**given)


A_DAY, A_DRAW = 3.0, 4.0
"""Where no budget is given: what the releases of a day may cost together, and with a target alone what one may.

With 3, nothing is more than e^3 = 20.1 times as likely from one of two days as from another that the policy joins to
it. A target is kept with the fewest draws where each is strong: see docs/how-to/budgets.md.
"""


@dataclass(frozen=True)
class Settings:
    """How places are released: the policy, the budget, the noise, the repair.

    Together with a model these settings determine the promise. They hold nothing about a person, and nothing that
    changes from one run to the next (files to read or write, randomness).

    Parameters
    ----------
    policy
        What must stay indistinguishable: a text, see `dphmm.policy.parse_policy`; or a `PolicyGraph` or a
        `networkx.Graph`, which is stored as text with its edges, at most 20,000. States that a networkx graph lacks
        have no edges. See `dphmm.policy.PolicyGraph.from_networkx`.
    epsilon
        The budget of a release; positive and finite.
    mechanism
        How noise is drawn: ``"lattice"`` (exact on a computer), ``"k-norm"``, ``"laplace"``, ``"planar-isotropic"``,
        ``"planar-laplace"``, ``"optimal"`` (the table of least expected error under the belief, by component, exact) or
        ``"graph-exponential"`` (a table by hops, exact).
    repair
        How exposed states get partners, so that the graph becomes protectable: ``"greedy"`` (Algorithm 1),
        ``"sequential"`` (Algorithm 3) or ``"exact"``; see `dphmm.protect`.
    objective
        What the exact repair minimises: the noise's squared ``"error"``, or the hull's ``"volume"``.
    membership
        How membership in a hull is decided: ``"halfspace"``, or ``"qp"``, the quadratic program of Equation (6).
    delta
        Left out, every possible state is hidden. Otherwise those of the δ-location set, 0 to below 1.
    allow_known
        Whether to go on where one state only is possible, releasing its place as it is.
    spacing
        For ``"lattice"``: the step of the published lattice in kilometres, a rational (a float is read as its shortest
        decimal). Left at 1/1000, everything released is a whole number of metres.
    outside
        What becomes of a place outside the region. ``"border"``: the nearest state stands for it, so that releases go
        on, and that a moment has one does not tell that the person was in the region. ``"omit"``: it has no release,
        and every reader sees when the person left and came back.
    repair_limit
        How much work an exact repair's search may do, about a second per thousand; see `dphmm.protect`. A repair that
        it cuts short is told by the records' `gap`.
    caps
        Bounds on how sure anybody may get of events over time: see `dphmm.events.Cap`. The budget of a release is then
        the largest, epsilon at most, at which no output passes one; a moment for which none is left has no release.
    priors
        With caps: a table of other first distributions for which they are kept too; see `dphmm.events.read_priors`.
    calibration
        What noise is measured for: one sensitivity hull for the whole policy graph (``"graph"``), or one for each of
        its connected components (``"component"``), so that a long edge in one place blurs no other. Which component a
        person is in may then be learned from a release. Tables are always made for components.
    schedule
        When anything is drawn: see `dphmm.Schedule`. The budget of a release is then at most epsilon, and a moment for
        which nothing is drawn has a record with the prediction. Left out, something is drawn at every moment.
    optimal_limit
        With ``mechanism="optimal"``: the most states of a component whose linear program is solved, 2 to 2048. A zone,
        all of whose states are joined, may have four times as many; other components never more than 400. It takes a
        few tenths of a second at 64 states, about one at 100 and several at 144.
    fallback
        With ``mechanism="optimal"``: what a larger component's table is: ``"graph-exponential"``, or ``"none"`` to
        refuse it.
    layers
        Polygons as values, see `dphmm.policy.PolygonLayer`: the policy refers to them by name, as in ``zone:home``,
        and reads no file.

    Raises
    ------
    BudgetError
        When epsilon is not positive and finite.
    ConfigurationError
        When another value is none of those above.

    Examples
    --------
    >>> from dphmm import ReleaseSettings
    >>> settings = ReleaseSettings(policy="utility:1km", epsilon=0.5)
    >>> ReleaseSettings.from_json(settings.to_json()) == settings
    True
    >>> print(ReleaseSettings(policy="complete", epsilon=1, delta=0.01).to_toml(), end="")
    policy = "complete"
    epsilon = 1.0
    mechanism = "lattice"
    repair = "exact"
    objective = "error"
    membership = "halfspace"
    delta = 0.01
    allow_known = false
    spacing = "1/1000"
    outside = "border"
    repair_limit = 5000
    caps = []
    calibration = "graph"
    optimal_limit = 64
    fallback = "none"
    """

    policy: str = setting(
        "utility:1km",
        "What must stay indistinguishable: utility:1km, complete, transition, categorical:LAYER.geojson, zone:…",
    )
    epsilon: float = setting(1.0, "The privacy budget of each release.")
    mechanism: MechanismName = setting(
        "lattice",
        "lattice (exact on a computer), k-norm, laplace, planar-isotropic, planar-laplace; by table: "
        "optimal, graph-exponential.",
        choices=MECHANISMS,
        shows_default=True,
        heading=_NOISE,
    )
    repair: Method = setting(
        "exact",
        "How exposed states get partners: greedy, sequential or exact.",
        choices=get_args(Method),
        shows_default=True,
        heading=_NOISE,
    )
    objective: Objective = setting(
        "error",
        "What the exact repair minimises: error or volume.",
        choices=get_args(Objective),
        shows_default=True,
        heading=_NOISE,
    )
    membership: Membership = setting(
        "halfspace",
        "How membership in a hull is decided: halfspace or qp.",
        choices=get_args(Membership),
        shows_default=True,
        heading=_NOISE,
    )
    delta: float | None = setting(
        None, "Hide among the most probable states of mass 1 - delta alone.", heading=_PROMISE
    )
    allow_known: bool = setting(False, "Go on where only one state is possible, which nothing hides.", heading=_PROMISE)
    spacing: Rational = setting(
        Fraction(1, 1000),
        "For lattice: the step of the published lattice.",
        metavar="KM",
        shows_default=True,
        heading=_NOISE,
    )
    outside: Outside = setting(
        "border",
        "A place outside the region: border (the nearest state) or omit.",
        choices=get_args(Outside),
        shows_default=True,
        heading=_PROMISE,
    )
    repair_limit: int = setting(
        REPAIR_LIMIT, "Work of an exact repair, about a second per thousand.", shows_default=True, heading=_NOISE
    )
    caps: tuple[Cap, ...] = ()
    priors: str | None = setting(
        None, "Keep caps for these first distributions too: a column each.", metavar="FILE.csv", heading=_CAPS
    )
    calibration: Calibration = setting(
        "graph",
        "Noise measured for the whole graph, or for each component alone.",
        choices=get_args(Calibration),
        shows_default=True,
        heading=_NOISE,
    )
    schedule: Schedule | None = None
    optimal_limit: int = setting(
        OPTIMAL_LIMIT,
        "For optimal: the most states of a component; a zone may have four times as many.",
        shows_default=True,
        heading=_NOISE,
    )
    fallback: Fallback = setting(
        "none",
        "For optimal, above that: graph-exponential, or none to refuse.",
        choices=get_args(Fallback),
        shows_default=True,
        heading=_NOISE,
    )
    layers: tuple[PolygonLayer, ...] = ()

    def __post_init__(self) -> None:
        self._set("policy", policy_text(self.policy))
        if not self.policy.strip() or not is_text(self.policy):
            raise ConfigurationError(f"policy is {shown(self.policy)}; give a text such as utility:1km")
        self._set("epsilon", check_budget(_number("epsilon", self.epsilon)))
        for one in dataclasses.fields(self):
            about, value = option_of(one), getattr(self, one.name)
            if about is not None and about.choices and (not isinstance(value, str) or value not in about.choices):
                raise ConfigurationError(f"{one.name} is {shorten(value)}; choose one of {', '.join(about.choices)}")
        if self.delta is not None:
            self._set("delta", _number("delta", self.delta))
            if not (isfinite(self.delta) and 0 <= self.delta < 1):
                raise ConfigurationError(f"delta is {self.delta}; give a number from 0 to below 1")
        if not isinstance(self.allow_known, bool):
            raise ConfigurationError(f"allow_known is {self.allow_known!r}; give true or false")
        try:
            self._set("repair_limit", check_repair_limit(self.repair_limit))
            self._set("spacing", rational(self.spacing, "spacing"))
        except InvalidInputError as problem:
            raise ConfigurationError(str(problem)) from None
        limit = self.optimal_limit
        if isinstance(limit, bool) or not isinstance(limit, int) or not 2 <= limit <= LARGEST_TABLE:
            raise ConfigurationError(f"optimal_limit is {shown(limit)}; give a number of states, 2 to {LARGEST_TABLE}")
        self._set("caps", _values("caps", self.caps))
        if self.mechanism in TABLES:
            self._set("calibration", "component")
        if self.priors is not None and not (isinstance(self.priors, str) and self.priors and self.caps):
            raise ConfigurationError(
                f"priors is {shown(self.priors)}; give the path of a table, beside caps to be kept for them"
            )
        self._set("schedule", Schedule.from_value(self.schedule))
        self._set("layers", _values("layers", () if self.layers is None else self.layers))
        if len({layer.name for layer in self.layers}) < len(self.layers):
            raise ConfigurationError("two layers have one name; give each a name of its own")

    @property
    def is_exact(self) -> bool:
        """Whether noise is drawn by integers alone: the promise holds for the numbers that leave the computer."""
        return self.mechanism in EXACT

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    # ---- as text -------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Every setting by name, as plain JSON values: what is left out is None, the spacing a text."""
        plain: dict[str, Any] = {"spacing": str(self.spacing), "caps": [cap.to_dict() for cap in self.caps]}
        plain["schedule"] = None if self.schedule is None else self.schedule.to_dict()
        plain["layers"] = [dataclasses.asdict(layer) for layer in self.layers] or None
        return {**{name: getattr(self, name) for name in NAMES}, **plain}

    @classmethod
    @checked
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The settings that `to_dict` wrote; what is missing takes its default.

        Raises
        ------
        ConfigurationError
            For a name that is unknown, or a value that is none.
        BudgetError
            When epsilon is not positive and finite.
        """
        if not isinstance(values, Mapping):
            raise ConfigurationError(f"settings are {shorten(values)}; give a mapping of names to values")
        unknown = [name for name in values if name not in NAMES]
        if unknown:
            raise ConfigurationError(f"setting {unknown[0]!r} is unknown; the settings are {', '.join(NAMES)}")
        return cls(**values)

    def to_json(self) -> str:
        """The settings as a JSON object on one line."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    @classmethod
    @checked
    def from_json(cls, text: str) -> Self:
        """The settings that `to_json` wrote.

        Raises
        ------
        ConfigurationError
            When the text is no JSON object, or as `from_dict` says.
        BudgetError
            When epsilon is not positive and finite.
        """
        try:
            values = parse_json(text)
        except ValueError as problem:
            raise ConfigurationError(f"settings are no JSON ({problem}); write them with to_json") from None
        if not isinstance(values, dict):
            raise ConfigurationError(f"settings are a JSON {type(values).__name__}; give an object")
        return cls.from_dict(values)

    def to_toml(self) -> str:
        """The settings as TOML, which has no word for what is left out."""
        import tomli_w

        return tomli_w.dumps({name: value for name, value in self.to_dict().items() if value is not None})

    @classmethod
    @checked
    def from_toml(cls, text: str) -> Self:
        """The settings that `to_toml` wrote.

        Raises
        ------
        ConfigurationError
            When the text is no TOML, or as `from_dict` says.
        BudgetError
            When epsilon is not positive and finite.
        """
        try:
            values = parse_toml(text)
        except ValueError as problem:
            raise ConfigurationError(f"settings are no TOML ({one_line(problem)}); write them with to_toml") from None
        return cls.from_dict(values)

    @cached_property
    def content_hash(self) -> str:
        """The SHA-256 of `canonical`, in hexadecimal. Errors are the same."""
        return hashlib.sha256(self.canonical.encode("utf-8")).hexdigest()

    @cached_property
    def canonical(self) -> str:
        """What the settings say, as JSON of one form: the content of files that they name counts, by its SHA-256.

        Raises
        ------
        DataFileError
            When a file that they name cannot be read.
        """
        said = {
            "policy": self.policy if self.policy.startswith(GIVEN) else canonical_policy(self.policy, self.layers),
            "caps": [cap.canonical for cap in self.caps],
            "priors": None if self.priors is None else file_hash(self.priors, "of the priors"),
        }
        values = {**self.to_dict(), **said}
        del values["layers"]  # the policy holds their content, and not what they are called
        return json.dumps(values, sort_keys=True, allow_nan=False)

    # ---- at work -------------------------------------------------------------------------------------------------

    def graph(self, model: MarkovModel) -> PolicyGraph:
        """The policy graph over a model's states.

        Raises
        ------
        ConfigurationError
            When the model does not say what its states are, or the policy was given as a graph and has no text.
        PolicyError, DataFileError
            As `dphmm.policy.parse_policy`.
        """
        if self.policy.startswith(GIVEN):
            raise ConfigurationError(f"policy {self.policy[:24]}… was given as a graph; give its text, or that graph")
        return parse_policy(self.policy, model.space, model.structure, self.layers)


NAMES = tuple(field.name for field in dataclasses.fields(Settings))
"""The names of all settings."""


_LISTED: Mapping[str, tuple[type[Any], tuple[str, ...], str, str]] = {
    "caps": (Cap, Cap.NAMES, "caps on events", "an event and a probability for each"),
    "layers": (
        PolygonLayer,
        ("name", "geojson"),
        "layers with a name and their geojson",
        "a name and the geojson of each",
    ),
}
"""Setting that is a list → the kind of its values, what one is made of (two at least), and both in words."""


def _values(name: str, given: Any) -> tuple[Any, ...]:
    """Caps or layers as values, out of such values or of what `Settings.to_dict` wrote."""
    kind, parts, several, each = _LISTED[name]
    if isinstance(given, kind | str | Mapping) or not isinstance(given, Iterable):
        raise ConfigurationError(f"{name} is {shown(given)}; give a list of {several}")
    found = []
    for one in given:
        if not isinstance(one, kind):
            if not isinstance(one, Mapping) or not set(parts[:2]) <= set(one) <= set(parts):
                raise ConfigurationError(f"{name} hold {shown(one)}; give {each}")
            one = kind(**one)
        found.append(one)
    return tuple(found)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        raise ConfigurationError(f"{name} is {shown(value)}; give a number")
    try:
        return float(value)
    except OverflowError:
        raise ConfigurationError(f"{name} is {shown(value)}; give a number below 1e308") from None
