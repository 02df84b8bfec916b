"""Targets of an audit: states with a policy, constraint sets, and priors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, as_distribution
from dphmm.audit.blowfish import SecretsAudit as SecretsAudit
from dphmm.audit.input_tables import build_policy_graph, parse_constraint, read_edges, read_prior, read_states
from dphmm.audit.policy import (
    support_sequence,
)
from dphmm.errors import ConfigurationError, DataFileError, StochasticError
from dphmm.geometry.measurements import Measurements
from dphmm.jobs.model.loading import Model, load_model
from dphmm.model.model import MarkovModel
from dphmm.policy import PolicyGraph, parse_policy
from dphmm.policy.graph import PolicyLike, as_policy
from dphmm.space.states import Places, StateSpace
from dphmm.validation import Integers, check_arguments

# Another adversary's prior: a distribution ``(N,)``, or a table with columns ``state`` and ``probability``.
Prior = npt.ArrayLike | str | Path


# Each step of a support costs a product with the transition matrix and a mask in memory.
_MAX_STEPS = 50_000


@dataclass(frozen=True, eq=False)
class Constraint:
    """A constraint set with a label.

    Parameters
    ----------
    label
        The label in tables and figures.
    states
        The constraint set, ``(N,)``.
    """

    label: str
    states: BoolArray = field(repr=False)


@check_arguments
@dataclass(frozen=True, eq=False)
class AuditTarget:
    """Named states with measurements, a policy, and optionally a model.

    Parameters
    ----------
    names
        Names of the ``N`` states.
    measurements
        The measurement of each state.
    policy
        The policy graph. A `networkx.Graph` of state indices or names is converted.
    model
        The movement model, or None.

    Examples
    --------
    >>> from dphmm import PolicyGraph
    >>> f = Measurements([[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]])
    >>> target = AuditTarget(("s1", "s2", "s3", "s4", "s5", "s6"), f, PolicyGraph.categorical([0, 1, 1, 2, 2, 2]))
    >>> target.constrain_to(("s2", "s3", "s5")).label
    'possible: s2,s3,s5'
    """

    names: tuple[str, ...]
    measurements: Measurements
    policy: PolicyGraph
    model: MarkovModel | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", as_policy(self.policy, len(self.names), self.names))

    @classmethod
    @check_arguments
    def from_model(cls, model: Model, policy: str | PolicyLike) -> AuditTarget:
        """Build a target from a model and a policy expression or graph.

        Parameters
        ----------
        model
            The model, or its file.
        policy
            The policy as a string, such as ``"utility:1km"``, a `PolicyGraph` or a `networkx.Graph`.

        Returns
        -------
        AuditTarget
            The target.

        Raises
        ------
        ConfigurationError, DataFileError, PolicyError
            See `dphmm.jobs.load_model` and `dphmm.parse_policy`.
        """
        learned = load_model(model)
        space = learned.space
        return cls(
            get_state_names(space), space.measurements(), parse_policy(policy, space, learned.structure), learned
        )

    @classmethod
    def from_tables(
        cls, states: str | Path, edges: str | Path | None = None, category: str | None = None
    ) -> AuditTarget:
        """Build a target from a table of states and a policy by edges or by category.

        Parameters
        ----------
        states
            A table with a column ``state``. The other numeric columns are the measurements.
        edges
            A table of two columns: pairs that must be indistinguishable.
        category
            A column of the states: states with equal values must be indistinguishable.

        Returns
        -------
        AuditTarget
            The target.

        Raises
        ------
        ConfigurationError
            If neither or both of `edges` and `category` are given.
        DataFileError, PolicyError
            If a table is invalid.
        """
        if (edges is None) == (category is None):
            raise ConfigurationError("states must have exactly one policy: use --edges FILE or --category COLUMN")
        names, measurements, labels = read_states(states, category)
        policy = PolicyGraph.categorical(labels) if edges is None else build_policy_graph(names, read_edges(edges))
        return cls(names, Measurements(measurements), policy)

    def build_full_constraint(self) -> Constraint:
        """Return the constraint set of all states.

        Returns
        -------
        Constraint
            All ``N`` states.
        """
        return Constraint("all states", np.ones(len(self.names), dtype=np.bool_))

    @check_arguments
    def constrain_to(self, names: Sequence[str]) -> Constraint:
        """Return the constraint set of some states.

        Parameters
        ----------
        names
            The names of the states.

        Returns
        -------
        Constraint
            Their set.

        Raises
        ------
        StateError
            If a state is repeated or does not exist.
        """
        text = ",".join(names)
        label = f"possible: {text if len(text) <= 60 else text[:57] + '…'}"
        return Constraint(label, parse_constraint(names, self.names))

    @check_arguments
    def constrain_along(
        self, steps: Annotated[int, Integers(1, _MAX_STEPS)], start: Sequence[str] = ()
    ) -> list[Constraint]:
        """Return the constraint sets along the model's support, merging equal neighbours.

        Parameters
        ----------
        steps
            Number of timesteps.
        start
            The states possible at first. Defaults to the support of the model's initial distribution.

        Returns
        -------
        list of Constraint
            In order of time.

        Raises
        ------
        ConfigurationError
            If there is no model, or its classes of time differ in their supports.
        StateError, InvalidInputError
            If a state is repeated or does not exist, or the number of steps is not in [1, 50,000].
        """
        if self.model is None:
            raise ConfigurationError("--steps needs a model: use --model, or --possible")
        first = parse_constraint(start, self.names) if len(start) else None
        supports = enumerate(support_sequence(self.model, steps, first), start=1)
        constraints = []
        for key, run in groupby(supports, key=lambda timed: timed[1].tobytes()):
            times = [t for t, _ in run]
            label = f"t = {times[0]}" + (f" to {times[-1]}" if len(times) > 1 else "")
            constraints.append(Constraint(label, np.frombuffer(key, dtype=np.bool_)))
        return constraints


def get_state_names(space: StateSpace) -> tuple[str, ...]:
    """Return the names of places, or the indices of cells as strings."""
    return tuple(space.names) if isinstance(space, Places) else tuple(str(i) for i in range(space.size))


def check_prior(prior: Prior | None, names: Sequence[str]) -> FloatArray | None:
    """Validate another adversary's prior over named states, ``(N,)``, or return None.

    Raises
    ------
    DataFileError
        If it is a table that cannot be read, or its probabilities do not sum to one.
    StochasticError
        If it is not a distribution over the states.
    """
    if prior is None or not isinstance(prior, str | Path):
        return None if prior is None else as_distribution(prior, len(names), "the prior")
    try:
        return as_distribution(read_prior(prior, names), len(names), "the prior")
    except StochasticError as problem:
        raise DataFileError(prior, str(problem)) from None
