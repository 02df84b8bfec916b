"""What an evaluation compares, in a TOML file, checked before anything is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError, PolicyError
from dphmm.jobs.input_data import Data
from dphmm.mechanisms.base import MechanismName
from dphmm.model.time_classes import By
from dphmm.policy.by_component import Calibration
from dphmm.policy.expression import canonical_policy
from dphmm.policy.hull_repair import Objective
from dphmm.policy.protection import Method
from dphmm.release.engine import ReleaseSettings
from dphmm.release.settings import Schedule
from dphmm.space.grid import PRESETS as GRIDS
from dphmm.tables.json_toml import first_flaw, read_keys


@dataclass(frozen=True)
class Setting:
    """One way to release, that a comparison puts beside others.

    Parameters
    ----------
    policy
        ``"utility"``, ``"transition"``, ``"complete"`` on the δ-location set, which is the earlier method that the
        DPHMM paper compares itself with (there called DPLS), or any policy as text, see `dphmm.policy.parse_policy`.
    radius_km
        The radius of ``"utility"``, between the centres of cells as in the paper (``centres:1km``); 0.0 for the others.
    epsilon
        The budget of a release.
    mechanism, repair, objective, calibration
        As in `dphmm.ReleaseSettings`.
    delta
        What the δ-location set may leave out; 0.0 for the policies whose constraint set is the whole support.
    target_error_km, day_epsilon
        Those of a `dphmm.Schedule`, under which no release costs more than epsilon; 0.0 for none.
    """

    policy: str
    radius_km: float
    epsilon: float
    mechanism: MechanismName
    repair: Method
    objective: Objective
    delta: float
    calibration: Calibration = "graph"
    target_error_km: float = 0.0
    day_epsilon: float = 0.0

    @property
    def release_settings(self) -> ReleaseSettings:
        """The settings of the engine; a state that is known is released as it is."""
        policy = f"centres:{self.radius_km!r}km" if self.policy == "utility" else self.policy
        aims = self.target_error_km or None, self.day_epsilon or None
        schedule = Schedule(*aims) if any(aims) else None
        own = {name: getattr(self, name) for name in ("epsilon", "mechanism", "repair", "objective", "calibration")}
        return ReleaseSettings(policy, **own, delta=self.delta or None, allow_known=True, schedule=schedule)

    @property
    def label(self) -> str:
        """What tells this setting from every other, in a text."""
        return json.dumps(asdict(self), sort_keys=True)


class EvaluationConfig(BaseModel):
    """An evaluation: a data set, how people are split, what is compared.

    A TOML file has the same keys, each of which ``docs/how-to/scaling.md`` explains; ``preset`` fills in those of a
    published setting. Paths are relative to the folder in which the command is run.

    Parameters
    ----------
    preset
        The published setting that the other keys start from, see `PRESETS`.
    name
        The title of the report.
    data, format, columns, skip_bad, user_per_file, time_unit, time_zone
        What to read; see `dphmm.jobs.input_data.Data`.
    model
        The file of a model that knows its states and its step, learned from others; then nothing is learned, and the
        next nine keys are left out.
    grid
        The preset of `dphmm.space.grid` that the states come from, on its published cells unless `cell_km` is given.
    bbox
        South, west, north, east, degrees; with `cell_km`. It replaces the `grid` of a preset.
    polygon
        A GeoJSON file of polygons; with `cell_km`. It replaces the `grid` of a preset.
    cell_km
        The side of a cell, kilometres.
    places, within_km
        A CSV of named places, and how far from its place a fix may lie; left out, any distance.
    step_seconds
        One time step on the clock. Left out, each place of a person within the region is a time step, whenever it was,
        which is what check-ins are good for.
    smoothing
        Added to each move seen, both ways, when a model is learned, so that only what was seen is possible. Left out,
        models are learned as `dphmm learn` does by itself: possible is what speed allows. Without `step_seconds` there
        is no speed, and 0.5 is added.
    by, zone
        How models vary with time, as ``dphmm learn`` takes them.
    folds
        Into how many groups people are dealt: who is evaluated is so under a model of everybody outside their group.
    sequences, length
        How many sequences are evaluated, one per user, and their number of time steps.
    start
        ``"known"``: the adversary knows the place one time step before the first release (the nearest state that the
        model can leave), so that the constraint set grows from there. ``"anywhere"``: the model's initial distribution.
    policies, radius_km, epsilon, delta, mechanism, repair, objective, calibration
        The comparison at the middle of everything: see `Setting`.
    epsilons, radii_km, repairs, mechanisms, calibrations, target_errors_km, day_epsilons
        Sweeps around it, each with the rest left as it is; empty for none. The last two are schedules: see `Setting`.
    seed
        Of the split and of the noise.
    task_sequences
        How many sequences one task works through, at most.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    preset: Literal["geolife", "gowalla"] | None = None
    name: str = "Evaluation"
    data: tuple[str, ...] = Field(strict=False, min_length=1)
    format: str | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    skip_bad: bool = False
    user_per_file: bool = False
    time_unit: str | None = None
    time_zone: str | None = None
    model: str | None = None
    grid: Literal["geolife", "gowalla"] | None = None
    bbox: tuple[float, float, float, float] | None = Field(default=None, strict=False)
    polygon: str | None = None
    places: str | None = None
    within_km: float | None = Field(default=None, gt=0)
    cell_km: float | None = Field(default=None, gt=0)
    step_seconds: float | None = Field(default=None, gt=0)
    smoothing: float | None = Field(default=None, ge=0)
    by: By | None = None
    zone: str | None = None
    folds: int = Field(default=5, ge=2)
    sequences: int = Field(default=20, ge=2)
    length: int = Field(default=100, ge=2)
    start: Literal["known", "anywhere"] = "known"
    policies: tuple[str, ...] = Field(default=("utility", "transition", "complete"), strict=False, min_length=1)
    radius_km: float = Field(default=1.0, gt=0)
    epsilon: float = Field(default=1.0, gt=0)
    delta: float = Field(default=0.01, gt=0, lt=1)
    mechanism: MechanismName = "lattice"
    repair: Method = "exact"
    objective: Objective = "error"
    calibration: Calibration = "graph"
    epsilons: tuple[float, ...] = Field(default=(), strict=False)
    radii_km: tuple[float, ...] = Field(default=(), strict=False)
    repairs: tuple[Method, ...] = Field(default=(), strict=False)
    mechanisms: tuple[MechanismName, ...] = Field(default=(), strict=False)
    calibrations: tuple[Calibration, ...] = Field(default=(), strict=False)
    target_errors_km: tuple[float, ...] = Field(default=(), strict=False)
    day_epsilons: tuple[float, ...] = Field(default=(), strict=False)
    seed: int = Field(default=0, ge=0)
    task_sequences: int = Field(default=5, ge=1)

    @property
    def people(self) -> Data:
        """Whose data."""
        return Data.from_options(self.data, vars(self))

    def base(self, policy: str) -> Setting:
        """The setting of a policy in the middle of all sweeps.

        Parameters
        ----------
        policy
            The name of the policy.

        Returns
        -------
        Setting
            It.
        """
        radius, delta = self.radius_km if policy == "utility" else 0.0, self.delta if policy == "complete" else 0.0
        own = {name: getattr(self, name) for name in ("epsilon", "mechanism", "repair", "objective", "calibration")}
        return Setting(policy, radius, delta=delta, **own)

    def settings(self) -> tuple[Setting, ...]:
        """Every setting once: the default comparison first, then the sweeps.

        Returns
        -------
        tuple of Setting
            In the order of tables.
        """
        found = [self.base(policy) for policy in self.policies]
        for base in tuple(found):
            found += [replace(base, epsilon=float(epsilon)) for epsilon in self.epsilons]
            found += [replace(base, mechanism=mechanism) for mechanism in self.mechanisms]
            found += [replace(base, calibration=calibration) for calibration in self.calibrations]
            found += [replace(base, target_error_km=float(error)) for error in self.target_errors_km]
            found += [replace(base, day_epsilon=float(epsilon)) for epsilon in self.day_epsilons]
        if "utility" in self.policies:
            base = self.base("utility")
            found += [replace(base, radius_km=float(radius)) for radius in self.radii_km]
            found += [replace(base, repair=repair) for repair in self.repairs]
        return tuple(dict.fromkeys(found))

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """The keys that differ from the preset's published setting, each with the published and the present value."""
        if self.preset is None:
            return {}
        published = EvaluationConfig.model_validate({"preset": self.preset, "data": self.data, **PRESETS[self.preset]})
        return {
            key: (getattr(published, key), getattr(self, key))
            for key in type(self).model_fields
            if key not in _NOT_PUBLISHED and getattr(published, key) != getattr(self, key)
        }

    @property
    def digest(self) -> str:
        """The SHA-256 of everything that this says, in hexadecimal: equal configurations have equal digests."""
        return hashlib.sha256(json.dumps(self.keys, sort_keys=True).encode()).hexdigest()

    @property
    def keys(self) -> dict[str, Any]:
        """All keys as plain JSON values, which `parse_config` takes."""
        return self.model_dump(mode="json")


