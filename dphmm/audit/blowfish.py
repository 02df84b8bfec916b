"""Audit of a policy over the secrets of a database (§5.3, Example 5.3, §10.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, as_points
from dphmm.audit.input_tables import describe_hull
from dphmm.audit.policy import AuditedMechanism
from dphmm.errors import InvalidInputError, PolicyError
from dphmm.formatting import Result, export_fields, exported
from dphmm.geometry.sensitivity_hull import SensitivityHull
from dphmm.validation import Epsilon, check_arguments

# Node that represents the absence of a secret. An edge to it requires presence and absence to be indistinguishable.
NULL = "null"


@check_arguments
@dataclass(frozen=True)
class BlowfishPolicy:
    """A policy over secrets: their contributions to the answers and the pairs to protect.

    A secret is a row that a table may contain. Adding it changes the answers ``f`` by its contribution. An edge between
    two secrets requires that replacing one by the other is not detectable (bounded). An edge to the null node requires
    that presence and absence are indistinguishable (unbounded). A policy may contain edges of both types.

    Parameters
    ----------
    names
        Unique names of the secrets. ``null`` is reserved.
    contributions
        ``(n, d)``: integers, `fractions.Fraction` objects (both exact) or floats.
    edges
        Pairs of names, with ``null`` for the null node.

    Raises
    ------
    PolicyError
        If a name is repeated or is ``null``, or if an edge is a self-loop or contains an unknown name.
    CoordinateError
        If the contributions are not a finite ``(n, d)`` array.
    InvalidInputError
        If there are no secrets, or the number of contributions differs from the number of names.
    """

    names: tuple[str, ...]
    contributions: npt.ArrayLike
    edges: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        points = as_points(self.contributions, "contributions")
        if not len(self.names) or len(points) != len(self.names):
            raise InvalidInputError(
                f"contributions must have one row for each of {len(self.names)} secrets, at least one, got "
                f"{len(points)}"
            )
        seen: set[str] = set()
        for name in self.names:
            if name in seen:
                raise PolicyError(f"names must be unique, got secret {name!r} twice")
            if name == NULL:
                raise PolicyError(f"names must not contain {NULL!r}, which is the node of absence; rename the secret")
            seen.add(name)
        try:
            ends = [(first, second) for first, second in self.edges]
            if not all(isinstance(name, str) for edge in ends for name in edge):
                raise TypeError
        except (TypeError, ValueError):
            raise PolicyError("edges must be pairs of names, such as (name, name)") from None
        for first, second in ends:
            for name in (first, second):
                if name not in seen and name != NULL:
                    raise PolicyError(f"edges must connect secrets of the table, got the unknown secret {name!r}")
            if first == second:
                raise PolicyError(f"self-loops are not allowed, got edge {first!r}–{second!r}")

    def differences(self) -> npt.NDArray[np.object_] | npt.NDArray[np.generic]:
        """Return the difference of the answers over each edge, in the contributions' number type.

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
    """Protection of each secret under one mechanism.

    Adding or removing secret i changes the log density of any output by at most ``factors[i]`` times epsilon. Some
    output attains this bound (Theorem 5.3, second form, applied to each secret).

    Parameters
    ----------
    mechanism
        ``"k-norm"`` or ``"laplace"``.
    sensitivity
        The 1-norm sensitivity ``S_f`` for Laplace, otherwise None.
    factors
        ``(n,)``: ``‖f_i‖`` in the mechanism's norm. Infinite if an output can reveal the presence with certainty.
    protected
        ``(n,)``: whether the factor is at most 1, decided exactly for integers and fractions.
    pairwise_factor
        ``max ‖f_j - f_k‖`` over all pairs of secrets. Replacing one secret by another changes the log density by at
        most this times epsilon (Theorem 5.3, first form).
    """

    mechanism: AuditedMechanism = field(metadata=exported())
    sensitivity: float | None = field(metadata=exported())
    factors: FloatArray = field(repr=False)
    protected: BoolArray = field(repr=False)
    pairwise_factor: float = field(metadata=exported())

    @property
    def total_factor(self) -> float:
        """The largest factor of any secret: the table has unbounded DP at this times epsilon."""
        return float(self.factors.max())


