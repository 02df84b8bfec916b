"""Everything that a promise is made of, as one value: how a person's places are released."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from dphmm.arguments import checked
from dphmm.arrays import Rng, check_budget
from dphmm.errors import BudgetError, ConfigurationError, DataFileError, InvalidInputError
from dphmm.events.caps import Cap
from dphmm.geometry.hull import Membership
from dphmm.mechanisms.catalogue import EXACT, MECHANISMS, TABLES, MechanismName
from dphmm.mechanisms.exact import Rational, rational
from dphmm.mechanisms.table import LARGEST_TABLE
from dphmm.policy.by_component import Calibration
from dphmm.policy.expression import canonical_policy, parse_policy
from dphmm.policy.protection import REPAIR_LIMIT, Method, check_repair_limit
from dphmm.policy.repair import Objective
from dphmm.release.schedule import Schedule
from dphmm.tables.json_text import parse_json
from dphmm.tables.toml_text import parse_toml
from dphmm.tables.values import is_text, one_line, shorten, shown

if TYPE_CHECKING:
    from dphmm.markov.model import MarkovModel
    from dphmm.policy.graph import PolicyGraph
    from dphmm.release.engine import Releaser

GIVEN = "given:"
"""How the policy of an engine is written that was made from a graph rather than a text; its content hash follows."""

OPTIMAL_LIMIT = 64
"""The most states of a component whose program is solved, unless it is said."""

Fallback = Literal["none", "graph-exponential"]
"""What serves a component that is too large for the program of the best table."""

Outside = Literal["border", "omit"]
"""What becomes of a place outside the region."""

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "mechanism": MECHANISMS,
    "repair": get_args(Method),
    "objective": get_args(Objective),
    "membership": get_args(Membership),
    "outside": get_args(Outside),
    "calibration": get_args(Calibration),
    "fallback": get_args(Fallback),
}


@dataclass(frozen=True)
class ReleaseSettings:
    """How places are released: the policy, the budget, the noise, the repair.

    Together with a model these settings determine the promise. They hold nothing about a person, and nothing that
    changes from one run to the next (files to read or write, randomness).

    Parameters
    ----------
    policy
        What must stay indistinguishable, as text: see `dphmm.policy.parse_policy`.
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
        and everybody sees when the person left and came back.
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

    Raises
    ------
    BudgetError
        When epsilon is not positive and finite.
    ConfigurationError
        When another value is none of those above.

    Examples
    --------
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

    policy: str = "utility:1km"
    epsilon: float = 1.0
    mechanism: MechanismName = "lattice"
    repair: Method = "exact"
    objective: Objective = "error"
    membership: Membership = "halfspace"
    delta: float | None = None
    allow_known: bool = False
    spacing: Rational = Fraction(1, 1000)
    outside: Outside = "border"
    repair_limit: int = REPAIR_LIMIT
    caps: tuple[Cap, ...] = ()
    priors: str | None = None
    calibration: Calibration = "graph"
    schedule: Schedule | None = None
    optimal_limit: int = OPTIMAL_LIMIT
    fallback: Fallback = "none"

    def __post_init__(self) -> None:
        if not isinstance(self.policy, str) or not self.policy.strip() or not is_text(self.policy):
            raise ConfigurationError(f"policy is {shown(self.policy)}; give a text such as utility:1km")
        self._set("epsilon", check_budget(_number("epsilon", self.epsilon)))
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if not isinstance(value, str) or value not in choices:
                raise ConfigurationError(f"{name} is {shorten(value)}; choose one of {', '.join(choices)}")
        if self.delta is not None:
            self._set("delta", _number("delta", self.delta))
            if not (isfinite(self.delta) and 0 <= self.delta < 1):
                raise ConfigurationError(f"delta is {self.delta}; give a number from 0 to below 1")
        try:
            self._set("repair_limit", check_repair_limit(self.repair_limit))
        except InvalidInputError as problem:
            raise ConfigurationError(str(problem)) from None
        if not isinstance(self.allow_known, bool):
            raise ConfigurationError(f"allow_known is {self.allow_known!r}; give true or false")
        try:
            self._set("spacing", rational(self.spacing, "spacing"))
        except BudgetError as problem:
            raise ConfigurationError(str(problem)) from None
        limit = self.optimal_limit
        if isinstance(limit, bool) or not isinstance(limit, int) or not 2 <= limit <= LARGEST_TABLE:
            raise ConfigurationError(f"optimal_limit is {shown(limit)}; give a number of states, 2 to {LARGEST_TABLE}")
        self._set("caps", _caps(self.caps))
        if self.mechanism in TABLES:
            self._set("calibration", "component")
        if self.priors is not None and not (isinstance(self.priors, str) and self.priors and self.caps):
            raise ConfigurationError(
                f"priors is {shown(self.priors)}; give the path of a table, beside caps to be kept for them"
            )
        self._set("schedule", Schedule.of(self.schedule))

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
        return {**{name: getattr(self, name) for name in NAMES}, **plain}

    @classmethod
    @checked
    def from_dict(cls, values: Mapping[str, Any]) -> ReleaseSettings:
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
    def from_json(cls, text: str) -> ReleaseSettings:
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
    def from_toml(cls, text: str) -> ReleaseSettings:
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
        """The SHA-256 of what the settings say, in hexadecimal: the content of files that they name counts.

        Raises
        ------
        DataFileError
            When a file that they name cannot be read.
        """
        said = {
            "policy": self.policy if self.policy.startswith(GIVEN) else canonical_policy(self.policy),
            "caps": [cap.canonical for cap in self.caps],
            "priors": None if self.priors is None else _file_hash(self.priors),
        }
        text = json.dumps({**self.to_dict(), **said}, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()

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
        return parse_policy(self.policy, model.space, model.structure)

    def engine(self, model: MarkovModel, rng: Rng = None) -> Releaser:
        """An engine that releases the places of a model's states.

        Parameters
        ----------
        model
            A model that knows its states (`dphmm learn` writes such ones).
        rng
            Left out, the operating system's randomness. A seed or generator makes releases repeatable, not private.

        Raises
        ------
        ConfigurationError, PolicyError, DataFileError
            As `graph`.
        """
        from dphmm.release.engine import Releaser

        return Releaser.made(self, model, model.space, self.graph(model), rng)


NAMES = tuple(field.name for field in dataclasses.fields(ReleaseSettings))
"""The names of all settings."""


def _caps(given: Any) -> tuple[Cap, ...]:
    """Caps as values, out of such values or of what `Cap.to_dict` wrote."""
    if isinstance(given, Cap | str | Mapping) or not isinstance(given, Iterable):
        raise ConfigurationError(f"caps is {shown(given)}; give a list of caps on events")
    found = []
    for one in given:
        if not isinstance(one, Cap):
            if not isinstance(one, Mapping) or not {"event", "probability"} <= set(one) <= set(Cap.NAMES):
                raise ConfigurationError(f"caps hold {shown(one)}; give an event and a probability for each")
            one = Cap(**one)
        found.append(one)
    return tuple(found)


def _file_hash(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as problem:
        raise DataFileError(path, f"cannot be read ({problem.strerror}); check the path of the priors") from None


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        raise ConfigurationError(f"{name} is {shown(value)}; give a number")
    try:
        return float(value)
    except OverflowError:
        raise ConfigurationError(f"{name} is {shown(value)}; give a number below 1e308") from None
