"""What an audit is about: named states, a policy over them, and which of the states are possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, as_distribution
from dphmm.audit.policy_audit import support_sequence
from dphmm.audit.tables import edges_graph, possible_states, read_edges, read_prior, read_states
from dphmm.errors import ConfigurationError, DataFileError, StochasticError
from dphmm.geometry.measurements import Measurements
from dphmm.jobs.models import Model, load_model
from dphmm.markov.model import MarkovModel
from dphmm.policy.expression import parse_policy
from dphmm.policy.graph import PolicyGraph
from dphmm.space.states import Places, StateSpace

Prior = npt.ArrayLike | str | Path
"""Another adversary's prior: a distribution ``(N,)``, or a table with columns ``state`` and ``probability``."""


@dataclass(frozen=True, eq=False)
class Constraint:
    """Which states are possible, and what that is called.

    Attributes
    ----------
    label
        For people.
    states
        The constraint set, ``(N,)``.
    """

    label: str
    states: BoolArray = field(repr=False)


@dataclass(frozen=True, eq=False)
class Subject:
    """Named states with their measurements, and a policy over them; the model where there is one.

    Attributes
    ----------
    names
        What the ``N`` states are called.
    measurements
        What is measured in each.
    policy
        The policy graph over them.
    model
        How people move among them, or None.

    Examples
    --------
    >>> from dphmm import PolicyGraph
    >>> f = Measurements([[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]])
    >>> subject = Subject(("s1", "s2", "s3", "s4", "s5", "s6"), f, PolicyGraph.categorical([0, 1, 1, 2, 2, 2]))
    >>> subject.possible(("s2", "s3", "s5")).label
    'possible: s2,s3,s5'
    """

    names: tuple[str, ...]
    measurements: Measurements
    policy: PolicyGraph
    model: MarkovModel | None = None

    @classmethod
    @checked
    def of_model(cls, model: Model, policy: str) -> Subject:
        """The states of a model, with a policy as text.

        Raises
        ------
        ConfigurationError, DataFileError, PolicyError
            As `dphmm.jobs.load_model` and `dphmm.parse_policy`.
        """
        learned = load_model(model)
        space = learned.space
        return cls(state_names(space), space.measurements(), parse_policy(policy, space, learned.structure), learned)

    @classmethod
    def of_tables(cls, states: str | Path, edges: str | Path | None = None, category: str | None = None) -> Subject:
        """The states of a table, with a policy of exactly one kind.

        Parameters
        ----------
        states
            A column ``state``; the columns of numbers among the others are measurements.
        edges
            A table of two columns: pairs that must be indistinguishable.
        category
            A column of the states: those of equal value must be.

        Raises
        ------
        ConfigurationError
            When neither or both kinds of policy are given.
        DataFileError, PolicyError
            As the tables say.
        """
        if (edges is None) == (category is None):
            raise ConfigurationError("no single policy is given; with --states give --edges FILE or --category COLUMN")
        names, measurements, labels = read_states(states, category)
        policy = PolicyGraph.categorical(labels) if edges is None else edges_graph(names, read_edges(edges))
        return cls(names, Measurements(measurements), policy)

    def all_states(self) -> Constraint:
        """Everything is possible."""
        return Constraint("all states", np.ones(len(self.names), dtype=np.bool_))

    @checked
    def possible(self, names: Sequence[str]) -> Constraint:
        """These states alone are possible.

        Raises
        ------
        StateError
            When a state is named twice or does not exist.
        """
        text = ",".join(names)
        label = f"possible: {text if len(text) <= 60 else text[:57] + '…'}"
        return Constraint(label, possible_states(names, self.names))

    @checked
    def along(self, steps: int, start: Sequence[str] = ()) -> list[Constraint]:
        """What is possible along the model's support, equal neighbours in time as one.

        Parameters
        ----------
        steps
            How many time steps.
        start
            The states possible at first; left out, those of the model's initial distribution.

        Raises
        ------
        ConfigurationError
            When there is no model to say what can follow.
        StateError, InvalidInputError
            When a state is named twice or does not exist, or there is no step.
        """
        if self.model is None:
            raise ConfigurationError("--steps needs a model to say what can follow; give --model, or --possible")
        first = possible_states(start, self.names) if len(start) else None
        supports = enumerate(support_sequence(self.model, steps, first), start=1)
        found = []
        for key, run in groupby(supports, key=lambda timed: timed[1].tobytes()):
            times = [t for t, _ in run]
            label = f"t = {times[0]}" + (f" to {times[-1]}" if len(times) > 1 else "")
            found.append(Constraint(label, np.frombuffer(key, dtype=np.bool_)))
        return found


def state_names(space: StateSpace) -> tuple[str, ...]:
    """What states are called: the names of places, the numbers of cells."""
    return tuple(space.names) if isinstance(space, Places) else tuple(str(i) for i in range(space.size))


def checked_prior(prior: Prior, names: Sequence[str]) -> FloatArray:
    """Another adversary's prior over named states, ``(N,)``.

    Raises
    ------
    DataFileError
        When it is a table that cannot be read, or whose probabilities do not sum to one.
    StochasticError
        When it is no distribution over the states.
    """
    if not isinstance(prior, str | Path):
        return as_distribution(prior, len(names), "the prior")
    try:
        return as_distribution(read_prior(prior, names), len(names), "the prior")
    except StochasticError as problem:
        raise DataFileError(prior, str(problem)) from None
