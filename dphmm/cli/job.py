"""What a release job says, in options or in a TOML file, checked before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dphmm.cli.inputs import AIMS, option_of, settings_of
from dphmm.errors import ConfigurationError
from dphmm.jobs.keys import first_flaw, read_keys
from dphmm.release.settings import NAMES, ReleaseSettings

if TYPE_CHECKING:
    from dphmm.jobs.people import Data
    from dphmm.release.ledger import Limits


class ReleaseJob(BaseModel):
    """A release, as options or a job file describe it: what is read and written, and how places are released.

    A TOML file has the same keys as the long options, with underscores. Paths are relative to the folder in which the
    command is run.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)

    settings: ReleaseSettings
    data: tuple[str, ...] = Field(default=(), strict=False)
    output: Path | None = Field(default=None, strict=False)
    model: Path = Field(strict=False)
    summary: Path | None = Field(default=None, strict=False)
    daily: Path | None = Field(default=None, strict=False)
    private_diagnostics: Path | None = Field(default=None, strict=False)
    session: str | None = None
    limit_epsilon: float | None = None
    limit_constrained: float | None = None
    limit_window_epsilon: float | None = None
    limit_window_steps: int | None = None
    accept_epsilon: float | None = None
    clock_skew: str | None = None
    allow_own_model: bool = False
    seed: int | None = Field(default=None, ge=0)
    format: str | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    time_unit: str | None = None
    time_zone: str | None = None
    users: tuple[str, ...] = Field(default=(), strict=False)
    exclude_users: tuple[str, ...] = Field(default=(), strict=False)
    skip_bad: bool = False
    user: str | None = None
    user_per_file: bool = False
    overwrite: bool = False
    geometry: Literal["estimate", "released"] = "estimate"

    @property
    def people(self) -> Data:
        """Whose places."""
        from dphmm.jobs.people import Data

        return Data(
            self.data,
            self.format,
            self.columns,
            self.users,
            self.exclude_users,
            self.skip_bad,
            self.user,
            self.user_per_file,
            self.time_unit,
            self.time_zone,
        )

    @property
    def limits(self) -> Limits | None:
        """What each person's session may spend; None where nothing is said of it."""
        from dphmm.release.ledger import Limits

        given = (self.limit_epsilon, self.limit_constrained, self.limit_window_epsilon, self.limit_window_steps)
        return Limits(*given) if any(limit is not None for limit in given) else None


def load_job(path: Path | None, options: Mapping[str, Any]) -> ReleaseJob:
    """The job that a file and the options given beside it describe; an option wins over the file.

    Parameters
    ----------
    path
        A TOML file, or None.
    options
        A key of `ReleaseJob` or `ReleaseSettings` → its value; None, and an empty sequence, mean that the option was
        not given.

    Raises
    ------
    DataFileError
        When the file cannot be read or is no TOML.
    ConfigurationError, BudgetError
        Naming the first key that is unknown, missing, or of a wrong value.
    """
    given = {key: value for key, value in options.items() if value is not None and value != () and value != {}}
    keys = {} if path is None else read_keys(path, "docs/reference/command.md for a job")
    unknown = [key for key in keys if key not in _KEYS]
    if unknown:
        raise ConfigurationError(f"{path}: key '{unknown[0]}' is unknown; the keys are {', '.join(_KEYS)}")
    both = keys | given

    def named(key: str) -> str:
        return option_of(key) if path is None or key in given else f"{path}: key '{key}'"

    rest = {key: value for key, value in both.items() if key not in (*NAMES, *AIMS, "buffer")}
    try:
        job = ReleaseJob.model_validate({**rest, "settings": ReleaseSettings()})
    except ValidationError as problem:
        key, flaw, said = first_flaw(problem)
        if flaw == "missing":
            raise ConfigurationError(f"{key} is missing; give {option_of(key)}{_OR_KEY.format(key)}") from None
        raise ConfigurationError(f"{named(key)} {said}") from None
    return job.model_copy(update={"settings": settings_of(both, named, _OR_KEY)})


_KEYS = (*NAMES, *AIMS, "buffer", *(name for name in ReleaseJob.model_fields if name != "settings"))
"""What a job file may say: how places are released, then everything else."""

_OR_KEY = ", or the key '{}' in a job file"
