"""The database form of a policy's audit: secrets that may or may not be in a table (§5.3, Example 5.3, §10.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, as_points, check_epsilon
from dphmm.audit.policy_audit import AuditedMechanism
from dphmm.audit.tables import hull_facts
from dphmm.errors import InvalidInputError, PolicyError
from dphmm.facts import Facts, fact, facts_of
from dphmm.geometry.hull import SensitivityHull

NULL = "null"
"""The node that stands for a secret's absence. An edge to it asks that no one can tell whether the secret is there."""


@checked
@dataclass(frozen=True)
class BlowfishPolicy:
    """Secrets, what each contributes to the answers, and which must be indistinguishable.

    A secret is a row that a table may hold; adding it changes the answers ``f`` by its contribution. An edge between
    two secrets asks that one in place of the other cannot be told (bounded), an edge to the null node that presence
    and absence cannot (unbounded). Both kinds may stand in one policy.

    Parameters
    ----------
    names
        The secrets, each once, none called ``null``.
    contributions
        ``(n, d)``: integers, `fractions.Fraction` objects (both exact) or floats.
    edges
        Pairs of names; ``null`` for the null node.

    Raises
    ------
    PolicyError
        When a name is given twice or is ``null``, or an edge names a secret that is not there or joins one to itself.
    CoordinateError
        When the contributions are no finite ``(n, d)`` array.
    InvalidInputError
        When there is not one contribution per name, or no secret.
    """

    names: tuple[str, ...]
    contributions: npt.ArrayLike
    edges: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        points = as_points(self.contributions, "contributions")
        if not len(self.names) or len(points) != len(self.names):
            raise InvalidInputError(
                f"there are {len(points)} contributions for {len(self.names)} secrets; give one each"
            )
        seen: set[str] = set()
        for name in self.names:
            if name in seen:
                raise PolicyError(f"secret {name!r} is named twice; name every secret once")
            if name == NULL:
                raise PolicyError(f"a secret is called {NULL!r}, which is the node of absence; call it otherwise")
            seen.add(name)
        try:
            ends = [(first, second) for first, second in self.edges]
            if not all(isinstance(name, str) for edge in ends for name in edge):
                raise TypeError
        except (TypeError, ValueError):
            raise PolicyError("the edges are no pairs of names; give each as (name, name)") from None
        for first, second in ends:
            for name in (first, second):
                if name not in seen and name != NULL:
                    raise PolicyError(f"an edge names secret {name!r}, which is not in the table; correct the name")
            if first == second:
                raise PolicyError(f"an edge joins {first!r} to itself; leave it out")

    def differences(self) -> npt.NDArray[np.object_] | npt.NDArray[np.generic]:
        """``(m, d)``: the difference of answers over each edge, in the numbers that the contributions came in.

        Returns
        -------
        ndarray
            ``(m, d)``, one row for each edge.
        """
        rows = np.asarray(self.contributions)
        rows = np.concatenate([rows, rows[:1] - rows[:1]])
        index = {name: i for i, name in enumerate((*self.names, NULL))}
        ends = np.array([[index[name] for name in edge] for edge in self.edges], dtype=np.int64).reshape(-1, 2)
        return np.asarray(rows[ends[:, 0]] - rows[ends[:, 1]])


@dataclass(frozen=True)
class SecretLevels:
    """How far a mechanism hides each secret.

    Adding or removing secret i changes the log density of any output by at most ``factors[i]`` times epsilon, and by
    as much at some output (Theorem 5.3, second form, for each secret).

    Parameters
    ----------
    mechanism
        ``"k-norm"`` or ``"laplace"``.
    sensitivity
        The 1-norm sensitivity ``S_f`` (Laplace), or None.
    factors
        ``(n,)``: ``‖f_i‖`` in the mechanism's norm; infinite where presence shows for certain.
    protected
        ``(n,)``: whether the factor is at most 1, decided exactly for integers and fractions.
    pairwise_factor
        ``max ‖f_j - f_k‖`` over all pairs of secrets: one in place of another changes the log density by at most this
        times epsilon (Theorem 5.3, first form).
    """

    mechanism: AuditedMechanism = field(metadata=fact())
    sensitivity: float | None = field(metadata=fact())
    factors: FloatArray = field(repr=False)
    protected: BoolArray = field(repr=False)
    pairwise_factor: float = field(metadata=fact())

    @property
    def total_factor(self) -> float:
        """The largest factor of a secret: the whole is differentially private, unbounded, at this times epsilon."""
        return float(self.factors.max())


