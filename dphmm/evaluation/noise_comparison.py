"""Comparison of noise mechanisms at equal budgets and at equal guarantees.

Releases, estimates and smoothed estimates are compared by their errors.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import partial
from math import isfinite, nan, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arrays import IntArray, as_integers
from dphmm.compilation import compile_at_first_call
from dphmm.errors import ConfigurationError, DphmmError, InvalidInputError
from dphmm.evaluation.config import EvaluationConfig, load_config
from dphmm.evaluation.run import Evaluation
from dphmm.evaluation.split import Split, get_model_path
from dphmm.geometry.sensitivity_hull import SensitivityHull
from dphmm.jobs.batch.workers import Engine, Processes
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.mechanisms.registry import MechanismName
from dphmm.model.forward_backward import smooth
from dphmm.model.model import MarkovModel
from dphmm.policy.component_bodies import NoiseScope
from dphmm.policy.expression import format_policy_label
from dphmm.policy.graph import PolicyGraph, PolicyLike, as_policy, get_state_names
from dphmm.policy.lengths import format_policy_length
from dphmm.random import derive_seed
from dphmm.release.engine import ReleaseSettings
from dphmm.space.states import StateSpace
from dphmm.tables import create_file, write_csv
from dphmm.tables.values import shorten
from dphmm.validation import SeedOrGenerator, check_arguments

# The compared noises: name, mechanism and noise scope. The first is the reference.
NOISES: tuple[tuple[str, MechanismName, NoiseScope], ...] = (
    ("K-norm, one hull", "lattice", "graph"),
    ("K-norm, by component", "lattice", "component"),
    ("planar isotropic, one hull", "planar-isotropic", "graph"),
    ("planar Laplace, one disc", "planar-laplace", "graph"),
    ("graph-exponential", "graph-exponential", "component"),
    ("optimal", "optimal", "component"),
)

# Below this ratio of its inner to its outer radius, a hull is reported as coarse.
_MIN_RADIUS_RATIO = 0.85


@dataclass(frozen=True)
class NoiseRow:
    """The errors of one noise at one budget.

    Parameters
    ----------
    noise
        Name of the noise, one of `NOISES`.
    equal
        ``"edge"``: all rows have the same budget on every edge. ``"any two"``: the budget is chosen so that the largest
        loss between any two possible states equals that of the first noise.
    epsilon, factor
        Budget on an edge, and the largest loss between any two possible states before the first release as a multiple
        of it. The factor is infinite if a release may distinguish components.
    released, estimate, smoothed
        Root mean square distances from the points of the true states in kilometres: of the releases, of the posterior
        mean after each release, and of the posterior mean given all releases, which an adversary with the model can
        compute.
    releases
        Number of releases.
    note
        Reason why there are no errors; empty otherwise.
    """

    noise: str
    equal: str
    epsilon: float
    factor: float
    released: float = nan
    estimate: float = nan
    smoothed: float = nan
    releases: int = 0
    note: str = ""


@check_arguments
def compare_noise(
    model: MarkovModel,
    settings: ReleaseSettings,
    sequences: Sequence[IntArray] | IntArray,
    rng: SeedOrGenerator = 0,
    policy: PolicyLike | None = None,
) -> tuple[NoiseRow, ...]:
    """Compare all noises on the same true sequences at equal budgets and equal guarantees.

    Parameters
    ----------
    model
        A model with states. Every sequence starts from its initial distribution.
    settings
        The policy, the budget of an edge and all other settings. Mechanism and noise scope are replaced.
    sequences
        True states, one sequence per row.
    rng
        Seed or generator of the noise. Seeded noise provides no privacy.
    policy
        The policy's graph, in place of the settings' string; a `PolicyGraph` or a `networkx.Graph`.

    Returns
    -------
    tuple of NoiseRow
        Rows in the order of `NOISES`. A noise without a guarantee for some pair of states has no row at equal
        guarantees.

    Raises
    ------
    InvalidInputError
        If there is no sequence of states, or none contains a state.
    DphmmError
        If a state or the policy is invalid, or the engine refuses a release; see `Releaser`.

    Examples
    --------
    >>> from dphmm import Grid, MarkovModel
    >>> space = Grid.over((44.99, -30.01, 45.0, -29.99), cell_km=0.5)
    >>> model = MarkovModel(np.full((space.size,) * 2, 1 / space.size), np.full(space.size, 1 / space.size), space)
    >>> rows = compare_noise(model, ReleaseSettings(policy="utility:600m"), [[0, 1, 2]])
    >>> sorted({row.equal for row in rows}), {row.releases for row in rows}
    (['any two', 'edge'], {3})
    """
    argument: object = sequences
    if isinstance(argument, str) or not isinstance(argument, Iterable):
        raise InvalidInputError(f"sequences must be a list of sequences of states, got {shorten(argument)}")
    paths = [model.space.check(as_integers(sequence, "the states of a sequence").ravel()) for sequence in sequences]
    if not sum(map(len, paths)):
        raise InvalidInputError("sequences must contain at least one state, got none")
    seed = derive_seed(rng)
    graph = (
        settings.build_graph(model) if policy is None else as_policy(policy, model.size, get_state_names(model.space))
    )
    rows: list[NoiseRow] = []
    reference = nan
    for equal in ("edge", "any two"):
        for name, mechanism, noise_scope in NOISES:
            noise_settings = replace(settings, mechanism=mechanism, noise_scope=noise_scope)
            factor = _compute_factor(noise_settings, model, graph)
            if name == NOISES[0][0]:
                reference = factor
            if equal == "any two":
                if not (isfinite(factor) and isfinite(reference) and factor > 0):
                    continue
                if factor == reference:  # equal budgets are equal guarantees: reuse the row
                    rows.append(replace(next(row for row in rows if row.noise == name), equal=equal))
                    continue
                noise_settings = replace(noise_settings, epsilon=settings.epsilon * reference / factor)
            row = NoiseRow(name, equal, noise_settings.epsilon, factor)
            try:
                rows.append(_measure_noise(row, noise_settings, model, graph, paths, seed))
            except DphmmError as problem:
                rows.append(replace(row, note=str(problem)))
    return tuple(rows)


def _compute_factor(settings: ReleaseSettings, model: MarkovModel, graph: PolicyGraph) -> float:
    try:
        engine = settings.engine(model, policy=graph)
        return engine.planner.build_plan(engine.predict()).protection.diameter
    except DphmmError:
        return nan


def _measure_noise(
    row: NoiseRow, settings: ReleaseSettings, model: MarkovModel, graph: PolicyGraph, paths: list[IntArray], seed: int
) -> NoiseRow:
    engine = settings.engine(model, seed, graph)
    points = engine.measurements.points
    squares = []
    transition = model.inside_transition
    for path in paths:
        engine.restart()
        logs = []
        true = points[path]
        released = []
        estimates = []
        first = engine.predict().probabilities
        for state in path.tolist():
            step = engine.prepare()
            record = engine.draw(step, state)
            assert record.released is not None, "settings of a comparison have no schedule"
            logs.append(engine.log_likelihood(step, record.released))
            released.append(record.released)
            estimates.append(record.estimate)
        smoothed = smooth(transition, first, np.array(logs)) @ points
        squares.append(
            np.stack([np.square(np.array(at) - true).sum(axis=1) for at in (released, estimates, smoothed)], axis=1)
        )
    everything = np.concatenate(squares)
    means = [sqrt(float(mean)) for mean in everything.mean(axis=0)]
    return replace(row, released=means[0], estimate=means[1], smoothed=means[2], releases=len(everything))


def _describe_uneven_reach(graph: PolicyGraph, space: StateSpace) -> str | None:
    """Describe how a hull's radii differ by direction. None if it is nearly a disc.

    On cells that are large relative to its radius, the policy ``utility`` has few offsets: with cells of half the
    radius, the hull is a diamond. Users expect a disc, which planar Laplace noise has.

    Examples
    --------
    >>> from dphmm.space import Grid
    >>> cells = Grid.over((45.0, -30.0, 45.03, -29.97), cell_km=0.5)
    >>> _describe_uneven_reach(PolicyGraph.utility(cells.measurements(), 1.0), cells)
    'reaches 1km in one direction and 708m in another'
    >>> fine = Grid.over((45.0, -30.0, 45.03, -29.97), cell_km=0.2)
    >>> _describe_uneven_reach(PolicyGraph.utility(fine.measurements(), 1.0), fine)
    """
    hull = SensitivityHull(graph.differences(space.measurements()))
    if hull.dimension < 2:
        return None
    normals = hull.norm_form.normals
    inner = float((1 / np.linalg.norm(normals, axis=1)).min())
    outer = hull.circumradius
    if inner >= _MIN_RADIUS_RATIO * outer:
        return None
    return f"reaches {format_policy_length(outer)} in one direction and {format_policy_length(inner)} in another"


def _warn_if_coarse(settings: ReleaseSettings, model: MarkovModel) -> None:
    reach = _describe_uneven_reach(settings.build_graph(model), model.space)
    if reach is not None:
        logging.getLogger(__name__).warning(
            "dphmm: the cells are coarse: the hull of %s %s, while planar Laplace uses a disc",
            format_policy_label(settings.policy),
            reach,
        )


def compare_noise_on_data(
    config: EvaluationConfig | str | Path,
    folder: str | Path,
    resume: bool = False,
    watch: ProgressCallback = suppress_progress,
    *,
    engine: Engine | None = None,
) -> dict[str, list[NoiseRow]]:
    """Compare noises on a data set.

    Equivalent to ``dphmm evaluate --compare-noise`` without its pictures.

    Parameters
    ----------
    config
        Data, policies and budget, or the path of their TOML file. Its mechanisms and sweeps are ignored.
    folder
        New or empty, unless `resume` is true. ``PRIVATE-noise.csv`` is written to it and is derived from true
        locations.
    resume
        Whether the folder may contain a run of the same configuration, of which users and models are reused.
    watch
        Callback that shows the progress.
    engine
        Workers that each compare the noises on a fold of users, which they read from the folder. Defaults to this
        process.

    Returns
    -------
    dict
        Policy → its rows.

    Raises
    ------
    DphmmError
        See `load_config`, `Evaluation.open` and the engine's ``run``. Also if a policy has a ``delta``: the guarantee
        of a δ-location set for two states is not a constant.
    """
    loaded = config if isinstance(config, EvaluationConfig) else load_config(config)
    for policy in loaded.policies:
        if loaded.get_default_setting(policy).release_settings.delta is not None:
            raise ConfigurationError(f"policy {policy!r} has a delta and cannot be compared: remove it from 'policies'")
    data = loaded.user_data
    runner = engine or Processes(1)
    rows_by_policy: dict[str, list[NoiseRow]] = {}
    with (
        runner.start_workers(),
        closing(Evaluation.open(loaded, Path(folder), lambda: data.read().trajectories, resume)) as evaluation,
    ):
        at = evaluation.checkpoint.folder.absolute()
        folds = np.unique(evaluation.split.folds).tolist()
        for policy in loaded.policies:
            base = loaded.get_default_setting(policy).release_settings
            rows_by_noise = dict[tuple[str, str], list[NoiseRow]]()
            _warn_if_coarse(base, MarkovModel.load(get_model_path(at, int(evaluation.split.folds[0]))))
            compare_fold = partial(_compare_fold, at, base, loaded.seed)
            for rows in watch(runner.run_in_order(compare_fold, folds), f"Comparing under {policy}", len(folds)):
                for row in rows:
                    rows_by_noise.setdefault((row.noise, row.equal), []).append(row)
            rows_by_policy[base.policy] = [_pool_rows(rows) for rows in rows_by_noise.values()]
    names = [field.name for field in fields(NoiseRow)]
    with create_file(Path(folder) / "PRIVATE-noise.csv", overwrite=True, private=True) as part:
        lines = (
            [policy, *(getattr(row, name) for name in names)] for policy, rows in rows_by_policy.items() for row in rows
        )
        write_csv(part, ["policy", *names], lines)
    return rows_by_policy


def _compare_fold(folder: Path, settings: ReleaseSettings, seed: int, fold: int) -> tuple[NoiseRow, ...]:
    """Compare the noises on a fold of the run in a folder."""
    split = Split.load(folder)
    model = MarkovModel.load(get_model_path(folder, fold))
    # The plain and the compiled form of a loop differ in the last digits, so that workers would not agree.
    with compile_at_first_call():
        return compare_noise(model, settings, split.states[split.folds == fold][:, 1:], seed)


def _pool_rows(rows: list[NoiseRow]) -> NoiseRow:
    """Pool the rows of one noise over several models, weighted by their numbers of releases."""
    measured = [row for row in rows if row.releases]
    if not measured:
        return rows[0]
    counts = [row.releases for row in measured]
    pooled: dict[str, Any] = {
        name: float(np.mean([getattr(row, name) for row in rows])) for name in ("epsilon", "factor")
    }
    for name in ("released", "estimate", "smoothed"):
        pooled[name] = sqrt(float(np.average([getattr(row, name) ** 2 for row in measured], weights=counts)))
    return replace(rows[0], **pooled, releases=sum(counts))