@dataclass(frozen=True)
class SecretsAudit(Result):
    """Result of `audit_blowfish`.

    Parameters
    ----------
    policy
        The policy.
    epsilon
        The budget that the policy guarantees on every edge.
    hull
        The sensitivity hull of the edges.
    isolated
        The secrets without an edge.
    levels
        One element per audited mechanism.
    """

    policy: BlowfishPolicy
    epsilon: float = field(metadata=exported())
    hull: SensitivityHull
    isolated: tuple[str, ...] = field(metadata=exported())
    levels: tuple[SecretLevels, ...]

    def get_exposed(self, mechanism: AuditedMechanism) -> tuple[str, ...]:
        """Return the secrets that a mechanism protects by less than epsilon.

        Parameters
        ----------
        mechanism
            An audited mechanism.

        Returns
        -------
        tuple of str
            Names of the exposed secrets.

        Raises
        ------
        InvalidInputError
            If the mechanism was not audited.
        """
        for level in self.levels:
            if level.mechanism == mechanism:
                return tuple(name for name, safe in zip(self.policy.names, level.protected, strict=True) if not safe)
        audited = ", ".join(level.mechanism for level in self.levels)
        raise InvalidInputError(f"mechanism must be one of the audited mechanisms {audited}, got {mechanism!r}")

    @property
    def is_exposed(self) -> bool:
        """Whether any secret is exposed under any audited mechanism."""
        return any(not level.protected.all() for level in self.levels)

    def _derive_fields(self) -> dict[str, Any]:
        levels = zip(self.levels, (self.get_exposed(level.mechanism) for level in self.levels), strict=True)
        names = self.policy.names
        return {
            "form": "database",
            "num_secrets": len(names),
            "hull": describe_hull(self.hull),
            "exposed": self.is_exposed,
            "mechanisms": [
                export_fields(
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
        }


@check_arguments
def audit_blowfish(
    policy: BlowfishPolicy, epsilon: Epsilon = 1.0, mechanisms: Sequence[AuditedMechanism] = ("k-norm", "laplace")
) -> SecretsAudit:
    """Find the secrets that a database policy leaves exposed (Theorem 5.3).

    Parameters
    ----------
    policy
        Secrets, contributions and edges.
    epsilon
        The budget of the release, positive and finite.
    mechanisms
        ``"k-norm"``, ``"laplace"`` or both.

    Returns
    -------
    SecretsAudit
        The factor of every secret under each mechanism.

    Raises
    ------
    BudgetError
        If epsilon is not positive and finite.
    InvalidInputError
        If a mechanism is unknown, or none is given.

    Examples
    --------
    >>> names = ("s1", "s2", "s3", "s4", "s5", "s6")
    >>> counts = [[1, 0], [0, 0], [1, 0], [0, 1], [1, 0], [0, 1]]
    >>> audit = audit_blowfish(BlowfishPolicy(names, counts, (("s1", "s2"), ("s3", "s4"))))
    >>> audit.levels[0].factors.tolist(), audit.get_exposed("k-norm"), audit.get_exposed("laplace")
    ([1.0, 0.0, 1.0, 2.0, 1.0, 2.0], ('s4', 's6'), ())
    """
    if not mechanisms or any(name not in ("k-norm", "laplace") for name in mechanisms):
        raise InvalidInputError(f"mechanisms must be chosen among k-norm, laplace, got {list(mechanisms)}")
    differences = policy.differences()
    hull = SensitivityHull(differences)
    connected = set(chain.from_iterable(policy.edges))
    return SecretsAudit(
        policy=policy,
        epsilon=float(epsilon),
        hull=hull,
        isolated=tuple(name for name in policy.names if name not in connected),
        levels=tuple(_compute_levels(policy, hull, differences, name) for name in mechanisms),
    )


def _compute_levels(
    policy: BlowfishPolicy, hull: SensitivityHull, differences: npt.NDArray[np.generic], mechanism: AuditedMechanism
) -> SecretLevels:
    body = hull
    sensitivity = None
    if mechanism == "laplace":
        # The cross-polytope scaled to the 1-norm sensitivity. Python sums keep fractions exact.
        radius = max((sum(abs(x) for x in row) for row in differences.tolist()), default=0)
        sensitivity = float(radius)
        body = SensitivityHull(np.diag([radius] * differences.shape[1]))
    rows = np.asarray(policy.contributions)
    points = rows.astype(np.float64)
    return SecretLevels(
        mechanism=mechanism,
        sensitivity=sensitivity,
        factors=body.norm(points),
        protected=body.contains(rows),
        pairwise_factor=_compute_diameter(body, rows if rows.dtype.kind == "i" else points),
    )


def _compute_diameter(body: SensitivityHull, points: npt.NDArray[Any]) -> float:
    """Return the largest norm of a difference of two points."""

    # The norm is a maximum over pairs of opposite facets, so the widest extent across each pair suffices.
    form = body.norm_form
    relative = points - points[:1]
    if not form.is_in_span(relative).all():
        return inf
    return float(np.ptp(relative @ form.normals.T, axis=0).max(initial=0.0))
