"""Audit of a policy under constraint sets, or over the secrets of a database."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.audit.blowfish import BlowfishPolicy, audit_blowfish
from dphmm.audit.blowfish import SecretsAudit as SecretsAudit
from dphmm.audit.inference_metrics import AdversaryAudit, audit_support
from dphmm.audit.input_tables import read_edges, read_secrets
from dphmm.audit.policy import (
    AuditedMechanism,
    ConstraintAudit,
    EntryAudit,
    RepairAudit,
    audit_constraints,
    audit_entries,
)
from dphmm.errors import ConfigurationError
from dphmm.formatting import Result, as_plain, exported
from dphmm.jobs.audit.target import AuditTarget, Constraint, Prior, check_prior
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.jobs.region_map import build_region_map
from dphmm.jobs.release.costly_repair import CostlyRepair, describe_costly_repair
from dphmm.policy import Objective, Protection, protect
from dphmm.policy.component_bodies import NoiseScope
from dphmm.validation import Epsilon, check_arguments

_BODIES: tuple[AuditedMechanism, ...] = ("k-norm", "laplace")
# Exposed states that a sentence names; the result contains all of them.
_MAX_NAMED = 5


def _choose_verb(items: Sized) -> str:
    return "is" if len(items) == 1 else "are"


@dataclass(frozen=True, eq=False)
class MapAudit(Result):
    """The states exposed to an adversary who excludes states without land.

    Parameters
    ----------
    audit
        The guarantee on the possible states with land (Definition 5.2 on these instead of the constraint set).
    neighbours
        The states that the repaired graph connects to each exposed state, in the order of ``audit.exposed``. The map
        excludes all of them.
    num_excluded
        The number of possible states that the map excludes.
    """

    audit: AdversaryAudit
    neighbours: tuple[tuple[int, ...], ...] = field(metadata=exported("excluded_neighbours", as_state_names=True))
    num_excluded: int = field(metadata=exported())

    def _derive_fields(self, names: Sequence[str]) -> dict[str, Any]:
        audit = self.audit
        return {
            "num_land_states": int(audit.support.sum()),
            "exposed": [names[state] for state in audit.exposed_with_surrogates],
            "singleton": audit.is_singleton,
            "min_degree_of_protection": audit.min_degree_of_protection,
        }


@dataclass(frozen=True, eq=False)
class PolicyAudit(Result):
    """Result of `audit_policy`.

    Parameters
    ----------
    target
        The states and the policy.
    epsilon
        The budget for stated levels and errors.
    constraints, audits
        The constraint sets, and the audit of each.
    others
        For each constraint set, the guarantee of the repaired K-norm release for another adversary. None without such
        an adversary, or for a single possible state.
    entries
        The audit of entries into zones. None without unprotected states, without a model, or if the model has classes
        of time.
    map_audits
        For each constraint set, the audit for an adversary with a map. None without a map, for a single possible state,
        or if the map excludes all possible states.
    map_credit
        The attribution of the map. Empty without one.
    """

    target: AuditTarget
    epsilon: float = field(metadata=exported())
    constraints: tuple[Constraint, ...]
    audits: tuple[ConstraintAudit, ...] = field(repr=False)
    others: tuple[AdversaryAudit | None, ...] = field(repr=False)
    entries: EntryAudit | None = field(default=None, repr=False, metadata=exported())
    map_audits: tuple[MapAudit | None, ...] = field(default=(), repr=False)
    map_credit: str = field(default="", metadata=exported("map"))

    @property
    def is_exposed(self) -> bool:
        """Whether the policy exposes a state, or the repaired release does to another adversary."""
        others = (*self.others, *(mapped.audit for mapped in self.map_audits if mapped is not None))
        # The repaired release has surrogates: `AdversaryAudit.exposed` is about the paper's mechanism.
        return any(audit.is_exposed for audit in self.audits) or any(
            other is not None and bool(other.exposed_with_surrogates or other.is_singleton) for other in others
        )

    def summary_sentences(self) -> list[str]:
        """Return sentences about exposed states and the adversary to whom they are exposed.

        Returns
        -------
        list of str
            One sentence for the public adversary, and some for each other adversary.
        """
        exposed = {
            (label, state)
            for label, audit in self._list_labelled_audits()
            for body in audit.bodies
            for state in body.exposed
        }
        about_other = [*self._describe_other_adversary(), *self._describe_map_adversary()]
        name = "To an adversary who knows the policy and the constraint set"
        if exposed:
            public = f"{name}, the policy without a repair leaves {self._list_exposed(exposed)} exposed."
        elif about_other:
            public = f"{name}, no state is exposed by a single release."
        else:
            public = "No state is exposed by a single release."
        return [public, *about_other]

    def _describe_other_adversary(self) -> list[str]:
        others = [(constraint.label, other) for constraint, other in zip(self.constraints, self.others, strict=True)]
        audited = [(label, other) for label, other in others if other is not None]
        if not audited:
            return []
        name = "To the adversary with the provided prior"
        exposed = {(label, state) for label, other in audited for state in other.exposed_with_surrogates}
        exposed_exactly = {(label, state) for label, other in audited for state in other.exposed} - exposed
        sentences = []
        if audited[0][1].is_singleton:
            (state,) = np.flatnonzero(audited[0][1].support).tolist()
            sentences.append(f"{name}, state {self.target.names[state]!r} is known before the release.")
        if exposed:
            sentences.append(f"{name}, {self._list_exposed(exposed)} {_choose_verb(exposed)} exposed after the repair.")
        if exposed_exactly:
            sentences.append(
                f"{name}, {self._list_exposed(exposed_exactly)} would be exposed by a mechanism without surrogates, "
                "which 'dphmm release' does not use."
            )
        return sentences or [f"{name}, no state is exposed by a single release."]

    def _describe_map_adversary(self) -> list[str]:
        """Name the adversary, exposed states, their neighbours, and the least protection."""
        if not self.map_credit:
            return []
        name = f"To an adversary who excludes cells without land ({self.map_credit.rstrip('.')})"
        labelled = zip(self.constraints, self.map_audits, strict=True)
        audited = [(constraint.label, mapped) for constraint, mapped in labelled if mapped is not None]
        if not audited:
            return [f"{name}, no constraint set has two possible states of which one is land."]
        names = self.target.names
        sentences = []
        exposed = {(label, state) for label, mapped in audited for state in mapped.audit.exposed_with_surrogates}
        if exposed:
            neighbours = {
                (label, state): adjacent
                for label, mapped in audited
                for state, adjacent in zip(mapped.audit.exposed_with_surrogates, mapped.neighbours, strict=True)
            }
            first = min(exposed)
            listed = ", ".join(repr(names[state]) for state in neighbours[first][:_MAX_NAMED])
            more = len(neighbours[first]) - _MAX_NAMED
            and_more = f" and {more:,} more" if more > 0 else ""
            sentences.append(
                f"{name}, {self._list_exposed(exposed)} {_choose_verb(exposed)} exposed after the repair: "
                f"the neighbours of {names[first[1]]!r} ({listed or 'none'}{and_more}) are excluded."
            )
        label, weakest = min(audited, key=lambda pair: pair[1].audit.min_degree_of_protection)
        where = f" ({label})" if len(self.constraints) > 1 else ""
        sentences.append(
            f"{name}, each protected land state is indistinguishable from at least "
            f"{weakest.audit.min_degree_of_protection - 1:,} of the {int(weakest.audit.support.sum()) - 1:,} other "
            f"possible land states by a single release{where}. The map excludes {weakest.num_excluded:,} possible "
            "states."
        )
        return sentences

    def _list_exposed(self, exposed: set[tuple[str, int]]) -> str:
        """Name up to five exposed states, with their constraint sets if there are several."""
        names = self.target.names
        several = len(self.constraints) > 1
        listed = [f"{names[state]!r}{f' ({label})' if several else ''}" for label, state in sorted(exposed)]
        more = f" and {len(listed) - _MAX_NAMED:,} more" if len(listed) > _MAX_NAMED else ""
        return f"state{'s' * (len(listed) > 1)} {', '.join(listed[:_MAX_NAMED])}{more}"

    def _list_labelled_audits(self) -> list[tuple[str, ConstraintAudit]]:
        return [(constraint.label, audit) for constraint, audit in zip(self.constraints, self.audits, strict=True)]

    def list_warnings(self) -> list[str]:
        """Return each mechanism's repair that raises the error most, and omitted entries.

        Returns
        -------
        list of str
            One warning for each mechanism with an error that rises by more than a tenth, with the edge, the exposed
            state, the errors and remedies. One more for a model with classes of time and unprotected states.
        """
        worst: dict[str, tuple[CostlyRepair, str]] = {}
        for label, audit in self._list_labelled_audits():
            for repair in audit.repairs:
                costly = self._find_costly_repair(audit, repair)
                if costly is not None and (
                    repair.mechanism not in worst or costly.ratio > worst[repair.mechanism][0].ratio
                ):
                    worst[repair.mechanism] = costly, label
        warnings = [f"{mechanism}, {label}: {costly.describe()}" for mechanism, (costly, label) in worst.items()]
        model = self.target.model
        if model is not None and model.time_classes is not None and self.target.policy.open.any():
            warnings.append(f"entries into zones are not audited: the model {model.describe()}")
        return warnings

    def _find_costly_repair(self, audit: ConstraintAudit, repair: RepairAudit) -> CostlyRepair | None:
        if repair.method != "exact":
            return None
        model = self.target.model
        space = None if model is None else model.space
        effect = repair.protection.effect
        return describe_costly_repair(effect, self.target.names, space, self.epsilon, audit.noise_scope)

    def to_dict(self, *_: Any) -> dict[str, Any]:
        """Export the audit as plain JSON values with state names."""
        return super().to_dict(self.target.names)

    def _derive_fields(self, names: Sequence[str]) -> dict[str, Any]:
        map_audits = self.map_audits or (None,) * len(self.constraints)
        each = zip(self.constraints, self.audits, self.others, map_audits, strict=True)
        constraints = [
            {
                "label": constraint.label,
                **audit.to_dict(names, self.epsilon),
                "adversary": as_plain(other, names),
                "map_adversary": as_plain(mapped, names),
                "costly_repairs": [
                    {"mechanism": repair.mechanism, **costly.to_dict()}
                    for repair in audit.repairs
                    if (costly := self._find_costly_repair(audit, repair)) is not None
                ],
            }
            for constraint, audit, other, mapped in each
        ]
        return {"form": "markov", "num_states": len(names), "exposed": self.is_exposed, "constraints": constraints}


@check_arguments
def audit_policy(
    target: AuditTarget,
    constraints: Sequence[Constraint] = (),
    mechanisms: Sequence[AuditedMechanism] = _BODIES,
    *,
    epsilon: Epsilon = 1.0,
    repair_objective: Objective = "error",
    noise_scope: NoiseScope = "graph",
    prior: Prior | None = None,
    region_map: str | Path | None = None,
    watch: ProgressCallback = suppress_progress,
) -> PolicyAudit:
    """Audit the exposed states of a policy and all repairs, as ``dphmm audit policy`` does.

    Parameters
    ----------
    target
        The states and the policy: `AuditTarget.from_model`, `AuditTarget.from_tables`.
    constraints
        The constraint sets: `AuditTarget.constrain_to`, `AuditTarget.constrain_along`. Defaults to all states.
    mechanisms
        The mechanisms to audit.
    epsilon
        The budget for stated levels and errors.
    repair_objective
        Objective of the exact repair.
    noise_scope
        Whether the noise is calibrated to the whole graph or to each component.
    prior
        The prior of another adversary, for whom the repaired K-norm release is also audited.
    region_map
        A map, see `dphmm.jobs.region_map.build_region_map`: the repaired K-norm release is also audited for an
        adversary who excludes states without land. Requires a target with a model of a grid.
    watch
        Progress callback, see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    PolicyAudit
        The exposed states under each constraint set.

    Raises
    ------
    BudgetError
        If epsilon is not positive and finite.
    DphmmError
        See `dphmm.audit.policy.audit_constraint`, and if the table of the prior or the map is invalid.

    Examples
    --------
    >>> from dphmm.jobs import AuditTarget, audit_policy, learn, region
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
    >>> model = learn("data/sample/geolife", space, step_seconds=300).model
    >>> target = AuditTarget.from_model(model, "utility:1km")
    >>> audit = audit_policy(target, [target.constrain_to(("3", "4", "90"))])
    >>> audit.is_exposed, audit.audits[0].bodies[0].exposed
    (True, (90,))
    """
    believed = check_prior(prior, target.names)
    chosen = tuple(constraints) or (target.build_full_constraint(),)
    policy = target.policy
    f = target.measurements
    sets = [constraint.states for constraint in chosen]

    mapped = None
    if region_map is not None:
        if target.model is None:
            raise ConfigurationError("a map requires --model: states of a table have no locations")
        mapped = build_region_map(region_map, target.model.space)

    def repair(audit: ConstraintAudit) -> Protection:
        return protect(policy, f, audit.constraint, objective=repair_objective, noise_scope=noise_scope)

    def audit_other_adversary(audit: ConstraintAudit) -> AdversaryAudit | None:
        if believed is None or audit.num_possible_states <= 1:
            return None
        return audit_support(repair(audit), f, believed > 0)

    def with_map(audit: ConstraintAudit) -> MapAudit | None:
        if mapped is None or audit.num_possible_states <= 1:
            return None
        land = audit.constraint & ~mapped.excluded
        if not land.any():
            return None
        repaired = repair(audit)
        result = audit_support(repaired, f, land)
        neighbours = tuple(tuple(sorted(repaired.graph.neighbors(state))) for state in result.exposed_with_surrogates)
        return MapAudit(result, neighbours, audit.num_possible_states - int(land.sum()))

    audited = audit_constraints(policy, f, sets, mechanisms, repair_objective, noise_scope)
    audits = tuple(watch(audited, "Auditing", len(chosen)))
    model = target.model if policy.open.any() else None
    # An entry is a step by one matrix.
    entries = None if model is None or model.time_classes is not None else audit_entries(policy, f, model, epsilon)
    return PolicyAudit(
        target,
        float(epsilon),
        chosen,
        audits,
        tuple(map(audit_other_adversary, audits)),
        entries,
        tuple(map(with_map, audits)),
        "" if mapped is None else mapped.credit,
    )


@check_arguments
def audit_secrets(
    secrets: str | Path,
    edges: str | Path,
    counts: Sequence[str] = (),
    mechanisms: Sequence[AuditedMechanism] = _BODIES,
    *,
    epsilon: Epsilon = 1.0,
) -> SecretsAudit:
    """Audit the exposed secrets of a database, as ``dphmm audit policy --secrets`` does.

    Parameters
    ----------
    secrets
        A table with a column ``secret``. Without `counts`, its numeric columns are the contributions to the answers.
    edges
        A table of two columns: pairs that must be indistinguishable, with ``null`` for absence.
    counts
        Count queries ``COLUMN=VALUE``, with several conditions joined by commas.
    mechanisms, epsilon
        See `audit_policy`. The mechanisms are ``"k-norm"`` and ``"laplace"``.

    Returns
    -------
    SecretsAudit
        The levels of each mechanism and the exposed secrets.

    Raises
    ------
    DataFileError, PolicyError
        If a table is invalid.
    InvalidInputError, BudgetError
        If a mechanism is unknown, or epsilon is invalid.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     secrets, edges = Path(folder, "secrets.csv"), Path(folder, "edges.csv")
    ...     _ = secrets.write_text("secret,x,y\\na,1,0\\nb,0,2\\n")
    ...     _ = edges.write_text("first,second\\na,null\\n")
    ...     audit = audit_secrets(secrets, edges)
    >>> audit.get_exposed("k-norm")
    ('b',)
    """
    names, contributions = read_secrets(secrets, counts)
    policy = BlowfishPolicy(names, contributions, read_edges(edges))
    return audit_blowfish(policy, epsilon, mechanisms)
