"""The settings that determine a release: policy, budget, noise and repair.

Together with a model they determine the guarantee. `dphmm.release.engine` extends `Settings` to the public
`ReleaseSettings`, which creates engines.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypedDict

from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.events.cap_budget import Cap
from dphmm.geometry.sensitivity_hull import Membership
from dphmm.mechanisms.exact_sampling import Rational, parse_rational
from dphmm.mechanisms.noise_tables import MAX_TABLE_LOCATIONS
from dphmm.mechanisms.registry import TABLE_MECHANISMS, MechanismLike, is_exact_mechanism, resolve_mechanism
from dphmm.model.model import MarkovModel
from dphmm.policy.component_bodies import NoiseScope
from dphmm.policy.expression import canonicalize_policy, parse_policy
from dphmm.policy.graph import PolicyGraph, PolicyLike
from dphmm.policy.graph_text import format_policy_text
from dphmm.policy.repair import REPAIR_MAX_WORK, Method
from dphmm.policy.repair_objective import Objective
from dphmm.policy.zones import PolygonLayer
from dphmm.release.ledger import DAY_SECONDS
from dphmm.tables.json_toml import parse_json, parse_toml
from dphmm.tables.source import hash_file
from dphmm.tables.values import shorten, shorten_message, shorten_repr
from dphmm.validation import (
    Delta,
    Integers,
    Interval,
    NoiseEpsilon,
    NonNegativeInt,
    Requirement,
    Text,
    check_arguments,
    check_arguments_as,
    declare_setting,
    is_name,
)

# Prefix of the policy setting of an engine that was created from a graph. A content hash follows.
GRAPH_POLICY_PREFIX = "given:"

# Default size limit of the components for which an optimal table is computed.
OPTIMAL_MAX_STATES = 64

# The table of a component that is too large for an optimal one.
Fallback = Literal["none", "graph-exponential"]

# The treatment of locations outside the region.
Outside = Literal["clamp", "drop"]

_POLICY = Requirement(
    "a non-empty string or a graph", lambda value: not isinstance(value, str) or is_name(value), ("", " ", "\ud800")
)

if TYPE_CHECKING:

    class PolicyText:
        """A field that accepts a policy as text or graph, and contains its text."""

        def __get__(self, instance: object, owner: Any = None) -> str: ...

        def __set__(self, instance: object, value: str | PolicyLike) -> None: ...

else:
    # Other types are checked by `format_policy_text`, which also accepts graphs.
    PolicyText = Annotated[str, _POLICY]

_Positive = Annotated[float, Interval(0, 1e300, "neither")]

# Headings of the options in the help.
_GUARANTEE = "Guarantee"
_NOISE = "Noise"
_CAPS = "Schedule and caps"


@check_arguments_as(ConfigurationError)
@dataclass(frozen=True)
class Schedule:
    """A schedule of releases: as few as a target error, a window budget, or both allow.

    A timestep without a release still has a record, which contains the prediction. Whether a timestep is withheld is
    decided from the public belief alone, so it reveals nothing about the user's location.

    Parameters
    ----------
    target_error
        Release only if the expected error of the estimate would otherwise exceed this, in the unit of the measurements
        (kilometres for locations). None means as small an error as the budget allows.
    window_epsilon
        Upper bound on the total budget of all releases within any window. None means no bound.
    window_seconds
        Length of a window. Defaults to a day.

    Raises
    ------
    ConfigurationError
        If there is neither a target error nor a budget, or a number is not positive and finite.

    Examples
    --------
    >>> Schedule(target_error=0.5).to_dict()
    {'target_error': 0.5}
    """

    target_error: _Positive | None = declare_setting(
        None,
        "Release only if the expected error of the estimate would exceed this.",
        metavar="500m",
        heading=_CAPS,
        is_text=True,
    )
    window_epsilon: _Positive | None = declare_setting(
        None,
        "Total privacy budget for any 24-hour window.",
        name="window_epsilon",
        heading=_CAPS,
    )
    window_seconds: _Positive = declare_setting(
        DAY_SECONDS,
        "Length of the window of --window-epsilon, such as 8h. [default: 24h]",
        name="epsilon_window",
        metavar="TIME",
        heading=_CAPS,
        is_text=True,
    )

    def __post_init__(self) -> None:
        if self.target_error is None and self.window_epsilon is None:
            raise ConfigurationError("a schedule needs target_error, window_epsilon, or both")
        for name in ("target_error", "window_epsilon", "window_seconds"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else float(value))

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters that are set, as plain JSON values.

        Returns
        -------
        dict
            A mapping that `from_value` accepts.
        """
        values = {"target_error": self.target_error, "window_epsilon": self.window_epsilon}
        if self.window_epsilon is not None:
            values["window_seconds"] = self.window_seconds
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_value(cls, value: Any) -> Schedule | None:
        """Return a schedule from a schedule, a mapping of `to_dict`, or None.

        Parameters
        ----------
        value
            A schedule, a mapping, or None.

        Returns
        -------
        Schedule or None
            The schedule; None for None.

        Raises
        ------
        ConfigurationError
            If the value is of another type.
        """
        if value is None or isinstance(value, Schedule):
            return value
        if not isinstance(value, Mapping) or not set(value) <= {"target_error", "window_epsilon", "window_seconds"}:
            raise ConfigurationError(
                "schedule must be a mapping of target_error, window_epsilon and window_seconds, got "
                f"{shorten_repr(value)}"
            )
        return cls(**value)


