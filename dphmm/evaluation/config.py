"""Configuration of an evaluation, checked before the data are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from dphmm.errors import ConfigurationError, PolicyError
from dphmm.jobs.input_data import Data
from dphmm.mechanisms.registry import MECHANISMS, TABLE_MECHANISMS, resolve_mechanism
from dphmm.model.time_classes import ClassScheme
from dphmm.policy.component_bodies import NoiseScope
from dphmm.policy.expression import canonicalize_policy
from dphmm.policy.repair import Method
from dphmm.policy.repair_objective import Objective
from dphmm.release.engine import ReleaseSettings
from dphmm.release.settings import Schedule
from dphmm.space.grid import PRESETS as GRIDS
from dphmm.tables.json_toml import find_first_flaw, read_keys
from dphmm.validation import check_arguments

# Smallest number of sequences: a single one has no interval.
MIN_SEQUENCES = 2


def _resolve_noise(setting: str) -> str:
    """Resolve a mechanism with noise of mean zero, which an evaluation assumes."""
    if setting in TABLE_MECHANISMS:
        names = ", ".join(name for name in MECHANISMS if name not in TABLE_MECHANISMS)
        raise ValueError(f"must be one of {names}, or a registered mechanism, got {setting!r}")
    return resolve_mechanism(setting)


_Mechanism = Annotated[str, AfterValidator(_resolve_noise)]


@dataclass(frozen=True)
class Setting:
    """One release setting of a comparison.

    Parameters
    ----------
    policy
        ``"utility"``, ``"transition"``, ``"complete"`` or any policy string, see `dphmm.policy.parse_policy`.
        ``"complete"`` on the δ-location set is the earlier method that the DPHMM paper calls DPLS and compares with.
    radius_km
        Radius of ``"utility"``, between the centres of cells as in the paper (``centres:1km``); 0.0 for other policies.
    epsilon
        Budget of one release.
    mechanism, repair, repair_objective, noise_scope
        See `dphmm.ReleaseSettings`.
    delta
        Maximum probability outside the δ-location set; 0.0 if the constraint set is the whole support.
    target_error_km, window_epsilon
        Aims of a `dphmm.Schedule`, under which no release costs more than `epsilon`; 0.0 for none.
    """

    policy: str
    radius_km: float
    epsilon: float
    mechanism: str
    repair: Method
    repair_objective: Objective
    delta: float
    noise_scope: NoiseScope = "graph"
    target_error_km: float = 0.0
    window_epsilon: float = 0.0

    @property
    def release_settings(self) -> ReleaseSettings:
        """The settings of the engine. The state of a singleton constraint set is released exactly."""
        policy = f"centres:{self.radius_km!r}km" if self.policy == "utility" else self.policy
        aims = self.target_error_km or None, self.window_epsilon or None
        schedule = Schedule(*aims) if any(aims) else None
        shared = {
            name: getattr(self, name) for name in ("epsilon", "mechanism", "repair", "repair_objective", "noise_scope")
        }
        return ReleaseSettings(policy, **shared, delta=self.delta or None, allow_singleton=True, schedule=schedule)

    @property
    def label(self) -> str:
        """A string that identifies the setting: equal settings have equal labels."""
        return json.dumps(asdict(self), sort_keys=True)


class EvaluationConfig(BaseModel):
    """The configuration of an evaluation: data, split of the users, and comparison.

    A TOML file has the same keys. Paths are relative to the folder in which the command is run.

    Parameters
    ----------
    preset
        ``"geolife"`` or ``"gowalla"``: settings of the DPHMM paper. Other keys take precedence.
    name
        Title of the report.
    data
        Files, folders or archives.
    input_format
        ``"geolife"``, ``"checkins"``, ``"table"``, ``"gpx"`` or ``"owntracks"``. By default it is detected.
    columns
        Tables: column names, such as ``{time = "when"}``.
    skip_bad
        Whether malformed records are skipped.
    user_per_file
        Whether each file without a user column contains one user.
    time_zone
        Tables: zone of times without an offset. Defaults to UTC.
    time_format
        Tables: form of times, such as ``"%d.%m.%Y %H:%M:%S"``, or the unit of numeric ones: ``"s"``, ``"ms"``, ``"us"``
        or ``"ns"``. Defaults to ISO 8601.
    model
        File of a model with states and a step, trained on other users. Nothing is trained then, and the next nine keys
        must be omitted.
    grid
        Region and cells of the paper: ``"geolife"`` (0.34 km) or ``"gowalla"`` (0.89 km).
    bbox
        South, west, north, east in degrees; with `cell_km`. It replaces the `grid` of a preset.
    polygon
        GeoJSON file of polygons; with `cell_km`. It replaces the `grid` of a preset.
    places
        CSV of named places. It replaces the `grid` of a preset.
    within_km
        Maximum distance of a fix from its place. By default any.
    cell_km
        Side length of a cell in kilometres. Defaults to that of the `grid`.
    step_seconds
        Length of a timestep in seconds, at least 0.000001. By default, each location of a user within the region is one
        timestep, whatever its time, which suits check-ins.
    smoothing
        Pseudo-count of each observed transition and its reverse; only these are then possible (presets: 0.5 and 0).
        Defaults to the training of `dphmm learn`, where transitions are possible up to a maximum speed. Without
        `step_seconds` there are no speeds, and the default is 0.5.
    by
        ``"hour"`` or ``"weekday-hour"``: time-dependent models.
    zone
        With `by`: time zone.
    folds
        Number of groups of users. Each user is evaluated under a model of the users outside the own group.
    sequences
        Number of evaluated sequences, one per user.
    length
        Timesteps of a sequence.
    start
        ``"known"``: the adversary knows the location one timestep before the first release (the nearest state that the
        model can leave), and the constraint set grows from it. ``"anywhere"``: the model's initial distribution.
    policies
        ``"utility"``, ``"transition"``, ``"complete"`` (all states of the δ-location set; DPLS in the DPHMM paper), or
        any policy string.
    radius_km
        Radius of ``"utility"``, between the centres of cells.
    epsilon
        Budget of one release.
    delta
        ``"complete"``: maximum probability outside its δ-location set.
    mechanism
        ``"lattice"``, ``"k-norm"``, ``"laplace"``, ``"planar-isotropic"`` or ``"planar-laplace"``.
    repair
        ``"exact"``, ``"greedy"`` (Algorithm 1) or ``"sequential"`` (Algorithm 3).
    repair_objective
        Objective of the exact repair: ``"error"`` or ``"volume"``.
    noise_scope
        ``"graph"``, or ``"component"``: one hull per connected component.
    epsilons
        Budgets to compare.
    radii_km
        Radii of ``"utility"`` to compare.
    repairs
        Repairs of ``"utility"`` to compare.
    mechanisms
        Mechanisms to compare.
    noise_scopes
        Noise scopes to compare.
    target_errors_km
        Schedules to compare: maximum expected error in kilometres, at most `epsilon` per release.
    window_epsilons
        Schedules to compare: daily budgets, at most `epsilon` per release. A withheld timestep has the error of the
        prediction.
    seed
        Seed of the split and of the noise.
    task_sequences
        Maximum number of sequences of one task.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    preset: Literal["geolife", "gowalla"] | None = None
    name: str = "Evaluation"
    data: tuple[str, ...] = Field(strict=False, min_length=1)
    input_format: str | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    skip_bad: bool = False
    user_per_file: bool = False
    time_zone: str | None = None
    time_format: str | None = None
    model: str | None = None
    grid: Literal["geolife", "gowalla"] | None = None
    bbox: tuple[float, float, float, float] | None = Field(default=None, strict=False)
    polygon: str | None = None
    places: str | None = None
    within_km: float | None = Field(default=None, gt=0)
    cell_km: float | None = Field(default=None, gt=0)
    step_seconds: float | None = Field(default=None, ge=1e-6)
    smoothing: float | None = Field(default=None, ge=0)
    by: ClassScheme | None = None
    zone: str | None = None
    folds: int = Field(default=5, ge=2)
    sequences: int = Field(default=20, ge=MIN_SEQUENCES)
    length: int = Field(default=100, ge=2)
    start: Literal["known", "anywhere"] = "known"
    policies: tuple[str, ...] = Field(default=("utility", "transition", "complete"), strict=False, min_length=1)
    radius_km: float = Field(default=1.0, gt=0)
    epsilon: float = Field(default=1.0, gt=0)
    delta: float = Field(default=0.01, gt=0, lt=1)
    mechanism: _Mechanism = "lattice"
    repair: Method = "exact"
    repair_objective: Objective = "error"
    noise_scope: NoiseScope = "graph"
    epsilons: tuple[float, ...] = Field(default=(), strict=False)
    radii_km: tuple[float, ...] = Field(default=(), strict=False)
    repairs: tuple[Method, ...] = Field(default=(), strict=False)
    mechanisms: tuple[_Mechanism, ...] = Field(default=(), strict=False)
    noise_scopes: tuple[NoiseScope, ...] = Field(default=(), strict=False)
    target_errors_km: tuple[float, ...] = Field(default=(), strict=False)
    window_epsilons: tuple[float, ...] = Field(default=(), strict=False)
    seed: int = Field(default=0, ge=0)
    task_sequences: int = Field(default=5, ge=1)

    @property
    def user_data(self) -> Data:
        """The input files with their format."""
        return Data.from_options(self.data, vars(self))

    def get_default_setting(self, policy: str) -> Setting:
        """Return the default setting of a policy, from which the sweeps start.

        Parameters
        ----------
        policy
            Name of the policy.

        Returns
        -------
        Setting
            The setting.
        """
        radius = self.radius_km if policy == "utility" else 0.0
        delta = self.delta if policy == "complete" else 0.0
        shared = {
            name: getattr(self, name) for name in ("epsilon", "mechanism", "repair", "repair_objective", "noise_scope")
        }
        return Setting(policy, radius, delta=delta, **shared)

    def settings(self) -> tuple[Setting, ...]:
        """Return every setting once: the default comparison first, then the sweeps.

        Returns
        -------
        tuple of Setting
            The settings in the order of the tables.
        """
        settings = [self.get_default_setting(policy) for policy in self.policies]
        for base in tuple(settings):
            settings += [replace(base, epsilon=float(epsilon)) for epsilon in self.epsilons]
            settings += [replace(base, mechanism=mechanism) for mechanism in self.mechanisms]
            settings += [replace(base, noise_scope=noise_scope) for noise_scope in self.noise_scopes]
            settings += [replace(base, target_error_km=float(error)) for error in self.target_errors_km]
            settings += [replace(base, window_epsilon=float(epsilon)) for epsilon in self.window_epsilons]
        if "utility" in self.policies:
            base = self.get_default_setting("utility")
            settings += [replace(base, radius_km=float(radius)) for radius in self.radii_km]
            settings += [replace(base, repair=repair) for repair in self.repairs]
        return tuple(dict.fromkeys(settings))

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """The keys that differ from the preset, each with its published and its present value."""
        if self.preset is None:
            return {}
        published = EvaluationConfig.model_validate({"preset": self.preset, "data": self.data, **PRESETS[self.preset]})
        return {
            key: (getattr(published, key), getattr(self, key))
            for key in type(self).model_fields
            if key not in _UNPUBLISHED_KEYS and getattr(published, key) != getattr(self, key)
        }

    @property
    def digest(self) -> str:
        """The hexadecimal SHA-256 digest of all keys: equal configurations have equal digests."""
        return hashlib.sha256(json.dumps(self.keys, sort_keys=True).encode()).hexdigest()

    @property
    def keys(self) -> dict[str, Any]:
        """All keys as plain JSON values, which `parse_config` accepts."""
        return self.model_dump(mode="json")