@dataclass(frozen=True)
class SecretsAudit:
    """A database policy at a budget.

    Parameters
    ----------
    policy
        The policy.
    epsilon
        The budget: what every edge is promised.
    hull
        The sensitivity hull over its edges.
    disconnected
        The secrets without an edge of any kind.
    levels
        One per audited mechanism.
    """

    policy: BlowfishPolicy
    epsilon: float = field(metadata=fact())
    hull: SensitivityHull
    disconnected: tuple[str, ...] = field(metadata=fact())
    levels: tuple[SecretLevels, ...]

    def exposed(self, mechanism: AuditedMechanism) -> tuple[str, ...]:
        """The secrets whose presence a mechanism hides less well than epsilon.

        Parameters
        ----------
        mechanism
            One of those that were audited.

        Returns
        -------
        tuple of str
            Their names.

        Raises
        ------
        InvalidInputError
            When the mechanism was not audited.
        """
        for level in self.levels:
            if level.mechanism == mechanism:
                return tuple(name for name, safe in zip(self.policy.names, level.protected, strict=True) if not safe)
        raise InvalidInputError(f"mechanism {mechanism!r} was not audited; audit it first")

    @property
    def is_exposed(self) -> bool:
        """Whether some secret is exposed under one of the audited mechanisms."""
        return any(not level.protected.all() for level in self.levels)

    def facts(self) -> Facts:
        """What was found as plain JSON values.

        Returns
        -------
        dict
            Texts, numbers, None and lists of them.
        """
        levels = zip(self.levels, (self.exposed(level.mechanism) for level in self.levels), strict=True)
        names = self.policy.names
        return facts_of(
            self,
            form="database",
            secrets=len(names),
            hull=hull_facts(self.hull),
            exposed=self.is_exposed,
            mechanisms=[
                facts_of(
                    level,
                    factors=dict(zip(names, level.factors, strict=True)),
                    epsilons=dict(zip(names, level.factors * self.epsilon, strict=True)),
                    protected=[name for name in names if name not in exposed],
                    exposed=exposed,
                    total_factor=level.total_factor,
                    total_epsilon=level.total_factor * self.epsilon,
                )
                for level, exposed in levels
            ],
        )


@checked
def audit_blowfish(
    policy: BlowfishPolicy, epsilon: float = 1.0, mechanisms: Sequence[AuditedMechanism] = ("k-norm", "laplace")
) -> SecretsAudit:
    """Which secrets a database policy leaves exposed, under which mechanism, and by how much (Theorem 5.3).

    Parameters
    ----------
    policy
        Secrets, contributions and edges.
    epsilon
        The budget of the release; positive and finite.
    mechanisms
        ``"k-norm"`` and ``"laplace"``, or one of them.

    Returns
    -------
    SecretsAudit
        The factor of every secret under each mechanism.

    Raises
    ------
    BudgetError
        When epsilon is not positive and finite.
    InvalidInputError
        For another mechanism.

    Examples
    --------
    >>> names = ("s1", "s2", "s3", "s4", "s5", "s6")
    >>> counts = [[1, 0], [0, 0], [1, 0], [0, 1], [1, 0], [0, 1]]
    >>> audit = audit_blowfish(BlowfishPolicy(names, counts, (("s1", "s2"), ("s3", "s4"))))
    >>> audit.levels[0].factors.tolist(), audit.exposed("k-norm"), audit.exposed("laplace")
    ([1.0, 0.0, 1.0, 2.0, 1.0, 2.0], ('s4', 's6'), ())
    """
    check_epsilon(epsilon)
    if not mechanisms or any(name not in ("k-norm", "laplace") for name in mechanisms):
        raise InvalidInputError(f"mechanisms to audit are {list(mechanisms)}; choose among k-norm, laplace")
    differences = policy.differences()
    hull = SensitivityHull(differences)
    joined = set(chain.from_iterable(policy.edges))
    return SecretsAudit(
        policy=policy,
        epsilon=float(epsilon),
        hull=hull,
        disconnected=tuple(name for name in policy.names if name not in joined),
        levels=tuple(_levels(policy, hull, differences, name) for name in mechanisms),
    )


def _levels(
    policy: BlowfishPolicy, hull: SensitivityHull, differences: npt.NDArray[np.generic], mechanism: AuditedMechanism
) -> SecretLevels:
    body, sensitivity = hull, None
    if mechanism == "laplace":
        reach = max((sum(abs(x) for x in row) for row in differences.tolist()), default=0)
        sensitivity = float(reach)
        body = SensitivityHull(np.diag([reach] * differences.shape[1]))  # fractions stay exact
    rows = np.asarray(policy.contributions)
    points = rows.astype(np.float64)
    return SecretLevels(
        mechanism=mechanism,
        sensitivity=sensitivity,
        factors=body.norm(points),
        protected=body.contains(rows),
        pairwise_factor=_diameter(body, rows if rows.dtype.kind == "i" else points),
    )


def _diameter(body: SensitivityHull, points: npt.NDArray[Any]) -> float:
    """The largest norm of a difference of two points: of each pair of opposite facets, the widest extent across it."""
    form, relative = body.norm_form, points - points[:1]
    if not form.in_span(relative).all():
        return inf
    return float(np.ptp(relative @ form.normals.T, axis=0).max(initial=0.0))