# Default total budget of the releases of any 24 hours.
#
# The releases of 24 hours are then at most e^3 = 20.1 times as likely under one trajectory as under another that the
# policy connects to it at every timestep.
DEFAULT_DAILY_EPSILON = 3.0

# Default budget of a release if there is only a target error.
#
# Few strong releases keep a target error with the smallest total budget; see docs/how-to/budgets.md.
DEFAULT_DRAW_EPSILON = 4.0


@check_arguments_as(ConfigurationError)
@dataclass(frozen=True)
class Settings:
    """Settings of a release: the policy, the budget, the noise and the repair.

    Together with a model, these settings determine the guarantee. They contain no user data, and nothing that changes
    between runs (input and output files, randomness).

    Parameters
    ----------
    policy
        The locations that must stay indistinguishable: a string, see `dphmm.policy.parse_policy`; or a `PolicyGraph` or
        `networkx.Graph`, which is stored as text with its edges, at most 20,000. States that a networkx graph lacks
        have no edges. See `dphmm.policy.PolicyGraph.from_networkx`.
    epsilon
        Budget of a release, positive and finite.
    mechanism
        The noise: ``"lattice"`` (exact in finite precision), ``"k-norm"``, ``"laplace"``, ``"planar-isotropic"``,
        ``"planar-laplace"``, ``"optimal"`` (for each component, the table with the smallest expected error under the
        belief; exact) or ``"graph-exponential"`` (a table based on graph distances; exact). Also the name of a
        registered mechanism of another package, which becomes ``name@version``.
    repair
        Algorithm that gives exposed states partners, so that the graph becomes protectable: ``"greedy"`` (Algorithm 1),
        ``"sequential"`` (Algorithm 3) or ``"exact"``; see `dphmm.protect`.
    repair_objective
        Objective of the exact repair: the squared ``"error"`` of the noise, or the ``"volume"`` of the hull.
    membership
        Test of membership in a hull: ``"halfspace"``, or ``"qp"``, the quadratic program of Equation (6).
    delta
        Protect only the δ-location set: the most probable states with total mass 1 - delta, in [0, 1). None means that
        every possible state is protected.
    allow_singleton
        If the constraint set has a single state, release its exact location instead of raising
        `SingletonConstraintError`.
    spacing
        For ``"lattice"``: distance of neighbouring points of the published lattice in kilometres, a rational number. A
        float is read as its shortest decimal representation. With the default of 1/1000, every released coordinate is
        an integer number of metres.
    outside
        Treatment of locations outside the region. With ``"clamp"``, the location is replaced by the nearest state.
        Releases continue, and the existence of a release does not reveal whether the user was in the region. With
        ``"drop"``, the location has no release, and every recipient learns when the user left and came back.
    repair_max_work
        Work limit of an exact repair; 1000 is about one second. See `dphmm.protect`. The record of an interrupted
        repair has a positive `repair_optimality_gap`.
    caps
        Bounds on the adversary's posterior probability of events over time; see `dphmm.events.Cap`. The budget of a
        release is the largest, at most epsilon, under which no output exceeds a cap. If no budget is left, the timestep
        is withheld.
    event_cap_priors
        With caps: file of additional initial distributions under which event caps must also hold; see
        `dphmm.events.read_priors`.
    noise_scope
        Scope of the noise: one sensitivity hull for the whole policy graph (``"graph"``), or one for each of its
        connected components (``"component"``). With the latter, a long edge in one component does not increase the
        noise of another, but a release may reveal the component of the user. Tables are always built for components.
    schedule
        Schedule of the releases; see `dphmm.Schedule`. The budget of a release is then at most epsilon. A withheld
        timestep has a record with the prediction. None means a release at every timestep.
    optimal_max_states
        With ``mechanism="optimal"``: largest number of states of a component for which the linear program is solved, 2
        to 2048. A clique, such as a zone, may have four times as many states; other components never more than 400. The
        program takes a few tenths of a second at 64 states, about one second at 100 and several at 144.
    optimal_fallback
        With ``mechanism="optimal"``: the table of a larger component: ``"graph-exponential"``, or ``"none"`` to raise
        an error.
    layers
        Polygon layers; see `dphmm.policy.PolygonLayer`. The policy refers to them by name, as in ``zone:home``, and
        reads no file.

    Raises
    ------
    BudgetError
        If epsilon is not positive and finite.
    PolicyError, EventError
        If the policy is not a string or an undirected graph, or a cap is invalid.
    ConfigurationError
        If another value is invalid.

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
    repair_objective = "error"
    membership = "halfspace"
    delta = 0.01
    allow_singleton = false
    spacing = "1/1000"
    outside = "clamp"
    repair_max_work = 5000
    caps = []
    noise_scope = "graph"
    optimal_max_states = 64
    optimal_fallback = "none"
    """

    policy: PolicyText = declare_setting(
        "utility:1km",
        "Indistinguishable locations: utility:1km, complete, zone:FILE, …",
    )
    epsilon: NoiseEpsilon = declare_setting(1.0, "Privacy budget of each release.")
    mechanism: MechanismLike = declare_setting(
        "lattice",
        "Noise: lattice (exact), k-norm, laplace, planar-isotropic, planar-laplace, optimal, graph-exponential.",
        shows_default=True,
        heading=_NOISE,
    )
    repair: Method = declare_setting(
        "exact",
        "Graph repair algorithm: greedy, sequential or exact.",
        shows_default=True,
        heading=_NOISE,
    )
    repair_objective: Objective = declare_setting(
        "error",
        "Objective of the exact repair: error or volume.",
        shows_default=True,
        heading=_NOISE,
    )
    membership: Membership = declare_setting(
        "halfspace",
        "Test of membership in a hull: halfspace or qp.",
        shows_default=True,
        heading=_NOISE,
    )
    delta: Delta | None = declare_setting(
        None, "Protect only the most probable states with total mass 1 - DELTA.", heading=_GUARANTEE
    )
    allow_singleton: bool = declare_setting(
        False, "Release the exact location if only one state is possible.", heading=_GUARANTEE
    )
    spacing: Rational = declare_setting(
        Fraction(1, 1000),
        "Spacing of the published lattice in km.",
        metavar="KM",
        shows_default=True,
        heading=_NOISE,
    )
    outside: Outside = declare_setting(
        "clamp",
        "Locations outside the region: clamp (to the nearest state) or drop.",
        shows_default=True,
        heading=_GUARANTEE,
    )
    repair_max_work: NonNegativeInt = declare_setting(
        REPAIR_MAX_WORK,
        "Work limit of the exact repair; 1000 is about one second.",
        shows_default=True,
        heading=_NOISE,
    )
    caps: tuple[Cap, ...] = ()
    event_cap_priors: Text | None = declare_setting(
        None, "Additional initial distributions for event caps, one per column.", metavar="FILE.csv", heading=_CAPS
    )
    noise_scope: NoiseScope = declare_setting(
        "graph",
        "Scale noise to the whole graph or to each connected component.",
        shows_default=True,
        heading=_NOISE,
    )
    schedule: Schedule | None = None
    optimal_max_states: Annotated[int, Integers(2, MAX_TABLE_LOCATIONS)] = declare_setting(
        OPTIMAL_MAX_STATES,
        "Size limit of a component for mechanism optimal; four times for a zone.",
        shows_default=True,
        heading=_NOISE,
    )
    optimal_fallback: Fallback = declare_setting(
        "none",
        "Table of larger components: graph-exponential, or none for an error.",
        shows_default=True,
        heading=_NOISE,
    )
    layers: tuple[PolygonLayer, ...] = ()

    def __post_init__(self) -> None:
        self._set("policy", format_policy_text(self.policy))
        self._set("mechanism", resolve_mechanism(self.mechanism))
        self._set("epsilon", float(self.epsilon))
        self._set("delta", None if self.delta is None else float(self.delta))
        try:
            self._set("spacing", parse_rational(self.spacing, "spacing"))
        except InvalidInputError as problem:
            raise ConfigurationError(str(problem)) from None
        self._set("caps", _parse_list("caps", self.caps))
        if self.mechanism in TABLE_MECHANISMS:
            self._set("noise_scope", "component")
        if self.event_cap_priors is not None and not self.caps:
            raise ConfigurationError("event_cap_priors cannot be used without caps")
        self._set("schedule", Schedule.from_value(self.schedule))
        self._set("layers", _parse_list("layers", () if self.layers is None else self.layers))
        if len({layer.name for layer in self.layers}) < len(self.layers):
            names = [layer.name for layer in self.layers]
            repeated = next(name for name in names if names.count(name) > 1)
            raise ConfigurationError(f"layer names must be unique, got {repeated!r} twice")

    @property
    def is_exact(self) -> bool:
        """Whether noise is sampled with integer arithmetic only.

        If so, the guarantee holds for the published numbers.
        """
        return is_exact_mechanism(self.mechanism)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    # ---- conversion ----------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return all settings by name, as plain JSON values.

        A setting without a value is None; the spacing is a string.
        """
        plain: dict[str, Any] = {"spacing": str(self.spacing), "caps": [cap.to_dict() for cap in self.caps]}
        plain["schedule"] = None if self.schedule is None else self.schedule.to_dict()
        plain["layers"] = [dataclasses.asdict(layer) for layer in self.layers] or None
        return {**{name: getattr(self, name) for name in SETTING_NAMES}, **plain}

    @classmethod
    @check_arguments
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Create settings from the mapping of `to_dict`. Missing settings have their defaults.

        Raises
        ------
        ConfigurationError
            If a name is unknown.
        BudgetError, PolicyError, EventError, ConfigurationError
            If a value is invalid; see `ReleaseSettings`.
        """
        if not isinstance(values, Mapping):
            raise ConfigurationError(f"settings must be a mapping of names to values, got {shorten(values)}")
        unknown = [name for name in values if name not in SETTING_NAMES]
        if unknown:
            raise ConfigurationError(f"unknown setting {unknown[0]!r}; the settings are {', '.join(SETTING_NAMES)}")
        return cls(**values)

    def to_json(self) -> str:
        """Return the settings as a JSON object on one line."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    @classmethod
    @check_arguments
    def from_json(cls, text: str) -> Self:
        """Create settings from the text of `to_json`.

        Raises
        ------
        ConfigurationError
            If the text is not a JSON object, or a name is unknown.
        BudgetError, PolicyError, EventError, ConfigurationError
            If a value is invalid; see `ReleaseSettings`.
        """
        try:
            values = parse_json(text)
        except ValueError as problem:
            raise ConfigurationError(f"settings are not valid JSON: {problem}") from None
        if not isinstance(values, dict):
            raise ConfigurationError(f"settings must be a JSON object, got a {type(values).__name__}")
        return cls.from_dict(values)

    def to_toml(self) -> str:
        """Return the settings as TOML. Settings without a value are omitted."""
        import tomli_w

        return tomli_w.dumps({name: value for name, value in self.to_dict().items() if value is not None})

    @classmethod
    @check_arguments
    def from_toml(cls, text: str) -> Self:
        """Create settings from the text of `to_toml`.

        Raises
        ------
        ConfigurationError
            If the text is not TOML, or a name is unknown.
        BudgetError, PolicyError, EventError, ConfigurationError
            If a value is invalid; see `ReleaseSettings`.
        """
        try:
            values = parse_toml(text)
        except ValueError as problem:
            raise ConfigurationError(f"settings are not valid TOML: {shorten_message(problem)}") from None
        return cls.from_dict(values)

    @cached_property
    def content_hash(self) -> str:
        """The SHA-256 of `canonical`, in hexadecimal. Raises the errors of `canonical`."""
        return hashlib.sha256(self.canonical.encode("utf-8")).hexdigest()

    @cached_property
    def canonical(self) -> str:
        """The settings as canonical JSON. Files are included as the SHA-256 of their content.

        Raises
        ------
        DataFileError
            If a file named in the settings cannot be read.
        """
        canonical_values = {
            "policy": self.policy
            if self.policy.startswith(GRAPH_POLICY_PREFIX)
            else canonicalize_policy(self.policy, self.layers),
            "caps": [cap.canonical for cap in self.caps],
            "event_cap_priors": None
            if self.event_cap_priors is None
            else hash_file(self.event_cap_priors, "of the priors"),
        }
        values = {**self.to_dict(), **canonical_values}
        del values["layers"]  # the canonical policy contains their content, so their names do not count
        return json.dumps(values, sort_keys=True, allow_nan=False)

    # ---- policy graph --------------------------------------------------------------------------------------------

    @check_arguments
    def build_graph(self, model: MarkovModel) -> PolicyGraph:
        """Return the policy graph over a model's states.

        Raises
        ------
        ConfigurationError
            If the model has no state locations, or the policy is a graph without text.
        PolicyError, DataFileError
            If `dphmm.policy.parse_policy` raises them.
        """
        if self.policy.startswith(GRAPH_POLICY_PREFIX):
            raise ConfigurationError(f"policy {self.policy[:24]}… stands for a graph: pass that graph, or its text")
        return parse_policy(self.policy, model.space, model.structure, self.layers)


class _SharedKeywords(TypedDict, total=False):
    """The settings as keywords, except policy, epsilon, mechanism and schedule."""

    repair: Method
    repair_objective: Objective
    membership: Membership
    delta: float | None
    allow_singleton: bool
    spacing: Rational
    outside: Outside
    repair_max_work: int
    caps: Iterable[Cap | Mapping[str, Any]]
    event_cap_priors: str | None
    noise_scope: NoiseScope
    optimal_max_states: int
    optimal_fallback: Fallback
    layers: Iterable[PolygonLayer | Mapping[str, Any]]


class NoiseKeywords(_SharedKeywords, total=False):
    """The settings of `dphmm.Releaser` as keywords, except policy, epsilon and mechanism."""

    schedule: Schedule | Mapping[str, Any] | None


class QueryKeywords(NoiseKeywords, total=False):
    """The settings of another query as keywords."""

    epsilon: float
    mechanism: str


class DayKeywords(_SharedKeywords, total=False):
    """The settings of releases with a daily budget as keywords."""

    policy: str | PolicyLike
    mechanism: str


# The names of all settings.
SETTING_NAMES = tuple(field.name for field in dataclasses.fields(Settings))


# Setting that is a list → type of its elements, fields of an element (the first two are required), both in words.
_LIST_SETTINGS: Mapping[str, tuple[type[Any], tuple[str, ...], str, str]] = {
    "caps": (Cap, Cap.NAMES, "event caps", "an event and a probability"),
    "layers": (PolygonLayer, ("name", "geojson"), "layers", "a name and its geojson"),
}


def _parse_list(name: str, values: Any) -> tuple[Any, ...]:
    """Return caps or layers as a tuple, from such values or from mappings of `to_dict`."""
    kind, parts, description, required = _LIST_SETTINGS[name]
    if isinstance(values, kind | str | Mapping) or not isinstance(values, Iterable):
        raise ConfigurationError(f"{name} must be a list of {description}, got {shorten_repr(values)}")
    converted = []
    for value in values:
        if not isinstance(value, kind):
            if not isinstance(value, Mapping) or not set(parts[:2]) <= set(value) <= set(parts):
                raise ConfigurationError(f"each element of {name} must have {required}, got {shorten_repr(value)}")
            value = kind(**value)
        converted.append(value)
    return tuple(converted)
