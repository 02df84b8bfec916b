"""Kinds of noise at equal budgets and at equal promises: what is released, and what can be made of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from math import isfinite, nan, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import IntArray, as_integers, random_source
from dphmm.errors import ConfigurationError, DphmmError, InvalidInputError
from dphmm.evaluation.config import EvaluationConfig, load_config
from dphmm.evaluation.run import Evaluation
from dphmm.evaluation.split import model_file
from dphmm.geometry.hull import SensitivityHull
from dphmm.jobs.progress import Watch, unwatched
from dphmm.mechanisms.base import MechanismName
from dphmm.model.forward_backward import smooth
from dphmm.model.model import MarkovModel
from dphmm.policy.by_component import Calibration
from dphmm.policy.expression import policy_label
from dphmm.policy.graph import PolicyGraph, PolicyLike, as_policy, names_of
from dphmm.policy.lengths import length
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.space.states import StateSpace
from dphmm.tables import new_file, write_csv
from dphmm.tables.values import shorten

NOISES: tuple[tuple[str, MechanismName, Calibration], ...] = (
    ("K-norm, one hull", "lattice", "graph"),
    ("K-norm, by component", "lattice", "component"),
    ("planar isotropic, one hull", "planar-isotropic", "graph"),
    ("planar Laplace, one disc", "planar-laplace", "graph"),
    ("graph-exponential", "graph-exponential", "component"),
    ("optimal", "optimal", "component"),
)
"""What is compared: a name, its mechanism, and what its noise is measured for. The first is the reference."""

_COARSE = 0.85
"""A hull whose inner radius is below this share of its outer one is said to be coarse."""


@dataclass(frozen=True)
class NoiseRow:
    """One kind of noise at one budget.

    Parameters
    ----------
    noise
        One of `NOISES`.
    equal
        ``"edge"``: the budget of an edge is that of all other rows. ``"any two"``: it is such that the loss between
        the two possible states that are told apart most is that of the first kind.
    epsilon, factor
        The budget of an edge, and how many times that any two possible states differ by before the first release;
        infinite where a release may tell components apart.
    released, estimate, hindsight
        The root mean square distances from the true places, in kilometres: of what is released, of the posterior mean
        at the time, and of the mean given all releases, as an adversary with the model knows it afterwards.
    releases
        Over how many releases.
    note
        Why there are no figures, where there are none.
    """

    noise: str
    equal: str
    epsilon: float
    factor: float
    released: float = nan
    estimate: float = nan
    hindsight: float = nan
    releases: int = 0
    note: str = ""


@checked
def compare_noise(
    model: MarkovModel,
    settings: ReleaseSettings,
    sequences: Sequence[IntArray] | IntArray,
    seed: int = 0,
    policy: PolicyLike | None = None,
) -> tuple[NoiseRow, ...]:
    """All kinds of noise on the same true sequences, first at equal budgets and then at equal promises.

    Parameters
    ----------
    model
        A model that knows its states, from whose first distribution every sequence begins.
    settings
        The policy, the budget of an edge, and everything else but the noise.
    sequences
        True states, one sequence a row.
    seed
        Of the noise. Nothing here is private.
    policy
        The policy's graph, in place of the settings' text; a `PolicyGraph` or a `networkx.Graph`.

    Returns
    -------
    tuple of NoiseRow
        In the order of `NOISES`; a kind that promises nothing between some two states has no row at equal promises.

    Examples
    --------
    >>> from dphmm import Grid, MarkovModel
    >>> space = Grid.over((44.99, -30.01, 45.0, -29.99), cell_km=0.5)
    >>> model = MarkovModel(np.full((space.size,) * 2, 1 / space.size), np.full(space.size, 1 / space.size), space)
    >>> rows = compare_noise(model, ReleaseSettings(policy="utility:600m"), [[0, 1, 2]])
    >>> sorted({row.equal for row in rows}), {row.releases for row in rows}
    (['any two', 'edge'], {3})
    """
    given: object = sequences
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidInputError(f"sequences are {shorten(given)}; give a list of sequences of states")
    paths = [model.space.check(as_integers(sequence, "the states of a sequence").ravel()) for sequence in sequences]
    if not sum(map(len, paths)):
        raise InvalidInputError("sequences are empty; give at least one state")
    random_source(seed)
    graph = settings.graph(model) if policy is None else as_policy(policy, model.size, names_of(model.space))
    rows: list[NoiseRow] = []
    reference = nan
    for equal in ("edge", "any two"):
        for name, mechanism, calibration in NOISES:
            own = replace(settings, mechanism=mechanism, calibration=calibration)
            factor = _factor(own, model, graph)
            if name == NOISES[0][0]:
                reference = factor
            if equal == "any two":
                if not (isfinite(factor) and isfinite(reference) and factor > 0):
                    continue
                if factor == reference:  # the same noise
                    rows.append(replace(next(row for row in rows if row.noise == name), equal=equal))
                    continue
                own = replace(own, epsilon=settings.epsilon * reference / factor)
            row = NoiseRow(name, equal, own.epsilon, factor)
            try:
                rows.append(_measured(row, own, model, graph, paths, seed))
            except DphmmError as problem:
                rows.append(replace(row, note=str(problem)))
    return tuple(rows)


def _factor(settings: ReleaseSettings, model: MarkovModel, graph: PolicyGraph) -> float:
    try:
        engine = Releaser.made(settings, model, model.space, graph)
        return engine.plan(engine.prior()).protection.diameter
    except DphmmError:
        return nan


def _measured(
    row: NoiseRow, settings: ReleaseSettings, model: MarkovModel, graph: PolicyGraph, paths: list[IntArray], seed: int
) -> NoiseRow:
    engine = Releaser.made(settings, model, model.space, graph, seed)
    points, squares = engine.measurements.points, []
    transition = model.moves_inside
    for path in paths:
        engine.restart()
        logs, true = [], points[path]
        released, estimates = [], []
        first = engine.prior().probabilities
        for state in path.tolist():
            step = engine.prepare()
            record = engine.draw(step, state)
            assert record.released is not None, "settings of a comparison have no schedule"
            logs.append(engine.log_likelihood(step, record.released))
            released.append(record.released)
            estimates.append(record.estimate)
        hindsight = smooth(transition, first, np.array(logs)) @ points
        squares.append(
            np.stack([np.square(np.array(at) - true).sum(axis=1) for at in (released, estimates, hindsight)], axis=1)
        )
    everything = np.concatenate(squares)
    means = [sqrt(float(mean)) for mean in everything.mean(axis=0)]
    return replace(row, released=means[0], estimate=means[1], hindsight=means[2], releases=len(everything))


def _uneven_reach(graph: PolicyGraph, space: StateSpace) -> str | None:
    """How much shorter a graph's sensitivity hull is in one direction than in another; None where that is little.

    On cells that are coarse beside its radius a policy ``utility`` has few offsets to be the hull of: with cells of
    half the radius it is a diamond. People expect a disc, which planar Laplace noise is drawn from.

    Examples
    --------
    >>> from dphmm.space import Grid
    >>> cells = Grid.over((45.0, -30.0, 45.03, -29.97), cell_km=0.5)
    >>> _uneven_reach(PolicyGraph.utility(cells.measurements(), 1.0), cells)
    'reaches 1km one way and 708m another'
    >>> fine = Grid.over((45.0, -30.0, 45.03, -29.97), cell_km=0.2)
    >>> _uneven_reach(PolicyGraph.utility(fine.measurements(), 1.0), fine)
    """
    hull = SensitivityHull(graph.differences(space.measurements()))
    if hull.dimension < 2:
        return None
    normals = hull.norm_form.normals
    inner, outer = float((1 / np.linalg.norm(normals, axis=1)).min()), hull.circumradius
    return None if inner >= _COARSE * outer else f"reaches {length(outer)} one way and {length(inner)} another"


def _say_coarse(settings: ReleaseSettings, model: MarkovModel) -> None:
    said = _uneven_reach(settings.graph(model), model.space)
    if said is not None:
        logging.getLogger(__name__).warning(
            "dphmm: the cells are coarse: the hull of %s %s; planar Laplace is the disc",
            policy_label(settings.policy),
            said,
        )


def compared_noise(
    config: EvaluationConfig | str | Path, folder: str | Path, resume: bool = False, watch: Watch = unwatched
) -> dict[str, list[NoiseRow]]:
    """Compare kinds of noise on a data set, as ``dphmm evaluate --compare-noise`` does but for its pictures.

    Parameters
    ----------
    config
        The data, the policies and the budget, or the TOML file that says them; its mechanisms and sweeps do not count.
    folder
        New or empty, unless `resume` is true. It gets ``PRIVATE-noise.csv``, which comes from true places.
    resume
        Whether the folder may hold a run of the same configuration, whose people and models are then taken up.
    watch
        Who is shown the progress.

    Returns
    -------
    dict
        Policy → its rows.

    Raises
    ------
    DphmmError
        As `load_config` and `Evaluation.open`, and for a policy with a ``delta``: what a δ-location set alone promises
        for two states is no constant.
    """
    what = config if isinstance(config, EvaluationConfig) else load_config(config)
    for policy in what.policies:
        if what.base(policy).release_settings.delta is not None:
            raise ConfigurationError(f"policy {policy!r} has a delta; compare noise without one")
    data = what.people
    found: dict[str, list[NoiseRow]] = {}
    with closing(Evaluation.open(what, Path(folder), lambda: data.read().trajectories, resume)) as evaluation:
        split, at = evaluation.split, evaluation.checkpoint.folder
        for policy in what.policies:
            base, kinds = what.base(policy).release_settings, dict[tuple[str, str], list[NoiseRow]]()
            _say_coarse(base, MarkovModel.load(model_file(at, int(split.folds[0]))))
            for fold in watch(np.unique(split.folds).tolist(), f"Comparing under {policy}"):
                model, states = MarkovModel.load(model_file(at, fold)), split.states[split.folds == fold][:, 1:]
                for row in compare_noise(model, base, states, what.seed):
                    kinds.setdefault((row.noise, row.equal), []).append(row)
            found[base.policy] = [_pooled(rows) for rows in kinds.values()]
    names = [field.name for field in fields(NoiseRow)]
    with new_file(Path(folder) / "PRIVATE-noise.csv", overwrite=True, private=True) as part:
        lines = ([policy, *(getattr(row, name) for name in names)] for policy, rows in found.items() for row in rows)
        write_csv(part, ["policy", *names], lines)
    return found


def _pooled(rows: list[NoiseRow]) -> NoiseRow:
    """The rows of one kind over several models as one, by numbers of releases."""
    measured = [row for row in rows if row.releases]
    if not measured:
        return rows[0]
    counts = [row.releases for row in measured]
    said: dict[str, Any] = {
        name: float(np.mean([getattr(row, name) for row in rows])) for name in ("epsilon", "factor")
    }
    for name in ("released", "estimate", "hindsight"):
        said[name] = sqrt(float(np.average([getattr(row, name) ** 2 for row in measured], weights=counts)))
    return replace(rows[0], **said, releases=sum(counts))
