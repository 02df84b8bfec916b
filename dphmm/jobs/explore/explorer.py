"""A policy at work: what the page of ``dphmm explore`` shows at a timestep.

Nothing is computed here that a release or an audit would compute differently: steps are those of `dphmm.Releaser`,
degrees of protection and hulls those of `dphmm.audit.policy.audit_constraint`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dphmm.arrays import BoolArray, FloatArray
from dphmm.audit.policy import BodyAudit, ConstraintAudit
from dphmm.caching import BoundedCache
from dphmm.errors import ConfigurationError, DphmmError, InvalidInputError, PolicyError, SingletonConstraintError
from dphmm.geometry.sensitivity_hull import Disc, SensitivityHull
from dphmm.jobs.audit.adversaries import build_habit_model
from dphmm.jobs.audit.target import get_state_names
from dphmm.jobs.audit.uses import compare_uses, sample_users
from dphmm.jobs.explore.computed_timesteps import Progress, ReleasedStep, Run, get_audited_mechanism, ignore_progress
from dphmm.jobs.explore.explored_user import (
    CITY_PREPARATION,
    NUM_STEPS,
    ExploredUser,
    NumSteps,
    build_city_model,
    sample_user,
    select_user,
)
from dphmm.jobs.explore.typed_settings import DEFAULT_FIELDS, ZONES_LAYER, EditedEdges, parse_fields
from dphmm.jobs.input_data import DataLike
from dphmm.jobs.model.blank import build_blank_model
from dphmm.jobs.model.loading import Model, load_model
from dphmm.model import Belief, MarkovModel
from dphmm.policy.expression import format_policy_label
from dphmm.policy.graph import PolicyGraph
from dphmm.policy.graph_text import MAX_TEXT_EDGES
from dphmm.policy.lengths import parse_length
from dphmm.policy.protection_degrees import Protection
from dphmm.policy.repair import Method
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.step_plan import StepPlan
from dphmm.release.trajectory_release import to_degrees
from dphmm.space.grid import Box
from dphmm.space.projection import unwrap_longitudes
from dphmm.space.streets import Streets
from dphmm.validation import NonNegativeInt, check_arguments

# The edges of a policy are listed in full for constraint sets of at most this many states.
MAX_EDGE_STATES = 500

# The default number of sampled users of whom the page compares the uses of releases.
USES_USERS = 60

# The default number of timesteps of these users.
USES_STEPS = 24

# A complete policy over 500 states has 124,750 edges. The browser draws a tenth of them within a frame.
_MAX_EDGES = 12_000
_NUM_SAMPLES = 200
_NUM_RUNS = 6  # settings whose steps are kept, so that the time axis and Undo answer at once
# A change that computes more timesteps than these is first answered by the timestep shown alone.
_MAX_DIRECT_STEPS = 8
_NUM_CIRCLE_POINTS = 72
_SAMPLE_SEED = 5

Item = TypeVar("Item")


class Explorer:
    """A model and a user, for whom settings can be tried.

    Parameters
    ----------
    model
        The model.
    user
        The user.
    source
        The model's file in command lines; empty if there is none, and then there are no command lines.
    preparation
        The command line that creates the model's file; empty if it exists.
    """

    def __init__(
        self, model: MarkovModel, user: ExploredUser, source: str = "model.npz", preparation: str = ""
    ) -> None:
        self.model = model
        self.user = user
        self.names = get_state_names(model.space)
        self._source = source
        self._preparation = preparation
        self._habits = None if user.history is None else build_habit_model(model, user.history)
        self._graphs: BoundedCache[tuple[str, str], PolicyGraph] = BoundedCache(_NUM_RUNS)
        self._runs: dict[tuple[str, int], Run] = {}

    @property
    def is_invented_city(self) -> bool:
        """Whether the model is that of the invented city."""
        return self._preparation == CITY_PREPARATION

    @classmethod
    @check_arguments
    def open(
        cls,
        model: Model | None = None,
        *,
        town: str | None = None,
        bbox: Box | None = None,
        data: DataLike | None = None,
        user: str | None = None,
        num_steps: NumSteps = NUM_STEPS,
        seed: NonNegativeInt | None = None,
    ) -> Explorer:
        """Open a model, or build one, and read or sample a user.

        Parameters
        ----------
        model
            The model, or its file.
        town, bbox
            A region instead, for which a model without data of users is built. Defaults to the invented city.
        data
            A recording. Defaults to a user sampled from the model.
        user
            The user of the recording, or a name for it if it has none. Defaults to the first one.
        num_steps
            The number of timesteps: the last ones of the recording.
        seed
            The seed of the sampled user. Defaults to 1.

        Returns
        -------
        Explorer
            The explorer.

        Raises
        ------
        ConfigurationError
            If there are several of model, town and bbox, a user without data, a seed with data, or an invalid number of
            timesteps.
        DphmmError
            If the model, the region or the recording is invalid.
        """
        if sum(value is not None for value in (model, town, bbox)) > 1:
            raise ConfigurationError("at most one of MODEL, --town and --bbox is allowed")
        if user is not None and data is None:
            raise ConfigurationError("--user needs --data: without a recording, a user is sampled from the model")
        if seed is not None and data is not None:
            raise ConfigurationError("--seed cannot be combined with --data: no user is sampled from the model")
        source = "model.npz"
        preparation = ""
        if model is not None:
            loaded = load_model(model)
            source = str(model) if isinstance(model, str | Path) else source
        elif town is None and bbox is None:
            loaded = build_city_model()
            source = "dphmm-demo/model.npz"
            preparation = CITY_PREPARATION
        else:
            loaded = build_blank_model(town=town, bbox=bbox).model
            words = ["--town", town] if town is not None else ["--bbox", *(repr(float(side)) for side in bbox or ())]
            preparation = shlex.join(["dphmm", "model", "blank", *words, "-o", source])
        chosen = (
            sample_user(loaded, num_steps, 1 if seed is None else seed)
            if data is None
            else select_user(loaded, model, data, user, num_steps)
        )
        return cls(loaded, chosen, source, preparation)

    def describe(self) -> dict[str, Any]:
        """Return what does not depend on settings, as plain JSON values.

        Returns
        -------
        dict
            The states with names and coordinates, the vertices of segments of streets, the bounds, the times, the
            fields, whether the user is a real one, and the number of the user's timesteps outside the region.
            Longitudes are at most 180° from the centre of the region, so that one across the date line is connected.
        """
        space = self.model.space
        lines = space.latlon_lines() if isinstance(space, Streets) else []
        lines = [unwrap_longitudes(line, space.projection.longitude) for line in lines]
        places = unwrap_longitudes(space.latlon(), space.projection.longitude)
        corners = self._unwrap(space.points.mean(axis=0) + np.array([[0, 0], [space.cell_km, space.cell_km]]))
        vertices = np.concatenate(lines) if lines else places
        return {
            "names": list(self.names),
            "states": np.round(places, 6).tolist(),
            "segments": [np.round(line, 6).tolist() for line in lines],
            "bounds": np.round([vertices.min(axis=0), vertices.max(axis=0)], 6).tolist(),
            "cell_degrees": np.abs(corners[1] - corners[0]).tolist(),
            "times": (self.user.slots * self.model.step).tolist(),
            "is_private": self.user.is_private,
            "user": self.user.name,
            "num_outside": self.user.num_outside,
            "fields": dict(DEFAULT_FIELDS),
            "has_habits": self._habits is not None,
        }

    def build_view(
        self,
        values: Mapping[str, Any],
        step: int,
        seed: int = 1,
        progress: Progress = ignore_progress,
        before: tuple[Mapping[str, Any], int] | None = None,
    ) -> dict[str, Any]:
        """Return what the page shows, as plain JSON values.

        The settings apply from the first timestep on. With ``before`` they may apply to the timestep shown only, after
        releases under earlier settings: the belief and the account continue, as in a session of which the terms are
        amended. This takes one timestep, however many there are.

        Parameters
        ----------
        values
            The fields; see `parse_fields`.
        step
            The timestep, from 0.
        seed
            The seed of the noise: what is shown is not a private release.
        progress
            Called before each timestep is computed.
        before
            The fields and the seed before a change. They are used if the timesteps before the one shown have been
            computed for them, and more than a few have not been computed for the settings.

        Returns
        -------
        dict
            The view, or only ``errors``: field → what is wrong with it. ``applies_from`` is the first timestep with
            these settings: 0, or the one shown.
        """
        settings, errors = self._parse(values)
        if settings is None:
            return {"errors": errors}
        if not 0 <= step < len(self.user.slots):
            raise InvalidInputError(f"step must be an integer from 0 to {len(self.user.slots) - 1}, got {step}")
        try:
            run = self._find_run(settings, seed)
            earlier = self._find_earlier_run(before) if step - len(run.steps) > _MAX_DIRECT_STEPS else None
            if earlier is not None and step <= len(earlier.steps):
                shown = self._describe_step(run, run.amend(earlier, step), applies_from=step)
            else:
                run.advance(step, progress)
                shown = self._describe_step(run, run.find_steps(step))
            edited = EditedEdges.from_text(values.get("edges", ""))
            return {**shown, "edited": {"added": list(edited.added), "removed": list(edited.removed)}}
        except SingletonConstraintError as problem:
            return {"errors": {"policy" if settings.delta is None else "delta": str(problem)}}
        except DphmmError as problem:  # the policy is valid, so the noise does not suit it
            return {"errors": {"mechanism": str(problem)}}

    def list_neighbours(self, values: Mapping[str, Any], step: int, state: int, seed: int = 1) -> list[int]:
        """Return the neighbours of a state in the restricted policy without added edges.

        Parameters
        ----------
        values, step, seed
            As for `build_view`.
        state
            The state.

        Returns
        -------
        list of int
            The neighbours; empty if the state is not possible, or a field is invalid.
        """
        settings, _ = parse_fields(values)
        run = None if settings is None else self._runs.get((settings.content_hash, seed))
        steps = [] if run is None else run.find_steps(step)
        if run is None or not steps or not 0 <= state < self.model.size:
            return []
        constraint = steps[-1].plan.constraint
        if not constraint[state]:
            return []
        others = np.flatnonzero(constraint)
        adjacent = run.engine.policy.connects(np.full(len(others), state), others)
        return [int(other) for other in others[adjacent] if other != state]

    @check_arguments
    def write_policy(self, values: Mapping[str, Any], path: str | Path) -> None:
        """Write the policy graph over all states as node-link JSON.

        The policy ``graph:FILE.json`` reads it.

        Parameters
        ----------
        values
            The fields.
        path
            The file, which is replaced.

        Raises
        ------
        DphmmError
            If a field is invalid, or the policy has more than 20,000 edges.
        """
        settings, errors = self._parse(values)
        if settings is None:
            raise ConfigurationError(next(iter(errors.values())))
        graph = self._build_graph(settings)
        num_edges = graph.number_of_edges()
        if num_edges > MAX_TEXT_EDGES:
            raise PolicyError(
                f"a policy file must have at most {MAX_TEXT_EDGES:,} edges, got {num_edges:,}: use the policy's text"
            )
        graph.to_json(path)

    def toggle_edge(self, values: Mapping[str, Any], first: int, second: int) -> str:
        """Add an edge to the policy, or remove it if the policy has it.

        Parameters
        ----------
        values
            The fields.
        first, second
            Two different states.

        Returns
        -------
        str
            The new value of the field ``edges``.

        Raises
        ------
        DphmmError
            If a field is invalid, or the states are not two states of the model.
        """
        settings, errors = self._parse(values)
        if settings is None:
            raise ConfigurationError(next(iter(errors.values())))
        if first == second or not all(0 <= state < self.model.size for state in (first, second)):
            raise InvalidInputError(
                f"an edge must have two different states from 0 to {self.model.size - 1}, got {first} and {second}"
            )
        is_edge = bool(self._build_graph(settings).connects(first, second)[0])
        return EditedEdges.from_text(values.get("edges", "")).toggle((first, second), is_edge).to_text()

    def list_uses(
        self,
        settings_values: Sequence[Mapping[str, Any]],
        *,
        num_users: int = USES_USERS,
        num_steps: int = USES_STEPS,
        seed: int = 1,
        progress: Progress = ignore_progress,
    ) -> list[dict[str, Any]]:
        """Return the rows of the table that compares what releases of settings are good for.

        Parameters
        ----------
        settings_values
            The fields of each setting.
        num_users, num_steps
            The number of users sampled from the model, at least two, and of their timesteps, from the first one of the
            page on. A tenth of the users, at least one, are patients.
        seed
            The seed of the users and of the noise.
        progress
            Called with the number of released users and their total.

        Returns
        -------
        list of dict
            `dphmm.jobs.UsesComparison.to_dict` of each setting, with the label of its policy. Nothing in it depends on
            a recording.

        Raises
        ------
        DphmmError
            If a field is invalid, or there are fewer than two users.
        """
        all_settings = []
        for values in settings_values:
            settings, errors = self._parse(values)
            if settings is None:
                raise ConfigurationError(next(iter(errors.values())))
            all_settings.append(settings)
        first = int(self.user.slots[0])
        # Each user is released with the policy and with the updated policy.
        num_releases = 2 * num_users * len(all_settings)
        done = count(1)

        def watch(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:  # noqa: ARG001 - a ProgressCallback
            for item in items:
                yield item
                progress(next(done), num_releases)

        comparisons = compare_uses(
            self.model,
            all_settings,
            sample_users(self.model, num_users, num_steps, first, seed),
            first=first,
            num_patients=max(1, num_users // 10),
            rng=seed,
            watch=watch,
        )
        return [
            {**comparison.to_dict(), "policy": format_policy_label(comparison.settings.policy)}
            for comparison in comparisons
        ]

    def _parse(self, values: Mapping[str, Any]) -> tuple[ReleaseSettings | None, dict[str, str]]:
        """Return the settings of the fields and the errors, including those of the graph."""
        settings, errors = parse_fields(values)
        # The graph is checked although other fields are invalid, so that all errors are shown.
        graph_fields = ("policy", "edges", "zones")
        if not any(name in errors for name in graph_fields):
            partial, _ = parse_fields({name: values[name] for name in graph_fields if name in values})
            assert partial is not None, "the other fields have their first values"
            try:
                self._build_graph(partial)
            except DphmmError as problem:
                text = str(problem)
                of_zones = text.startswith(f"{ZONES_LAYER}: ")
                return None, {"zones" if of_zones else "policy": text.removeprefix(f"{ZONES_LAYER}: "), **errors}
        return settings, errors

    def _build_graph(self, settings: ReleaseSettings) -> PolicyGraph:
        key = settings.policy, settings.layers[0].geojson if settings.layers else ""
        return self._graphs.get_or_make(key, lambda: settings.build_graph(self.model))

    def _find_run(self, settings: ReleaseSettings, seed: int) -> Run:
        key = settings.content_hash, seed
        run = self._runs.pop(key, None)
        if run is None:
            graph = self._build_graph(settings)
            engine = settings.engine(self.model, seed, graph)
            run = Run(engine, self.user, self._habits, seed)
        # The run that was used last is at the end, the others are removed from the start.
        self._runs[key] = run
        while len(self._runs) > _NUM_RUNS:
            del self._runs[next(iter(self._runs))]
        return run

    def _find_earlier_run(self, before: tuple[Mapping[str, Any], int] | None) -> Run | None:
        """Return the run of fields and a seed, if it is kept."""
        values, seed = before or ({}, 0)
        settings = None if before is None else parse_fields(values)[0]
        is_kept = settings is not None and (settings.content_hash, seed) in self._runs
        return self._find_run(settings, seed) if settings is not None and is_kept else None

    # ---- one view ----------------------------------------------------------------------------------------------------

    def _describe_step(self, run: Run, steps: Sequence[ReleasedStep], applies_from: int = 0) -> dict[str, Any]:
        released = steps[-1]
        plan = released.plan
        record = released.record
        possible = np.flatnonzero(plan.constraint)
        audit = run.audit(plan)
        alternative = run.plan_alternative(plan)
        (body,) = audit.bodies
        beliefs = {"public": released.public, "informed": released.informed}
        epsilons = [earlier.record.epsilon_24h for earlier in steps]
        return {
            "applies_from": applies_from,
            "constraint": possible.tolist(),
            "degrees": body.degrees[possible].tolist(),
            "degrees_after_repair": plan.protection.degrees[possible].tolist(),
            "exposed": list(body.exposed),
            "isolated": list(audit.isolated),
            "unprotected": list(audit.unprotected),
            "num_components": audit.num_components,
            "edges": self._list_edges(run.engine, plan.constraint),
            "repair": self._describe_repair(plan, alternative, run.alternative_repair),
            "hulls": self._list_hull_corners(released, audit, alternative),
            "expected_error_m": _convert_to_metres(record.expected_error),
            "min_degree_of_protection": record.min_degree_of_protection,
            "true_state": released.private.true_state,
            "released_state": released.private.released_state,
            "released": None if record.released is None else self._to_degrees(np.array([record.released]))[0],
            "error_m": _convert_to_metres(released.private.error),
            "samples": self._sample_noise(run.engine, released),
            "withheld_reason": record.withheld_reason,
            "adversaries": {name: self._infer(run.engine, belief) for name, belief in beliefs.items()},
            "epsilon": record.epsilon,
            "epsilon_total": record.epsilon_total,
            "epsilon_24h": record.epsilon_24h,
            # The largest sum over any window is that over a window which ends with a release.
            "max_epsilon_24h": max((e for e in epsilons if e is not None), default=None),
            **self._describe_settings(run.engine.settings),
        }

    def _list_edges(self, engine: Releaser, constraint: BoolArray) -> list[list[int]] | None:
        """Return the edges of the restricted policy, or None if there are too many to draw."""
        if np.count_nonzero(constraint) > MAX_EDGE_STATES:
            return None
        # Pairs are tested rather than edges listed: a policy of many cliques would list each edge many times.
        states = np.flatnonzero(constraint)
        first, second = (states[rows] for rows in np.triu_indices(len(states), 1))
        adjacent = engine.policy.connects(first, second)
        edges: list[list[int]] = np.column_stack([first, second])[adjacent].tolist()
        return edges if len(edges) <= _MAX_EDGES else None

    def _describe_repair(
        self, plan: StepPlan, alternative: StepPlan | None, alternative_method: Method
    ) -> dict[str, Any]:
        protection = plan.protection
        effect = None if plan.withheld else protection.effect
        points = self.model.space.points
        return {
            "added": [
                {"edge": list(edge), "length_m": 1000.0 * float(np.linalg.norm(points[edge[0]] - points[edge[1]]))}
                for edge in protection.added
            ],
            "is_optimal": protection.is_optimal,
            "error_without_m": None if effect is None else _convert_to_metres(effect.error_without / plan.epsilon),
            "error_m": None if effect is None else _convert_to_metres(effect.error / plan.epsilon),
            "alternative": None
            if alternative is None
            else {
                "method": alternative_method,
                "added": [list(edge) for edge in alternative.protection.added],
                "error_m": _convert_to_metres(alternative.noise.expected_error(alternative.prior)),
            },
        }

    def _list_hull_corners(
        self, released: ReleasedStep, audit: ConstraintAudit, alternative: StepPlan | None
    ) -> dict[str, Any]:
        """Return the corners of the released state's hulls in degrees, around that state.

        A state that is released by a table has none.
        """
        state = released.private.released_state
        owners: dict[str, BodyAudit | Protection | None] = {
            "before": audit.bodies[0],
            "after": released.plan.protection,
            "alternative": None if alternative is None else alternative.protection,
        }
        hulls = {
            name: None if owner is None else owner.parts[int(owner.part_of[state])].body
            for name, owner in owners.items()
        }
        noise = released.plan.noise
        if noise.is_tabular and noise.get_mechanism(state).table is not None:
            hulls = dict.fromkeys(hulls)
        centre = self.model.space.points[state]
        corners = {name: None if hull is None else centre + _list_corners(hull) for name, hull in hulls.items()}
        return {name: None if places is None else self._to_degrees(places) for name, places in corners.items()}

    def _sample_noise(self, engine: Releaser, released: ReleasedStep) -> list[Any]:
        """Return samples of the noise around the released state, in degrees."""
        if released.plan.withheld:
            return []
        states = np.full(_NUM_SAMPLES, released.private.released_state)
        samples = released.plan.noise.sample(states, np.random.default_rng(_SAMPLE_SEED))
        return self._to_degrees(np.array([engine.query.to_point(sample) for sample in samples]))

    def _infer(self, engine: Releaser, belief: Belief | None) -> dict[str, Any] | None:
        """Return the inference of an adversary with a belief."""
        if belief is None:
            return None
        inference = belief.infer(engine.measurements.by_columns, engine.cell)
        probabilities = belief.probabilities
        shown = np.flatnonzero(probabilities >= 1e-6)
        state = int(np.argmax(probabilities))
        return {
            "states": shown.tolist(),
            "probabilities": np.round(probabilities[shown], 6).tolist(),
            "expected_error_m": _convert_to_metres(inference.mean_error),
            "most_probable_state": state,
            "max_posterior_probability": float(probabilities[state]),
            "estimate": self._to_degrees(np.array([inference.mean]))[0],
        }

    def _describe_settings(self, settings: ReleaseSettings) -> dict[str, Any]:
        return {
            "policy": format_policy_label(settings.policy),
            "toml": settings.to_toml(),
            "command": self._build_commands(settings) if self._source else "",
            "python": _build_python(settings, self._source) if self._source else "",
        }

    def _build_commands(self, settings: ReleaseSettings) -> str:
        """Return command lines that audit the policy and release a recording with the settings.

        They read files that the page saves, with the names that it suggests.
        """
        default = ReleaseSettings()
        model = ["--model", self._source]
        policy = ["--policy", settings.policy, "--epsilon", f"{settings.epsilon:.15g}"]
        scope = ["--noise-scope", settings.noise_scope]
        audit = [*model, *policy, *scope, "--mechanism", get_audited_mechanism(settings.mechanism)]
        lines = [self._preparation] if self._preparation else []
        if settings.repair_objective != default.repair_objective:  # a key of the audit, not an option
            lines.append(f"echo 'repair_objective = \"{settings.repair_objective}\"' > audit.toml")
            audit += ["--settings", "audit.toml"]
        # These settings are keys of a settings file, not options.
        in_file = ("repair", "repair_objective", "optimal_fallback")
        if all(getattr(settings, name) == getattr(default, name) for name in in_file):
            release = [*policy, *scope, "--mechanism", settings.mechanism, *_list_aims(settings)]
        else:
            release = ["--settings", "settings.toml"]
        lines += [
            shlex.join(["dphmm", "audit", "policy", *audit]),
            shlex.join(["dphmm", "release", "recording.gpx", "--user", "me", *model, *release, "-o", "releases.gpkg"]),
        ]
        return "\n".join(lines)

    def _unwrap(self, points: FloatArray) -> FloatArray:
        """Convert points of the plane to degrees, with longitudes around the centre of the region."""
        space = self.model.space
        return unwrap_longitudes(to_degrees(points, space), space.projection.longitude)

    def _to_degrees(self, points: FloatArray) -> list[Any]:
        degrees = self._unwrap(points)
        return [row if all(map(isfinite, row)) else None for row in np.round(degrees, 6).tolist()]


def _list_aims(settings: ReleaseSettings) -> list[str]:
    """Return the options of δ and of the schedule."""
    schedule = settings.schedule
    aims = [] if settings.delta is None else ["--delta", f"{settings.delta:.15g}"]
    if schedule is not None and schedule.window_epsilon is not None:
        aims += ["--window-epsilon", f"{schedule.window_epsilon:.15g}"]
    if schedule is not None and schedule.target_error is not None:
        # 700m is not 0.7km in floating point: the unit that was typed yields an equal number.
        texts = f"{schedule.target_error:.15g}km", f"{1000 * schedule.target_error:.15g}m"
        aims += [
            "--target-error",
            next((text for text in texts if parse_length(text) == schedule.target_error), texts[0]),
        ]
    return aims


def _build_python(settings: ReleaseSettings, source: str) -> str:
    default = ReleaseSettings()
    arguments = [
        f"{name}={getattr(settings, name)!r}"
        for name in (
            *("policy", "epsilon", "delta", "mechanism", "optimal_fallback"),
            *("noise_scope", "repair", "repair_objective"),
        )
        if getattr(settings, name) != getattr(default, name) or name in ("policy", "epsilon")
    ]
    if settings.schedule is not None:
        arguments.append(f"schedule={settings.schedule.to_dict()!r}")
    lines = [
        "from dphmm import MarkovModel, ReleaseSettings",
        "",
        f"settings = ReleaseSettings({', '.join(arguments)})",
        f"releaser = settings.engine(MarkovModel.load({source!r}))",
    ]
    return "\n".join(lines)


def _list_corners(body: SensitivityHull | Disc) -> FloatArray:
    """Return the corners of a body in order, in kilometres."""
    if isinstance(body, Disc):
        angles = np.linspace(0.0, 2 * np.pi, _NUM_CIRCLE_POINTS, endpoint=False)
        return np.asarray(body.radius * np.column_stack([np.cos(angles), np.sin(angles)]))
    corners = body.vertices
    return np.asarray(corners[np.argsort(np.arctan2(corners[:, 1], corners[:, 0]), kind="stable")])


def _convert_to_metres(kilometres: float) -> float | None:
    return 1000.0 * kilometres if isfinite(kilometres) else None