# Keys that no published setting states: the input files, the seed and the division of the work.
_UNPUBLISHED_KEYS = (
    "name", "data", "input_format", "columns", "skip_bad", "user_per_file", "time_zone",
    "time_format", "seed", "task_sequences",
)  # fmt: skip

# Shared by both settings of the paper.
_COMMON_KEYS = {
    "mechanism": "planar-isotropic",
    "repair": "greedy",
    "epsilons": [0.5, 1.0, 2.0],
    "repairs": ["greedy", "sequential", "exact"],
    "mechanisms": ["planar-isotropic", "k-norm", "laplace", "lattice"],
}

# Name → keys of the DPHMM paper's settings (Section 8).
#
# The paper states cell sizes, radii, epsilon, delta, the numbers of sequences and of timesteps, planar isotropic noise
# and the repair with nearest partners (Algorithm 1, which Algorithm 2 calls). It does not state the timestep, the
# training users, the smoothing and the first belief. These, and the values of the sweeps, are choices of this package.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "geolife": {
        "name": "GeoLife, Beijing",
        "input_format": "geolife",
        "grid": "geolife",
        "cell_km": GRIDS["geolife"][1],
        "step_seconds": 30.0,
        "smoothing": 0.5,
        "radius_km": 1.0,
        "radii_km": [0.5, 1.0, 2.0],
        **_COMMON_KEYS,
    },
    "gowalla": {
        "name": "Gowalla, Los Angeles",
        "input_format": "checkins",
        "grid": "gowalla",
        "cell_km": GRIDS["gowalla"][1],
        "radius_km": 2.0,
        "smoothing": 0.0,
        "radii_km": [1.0, 2.0, 4.0],
        **_COMMON_KEYS,
    },
}