_NOT_PUBLISHED = (
    "name", "data", "format", "columns", "skip_bad", "user_per_file", "time_unit", "time_zone", "seed",
    "task_sequences",
)  # fmt: skip
"""Keys that no published setting states: the input files, and how the work is divided."""

_BOTH = {
    "mechanism": "planar-isotropic",
    "repair": "greedy",
    "epsilons": [0.5, 1.0, 2.0],
    "repairs": ["greedy", "sequential", "exact"],
    "mechanisms": ["planar-isotropic", "k-norm", "laplace", "lattice"],
}
"""What both of the paper's settings share."""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "geolife": {
        "name": "GeoLife, Beijing",
        "format": "geolife",
        "grid": "geolife",
        "cell_km": GRIDS["geolife"][1],
        "step_seconds": 30.0,
        "smoothing": 0.5,
        "radius_km": 1.0,
        "radii_km": [0.5, 1.0, 2.0],
        **_BOTH,
    },
    "gowalla": {
        "name": "Gowalla, Los Angeles",
        "format": "checkins",
        "grid": "gowalla",
        "cell_km": GRIDS["gowalla"][1],
        "radius_km": 2.0,
        "smoothing": 0.0,
        "radii_km": [1.0, 2.0, 4.0],
        **_BOTH,
    },
}
"""Name → the keys of the DPHMM paper's settings (Section 8).

Cell sizes, radii, epsilon, delta, the numbers of sequences and of time steps, planar isotropic noise and the repair by
nearest partners (Algorithm 1, which Algorithm 2 calls) are the paper's. It leaves open the time step, who the model is
learned from, its smoothing, and what is known at the start; those, and the values of the sweeps, are this package's
choice.
"""


