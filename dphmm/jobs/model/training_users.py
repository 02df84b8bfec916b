"""The list of a model's training users, and the check that they are not released.

A model learned without noise violates the guarantee of its training users. The moves that are possible in it, and
therefore the constraint sets, repairs, hulls and noise, depend on their true locations in other ways than through the
releases. A private list of the training users is therefore stored next to the model's file, and releases of their data
are refused. The model itself is public and contains no names.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from pathlib import Path

from dphmm.errors import ConfigurationError, DataFileError
from dphmm.jobs.input_data import Data, DataLike, UserTracks
from dphmm.jobs.model.loading import Model
from dphmm.model.blank_model import NO_USERS
from dphmm.model.model import MarkovModel
from dphmm.readers.fixes import parse_user
from dphmm.tables import write_text

_FORMAT = "dphmm-learned-from-1"
_SUFFIX = ".PRIVATE-users.json"

# The answer of a check of training users without their list.
UNLISTED_USERS = "unknown: no user list next to the model"


def get_private_list_path(model: str | Path) -> Path:
    """Return the path of a model's user list: ``city.npz`` has ``city.PRIVATE-users.json``."""
    path = Path(model)
    return path.with_name(path.stem + _SUFFIX)


def write_user_list(path: Path, model: MarkovModel, users: Iterable[str], overwrite: bool = False) -> None:
    """Write the list of a model's training users atomically. Only the owner can read the file.

    Raises
    ------
    OutputError
        If the file exists and may not be replaced, or cannot be written.
    """
    about = {"format": _FORMAT, "model": model.content_hash, "users": sorted(set(users))}
    write_text(path, json.dumps(about, indent=1) + "\n", overwrite, private=True)


def find_training_users(file: str | Path | MarkovModel, model: MarkovModel) -> frozenset[str] | None:
    """Return the training users of a model, from the lists in the folder of its file.

    A list identifies its model by content, so it remains valid if the model is renamed. The training users are unknown
    if the model was copied without its list, was changed, or is not in a file. Users who appear under another name are
    not recognised.

    Parameters
    ----------
    file
        The model's file. A model without a file has no list.
    model
        The content of the file.

    Returns
    -------
    frozenset of str or None
        None if no list belongs to the model. Empty for a region prior.

    Raises
    ------
    DataFileError
        If a list in the folder cannot be read.
    """
    if (model.provenance or {}).get("learned_from") == NO_USERS:
        return frozenset()
    if isinstance(file, MarkovModel):
        return None
    folders = {Path(file).absolute().parent, Path(file).resolve().parent}
    lists = [_read_user_list(path) for folder in sorted(folders) for path in sorted(folder.glob(f"*{_SUFFIX}"))]
    matching = [users for model_hash, users in lists if model_hash == model.content_hash]
    return frozenset().union(*matching) if matching else None


def _read_user_list(path: Path) -> tuple[str, frozenset[str]]:
    """Return the content hash of a list's model, and its users."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        if about["format"] != _FORMAT or not all(isinstance(name, str) for name in [about["model"], *about["users"]]):
            raise ValueError
        return about["model"], frozenset(about["users"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise DataFileError(
            path, "is not a valid list of training users: restore it, or set allow_training_users"
        ) from None


def refuse_training_users(
    seen: Collection[str] | None, users: Iterable[str], remedy: str = "set allow_training_users"
) -> None:
    """Raise an error if the model was trained on some of the users.

    Parameters
    ----------
    seen
        The training users; None if they are unknown.
    users
        The users.
    remedy
        What else than another model avoids the error, for the message.

    Raises
    ------
    ConfigurationError
        If a user is a training user.
    """
    names_seen = frozenset(map(parse_user, seen or ()))
    overlap = [user for user in users if parse_user(user) in names_seen]
    if overlap:
        noun = "training user" if len(overlap) == 1 else "training users"
        names = ", ".join(overlap[:8]) + (", …" if len(overlap) > 8 else "")
        raise ConfigurationError(
            f"the model must not be trained on the users to protect, got {noun} {names}: its constraint sets "
            f"depend on their true locations. Learn it from other users (--exclude-users), or {remedy}"
        )


def read_unseen_users(
    data: DataLike, model: Model | None, learned: MarkovModel | None, allow_training_users: bool
) -> tuple[UserTracks, str]:
    """Read data, and refuse users that the model was trained on, if these are known.

    Parameters
    ----------
    data
        The data.
    model
        The model, or its file, next to which its user list is stored; None without a model.
    learned
        The loaded model.
    allow_training_users
        Whether to skip the check.

    Returns
    -------
    user_tracks : UserTracks
        All users of the data.
    training_users : str
        A description of the result of the check.

    Raises
    ------
    ConfigurationError
        If the model was trained on a user, or the data are configured wrongly; see `Data.read`.
    DataFileError
        If the data or a user list cannot be read.
    """
    seen = None
    if not allow_training_users and model is not None and learned is not None:
        seen = find_training_users(model, learned)
    space = None if learned is None else learned.states
    user_tracks = Data.from_any(data).with_region(space).read()
    refuse_training_users(seen, [trajectory.user for trajectory in user_tracks.trajectories])
    answer = UNLISTED_USERS if seen is None else "no"
    return user_tracks, "not checked (allow_training_users)" if allow_training_users else answer