@check_arguments
def parse_config(keys: Mapping[str, Any], source: str = "configuration") -> EvaluationConfig:
    """Return the configuration with the provided keys.

    Other keys come from ``preset``, if it is set.

    Parameters
    ----------
    keys
        Key → value, as in a file.
    source
        Name of the source in messages.

    Returns
    -------
    EvaluationConfig
        The configuration.

    Raises
    ------
    ConfigurationError
        If a key is unknown, missing or has an invalid value, naming the first such key; or if the keys do not specify
        exactly one region.
    """
    values = dict(keys)
    preset = values.get("preset")
    if preset is not None and (not isinstance(preset, str) or preset not in PRESETS):
        raise ConfigurationError(f"{source}: preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    try:
        config = EvaluationConfig.model_validate(_select_preset_keys(preset, values) | values)
    except ValidationError as problem:
        raise ConfigurationError(_explain_error(problem, source)) from None
    _check_region(config, source)
    _check_policies(config, source)
    if config.window_epsilons and config.step_seconds is None and config.model is None:
        raise ConfigurationError(f"{source}: 'window_epsilons' requires 'step_seconds'")
    for key in ("epsilons", "radii_km", "target_errors_km", "window_epsilons"):
        if any(value <= 0 for value in getattr(config, key)):
            raise ConfigurationError(
                f"{source}: '{key}' must contain positive numbers, got {list(getattr(config, key))}"
            )
    return config


def _select_preset_keys(name: str | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a preset without those that a model or another region replaces."""
    replaced: tuple[str, ...] = ()
    if values.get("model") is not None:
        replaced = _KEYS_FIXED_BY_MODEL
    elif values.get("places") is not None:
        replaced = ("grid", "cell_km")
    elif values.get("bbox") is not None or values.get("polygon") is not None:
        replaced = ("grid",)
    return {key: value for key, value in PRESETS.get(name or "", {}).items() if key not in replaced}


# Keys that cannot be combined with `model`, which contains its states, step and time classes and is not trained.
_KEYS_FIXED_BY_MODEL = (
    "grid", "bbox", "polygon", "places", "within_km", "cell_km", "step_seconds", "smoothing", "by", "zone",
    "folds",
)  # fmt: skip


def _check_region(config: EvaluationConfig, source: str) -> None:
    if config.model is not None:
        # Compare values, not the presence of keys: the configuration stored in a run's folder sets every key.
        defaults = EvaluationConfig.model_fields
        settled = [key for key in _KEYS_FIXED_BY_MODEL if getattr(config, key) != defaults[key].default]
        if settled:
            raise ConfigurationError(
                f"{source}: '{settled[0]}' cannot be combined with 'model': the model determines it"
            )
        return
    cell_needed = config.bbox is not None or config.polygon is not None
    if sum(region is not None for region in (config.grid, config.bbox, config.polygon, config.places)) != 1:
        raise ConfigurationError(
            f"{source}: exactly one region is required: 'grid' (a preset's name), 'places', 'bbox' or 'polygon' with "
            "'cell_km', or a 'model' with states"
        )
    if cell_needed and config.cell_km is None:
        raise ConfigurationError(f"{source}: 'bbox' and 'polygon' require 'cell_km', the side of a cell in kilometres")
    if config.places is not None and config.cell_km is not None:
        raise ConfigurationError(f"{source}: 'cell_km' cannot be combined with 'places': named places have no cells")
    if config.by is not None and config.step_seconds is None:
        raise ConfigurationError(f"{source}: 'by' requires 'step_seconds'")
    if (config.by is None) != (config.zone is None):
        raise ConfigurationError(f"{source}: 'by' and 'zone', such as 'Asia/Shanghai', must be set together")
    if config.within_km is not None and config.places is None:
        raise ConfigurationError(f"{source}: 'within_km' requires 'places'")


def _check_policies(config: EvaluationConfig, source: str) -> None:
    for policy in config.policies:
        try:
            if policy != "utility":
                canonicalize_policy(policy)
        except PolicyError as problem:
            raise ConfigurationError(f"{source}: key 'policies': {problem}, or 'utility' with 'radius_km'") from None


@check_arguments
def load_config(path: str | Path) -> EvaluationConfig:
    """Read the configuration of an evaluation from a TOML file.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    EvaluationConfig
        The configuration.

    Raises
    ------
    DataFileError
        If the file cannot be read or is not valid TOML.
    ConfigurationError
        If a key is invalid, see `parse_config`.
    """
    return parse_config(read_keys(Path(path), "docs/how-to/scaling.md for an example"), str(path))


def _explain_error(problem: ValidationError, source: str) -> str:
    key, flaw, message = find_first_flaw(problem)
    if flaw == "extra_forbidden":
        message = f"is unknown; the keys are {', '.join(EvaluationConfig.model_fields)}"
    return f"{source}: key '{key}' {message}"