@checked
def parse_config(keys: Mapping[str, Any], source: str = "configuration") -> EvaluationConfig:
    """The evaluation that keys describe, on top of those of the ``preset`` that they may name.

    Parameters
    ----------
    keys
        Key → value, as in a file.
    source
        What messages call it.

    Returns
    -------
    EvaluationConfig
        The evaluation.

    Raises
    ------
    ConfigurationError
        Naming the first key that is unknown, missing, or of a wrong value; or when no single region is given.
    """
    given = dict(keys)
    preset = given.get("preset")
    if preset is not None and (not isinstance(preset, str) or preset not in PRESETS):
        raise ConfigurationError(f"{source}: preset is {preset!r}; it must be one of {', '.join(PRESETS)}")
    try:
        config = EvaluationConfig.model_validate(_preset(preset, given) | given)
    except ValidationError as problem:
        raise ConfigurationError(_explained(problem, source)) from None
    _check_region(config, source)
    _check_policies(config, source)
    if config.day_epsilons and config.step_seconds is None and config.model is None:
        raise ConfigurationError(f"{source}: 'day_epsilons' are about the clock; give 'step_seconds' too")
    for key in ("epsilons", "radii_km", "target_errors_km", "day_epsilons"):
        if any(not 0 < value < float("inf") for value in getattr(config, key)):
            raise ConfigurationError(f"{source}: key '{key}' holds {list(getattr(config, key))}; give positive numbers")
    return config


