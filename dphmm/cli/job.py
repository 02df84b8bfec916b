"""What a release job says, in options or in a TOML file, checked before anything is read."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dphmm.errors import ConfigurationError, DataFileError

_FIRST = {"extra_forbidden": 0, "missing": 2}
MECHANISMS = Literal["lattice", "k-norm", "laplace", "planar-isotropic", "planar-laplace"]


class ReleaseJob(BaseModel):
    """A release, as options or a job file describe it.

    A TOML file has the same keys as the long options, with underscores. Paths are relative to the folder in which the
    command is run.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    data: tuple[str, ...] = Field(default=(), strict=False)
    output: Path | None = Field(default=None, strict=False)
    model: Path = Field(strict=False)
    policy: str
    epsilon: float
    mechanism: MECHANISMS | None = None
    repair: Literal["greedy", "sequential", "exact"] = "exact"
    objective: Literal["volume", "error"] = "volume"
    membership: Literal["halfspace", "qp"] = "halfspace"
    delta: float | None = None
    allow_known: bool = False
    summary: Path | None = Field(default=None, strict=False)
    private_diagnostics: Path | None = Field(default=None, strict=False)
    session: Path | None = Field(default=None, strict=False)
    limit_epsilon: float | None = None
    limit_constrained: float | None = None
    limit_window_epsilon: float | None = None
    limit_window_steps: int | None = None
    seed: int | None = Field(default=None, ge=0)
    format: Literal["geolife", "checkins", "table", "gpx", "owntracks"] | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    users: tuple[str, ...] = Field(default=(), strict=False)
    exclude_users: tuple[str, ...] = Field(default=(), strict=False)
    skip_bad: bool = False
    overwrite: bool = False


def load_job(path: Path | None, options: Mapping[str, Any]) -> ReleaseJob:
    """The job that a file and the options given beside it describe; an option wins over the file.

    Parameters
    ----------
    path
        A TOML file, or None.
    options
        Key of `ReleaseJob` → value; None, and an empty sequence, mean that the option was not given.

    Raises
    ------
    DataFileError
        When the file cannot be read or is no TOML.
    ConfigurationError
        Naming the first key that is unknown, missing, or of a wrong value.
    """
    given = {key: value for key, value in options.items() if value is not None and value != () and value != {}}
    keys = {} if path is None else _toml(path)
    try:
        return ReleaseJob.model_validate(keys | given)
    except ValidationError as problem:
        raise ConfigurationError(_explained(problem, path, given)) from None


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise DataFileError(path, f"cannot be read ({problem.strerror}); check the path") from None
    except ValueError as problem:
        raise DataFileError(path, f"is no TOML ({problem}); see docs/command.md for a job") from None


def _explained(problem: ValidationError, path: Path | None, given: Mapping[str, Any]) -> str:
    # A key that is unknown explains one that is missing, so it comes first.
    error = min(problem.errors(), key=lambda one: _FIRST.get(one["type"], 1))
    key = ".".join(str(part) for part in error["loc"])
    option = f"--{key.replace('_', '-')}"
    where = option if path is None or key in given else f"{path}: key '{key}'"
    if error["type"] == "extra_forbidden":
        return f"{path}: key '{key}' is unknown; the keys are {', '.join(ReleaseJob.model_fields)}"
    if error["type"] == "missing":
        return f"{key} is missing; give {option}, or the key '{key}' in a job file"
    return f"{where} is {error['input']!r}; {error['msg'].removeprefix('Input ').lower()}"
