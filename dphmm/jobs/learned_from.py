"""Whose data a model has seen: a private list in the folder of its file, so that it is not used on them.

A model that was learned from a person's own places, without noise, breaks the promise made to that person: what it
holds possible, and with it the constraint set, the repair, the hull and the size of the noise, depends on their true
places otherwise than through what is released. The model itself says nothing about people, for it is public; the list
stays with whoever learned it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from pathlib import Path

from dphmm.errors import ConfigurationError, DataFileError
from dphmm.markov.model import MarkovModel
from dphmm.tables import write_text

_FORMAT = "dphmm-learned-from-1"
_ENDING = ".PRIVATE-people.json"


def private_list(model: str | Path) -> Path:
    """Where the list of a model's file is written: ``city.npz`` has ``city.PRIVATE-people.json``."""
    path = Path(model)
    return path.with_name(path.stem + _ENDING)


def write_list(path: Path, model: MarkovModel, people: Iterable[str], overwrite: bool = False) -> None:
    """Write whose data a model has seen, readable for the owner alone, whole or not at all.

    Raises
    ------
    OutputError
        When the file exists and may not be replaced, or cannot be written.
    """
    about = {"format": _FORMAT, "model": model.content_hash, "people": sorted(set(people))}
    write_text(path, json.dumps(about, indent=1) + "\n", overwrite, private=True)


def people_seen(file: str | Path | MarkovModel, model: MarkovModel) -> frozenset[str] | None:
    """Whose data a model has seen, as far as lists in the folder of its file tell.

    A list names its model by content, so that a renamed model keeps it. It cannot be told of a model that was copied or
    sent without its list, that was changed since, or that is not in a file; nor of a person who goes by another name.

    Parameters
    ----------
    file
        The model's file; a model that is in none has no list.
    model
        What the file holds.

    Returns
    -------
    frozenset of str or None
        None where no list is about the model.

    Raises
    ------
    DataFileError
        When a list in the folder cannot be read.
    """
    if isinstance(file, MarkovModel):
        return None
    folders = {Path(file).absolute().parent, Path(file).resolve().parent}
    found = [_read(path) for folder in sorted(folders) for path in sorted(folder.glob(f"*{_ENDING}"))]
    about = [people for seen, people in found if seen == model.content_hash]
    return frozenset().union(*about) if about else None


def _read(path: Path) -> tuple[str, frozenset[str]]:
    """The content hash of a list's model, and its people."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        if about["format"] != _FORMAT or not all(isinstance(name, str) for name in [about["model"], *about["people"]]):
            raise ValueError
        return about["model"], frozenset(about["people"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise DataFileError(
            path, "cannot be read as a list of whose data a model has seen; restore it, or say --allow-own-model"
        ) from None


def refuse_own(seen: Collection[str] | None, users: Iterable[str]) -> None:
    """Refuse people whose own data the model has seen.

    Raises
    ------
    ConfigurationError
        Naming them, and what to do.
    """
    own = [user for user in users if seen is not None and user in seen]
    if own:
        names = ", ".join(own[:8]) + (", …" if len(own) > 8 else "")
        verb = "is" if len(own) == 1 else "are"
        raise ConfigurationError(
            f"user {names} {verb} among those that the model was learned from, so that what it holds possible depends "
            "on their true places; learn it from other people (--exclude-users), or say --allow-own-model"
        )


def said(seen: Collection[str] | None, allowed: bool) -> str:
    """What is said of whether the model was learned from those who are released, who were checked unless allowed."""
    if allowed:
        return "not checked (--allow-own-model)"
    return "not known: no list beside the model" if seen is None else "no"