def _preset(name: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a preset, except the ones that a model or another region of the file replaces."""
    replaced: tuple[str, ...] = ()
    if given.get("model") is not None:
        replaced = _OF_A_MODEL
    elif given.get("places") is not None:
        replaced = ("grid", "cell_km")
    elif given.get("bbox") is not None or given.get("polygon") is not None:
        replaced = ("grid",)
    return {key: value for key, value in PRESETS.get(name or "", {}).items() if key not in replaced}


_OF_A_MODEL = (
    "grid", "bbox", "polygon", "places", "within_km", "cell_km", "step_seconds", "smoothing", "by", "zone",
    "folds",
)  # fmt: skip
"""What a model that was given has settled."""


def _check_region(config: EvaluationConfig, source: str) -> None:
    if config.model is not None:
        # Compared by value: the configuration that a run's folder stores sets every key.
        defaults = EvaluationConfig.model_fields
        settled = [key for key in _OF_A_MODEL if getattr(config, key) != defaults[key].default]
        if settled:
            raise ConfigurationError(f"{source}: '{settled[0]}' is settled by the 'model'; leave one of them out")
        return
    cell_needed = config.bbox is not None or config.polygon is not None
    if sum(one is not None for one in (config.grid, config.bbox, config.polygon, config.places)) != 1:
        raise ConfigurationError(
            f"{source}: give one region: 'grid' (a preset's name), 'places', 'bbox' or 'polygon' with 'cell_km', or a "
            "'model' that has one"
        )
    if cell_needed and config.cell_km is None:
        raise ConfigurationError(f"{source}: 'bbox' and 'polygon' need 'cell_km', the side of a cell in kilometres")
    if config.places is not None and config.cell_km is not None:
        raise ConfigurationError(f"{source}: 'cell_km' cannot be combined with 'places': named places have no cells")
    if config.by is not None and config.step_seconds is None:
        raise ConfigurationError(f"{source}: 'by' is about the clock; give 'step_seconds' too")
    if (config.by is None) != (config.zone is None):
        raise ConfigurationError(f"{source}: 'by' goes with 'zone', such as 'Asia/Shanghai'; give both or neither")
    if config.within_km is not None and config.places is None:
        raise ConfigurationError(f"{source}: 'within_km' goes with 'places'; leave it out")


def _check_policies(config: EvaluationConfig, source: str) -> None:
    for policy in config.policies:
        try:
            if policy != "utility":
                canonical_policy(policy)
        except PolicyError as problem:
            raise ConfigurationError(f"{source}: key 'policies': {problem}, or utility with its 'radius_km'") from None


@checked
def load_config(path: str | Path) -> EvaluationConfig:
    """The evaluation in a TOML file.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    EvaluationConfig
        The evaluation.

    Raises
    ------
    DataFileError
        When the file cannot be read or is no TOML.
    ConfigurationError
        As `parse_config` says.
    """
    return parse_config(read_keys(Path(path), "docs/how-to/scaling.md for an example"), str(path))


def _explained(problem: ValidationError, source: str) -> str:
    key, flaw, said = first_flaw(problem)
    if flaw == "extra_forbidden":
        said = f"is unknown; the keys are {', '.join(EvaluationConfig.model_fields)}"
    return f"{source}: key '{key}' {said}"
