"""Everything that a promise is made of, as one value: how a person's places are released."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any, get_args

from dphmm.arrays import Rng, check_epsilon
from dphmm.errors import BudgetError, ConfigurationError
from dphmm.geometry.hull import Membership
from dphmm.mechanisms.catalogue import MECHANISMS, MechanismName
from dphmm.mechanisms.exact import Rational, rational
from dphmm.policy.expression import canonical_policy, parse_policy
from dphmm.policy.protection import Method
from dphmm.policy.repair import Objective

if TYPE_CHECKING:
    from dphmm.markov.model import MarkovModel
    from dphmm.policy.graph import PolicyGraph
    from dphmm.release.engine import Releaser

GIVEN = "given:"
"""How the policy of an engine is written that was made from a graph rather than a text; its content hash follows."""

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "mechanism": MECHANISMS,
    "repair": get_args(Method),
    "objective": get_args(Objective),
    "membership": get_args(Membership),
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
        How noise is drawn: ``"lattice"`` (exact on a computer), ``"k-norm"``, ``"laplace"``, ``"planar-isotropic"`` or
        ``"planar-laplace"``.
    repair
        How exposed states get partners, so that the graph becomes protectable: ``"greedy"`` (Algorithm 1),
        ``"sequential"`` (Algorithm 3) or ``"exact"``; see `dphmm.protect`.
    objective
        What the repair minimises: the hull's ``"volume"``, or the noise's squared ``"error"``.
    membership
        How membership in a hull is decided: ``"halfspace"``, or ``"qp"``, the quadratic program of Equation (6).
    delta
        Left out, every possible state is hidden. Otherwise those of the δ-location set, 0 to below 1.
    allow_known
        Whether to go on where one state only is possible, releasing its place as it is.
    spacing
        For ``"lattice"``: the step of the published lattice in kilometres, a rational (a float is read as its shortest
        decimal). Left at 1/1000, everything released is a whole number of metres.

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
    objective = "volume"
    membership = "halfspace"
    delta = 0.01
    allow_known = false
    spacing = "1/1000"
    """

    policy: str = "utility:1km"
    epsilon: float = 1.0
    mechanism: MechanismName = "lattice"
    repair: Method = "exact"
    objective: Objective = "volume"
    membership: Membership = "halfspace"
    delta: float | None = None
    allow_known: bool = False
    spacing: Rational = Fraction(1, 1000)

    def __post_init__(self) -> None:
        if not isinstance(self.policy, str) or not self.policy.strip():
            raise ConfigurationError(f"policy is {self.policy!r}; give a text such as utility:1km")
        self._set("epsilon", check_epsilon(_number("epsilon", self.epsilon)))
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise ConfigurationError(f"{name} is {value!r}; choose one of {', '.join(choices)}")
        if self.delta is not None:
            self._set("delta", _number("delta", self.delta))
            if not (isfinite(self.delta) and 0 <= self.delta < 1):
                raise ConfigurationError(f"delta is {self.delta}; give a number from 0 to below 1")
        if not isinstance(self.allow_known, bool):
            raise ConfigurationError(f"allow_known is {self.allow_known!r}; give true or false")
        try:
            self._set("spacing", rational(self.spacing, "spacing"))
        except BudgetError as problem:
            raise ConfigurationError(str(problem)) from None

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    # ---- as text -------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Every setting by name, as plain JSON values: what is left out is None, the spacing a text."""
        return {**{name: getattr(self, name) for name in NAMES}, "spacing": str(self.spacing)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ReleaseSettings:
        """The settings that `to_dict` wrote; what is missing takes its default.

        Raises
        ------
        ConfigurationError
            For a name that is unknown, or a value that is none.
        BudgetError
            When epsilon is not positive and finite.
        """
        unknown = [name for name in values if name not in NAMES]
        if unknown:
            raise ConfigurationError(f"setting {unknown[0]!r} is unknown; the settings are {', '.join(NAMES)}")
        return cls(**values)

    def to_json(self) -> str:
        """The settings as a JSON object on one line."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    @classmethod
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
            values = json.loads(text)
        except (ValueError, RecursionError) as problem:
            raise ConfigurationError(f"settings are no JSON ({problem}); write them with to_json") from None
        if not isinstance(values, dict):
            raise ConfigurationError(f"settings are a JSON {type(values).__name__}; give an object")
        return cls.from_dict(values)

    def to_toml(self) -> str:
        """The settings as TOML, which has no word for what is left out."""
        import tomli_w

        return tomli_w.dumps({name: value for name, value in self.to_dict().items() if value is not None})

    @classmethod
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
            return cls.from_dict(tomllib.loads(text))
        except (tomllib.TOMLDecodeError, RecursionError) as problem:
            raise ConfigurationError(f"settings are no TOML ({problem}); write them with to_toml") from None

    @cached_property
    def content_hash(self) -> str:
        """The SHA-256 of what the settings say, in hexadecimal: the content of files that the policy names counts.

        Raises
        ------
        DataFileError
            When a file that the policy names cannot be read.
        """
        policy = self.policy if self.policy.startswith(GIVEN) else canonical_policy(self.policy)
        text = json.dumps({**self.to_dict(), "policy": policy}, sort_keys=True, allow_nan=False)
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
        return parse_policy(self.policy, model.space, model.transition)

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


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        raise ConfigurationError(f"{name} is {value!r}; give a number")
    return float(value)
