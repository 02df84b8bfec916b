"""What a session was agreed on: whoever goes on with it must promise the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from dphmm.arguments import checked
from dphmm.arrays import content_hash
from dphmm.errors import InvalidInputError
from dphmm.release.engine import Releaser
from dphmm.release.settings import ReleaseSettings
from dphmm.tables.json_text import parse_json
from dphmm.tables.values import one_line, shorten


@dataclass(frozen=True)
class Terms:
    """What the promise of one query is made of.

    Parameters
    ----------
    settings
        How places are released.
    settings_hash, model, policy, measurements
        Content hashes: of the settings, the model, the policy graph and what is measured in each state.
    randomness
        ``"system"``; or ``"seeded"``, in which case nothing is private.
    """

    settings: ReleaseSettings
    settings_hash: str
    model: str
    policy: str
    measurements: str
    randomness: str

    @classmethod
    def of(cls, engine: Releaser) -> Terms:
        """The terms of an engine."""
        return cls(
            engine.settings,
            engine.settings.content_hash,
            engine.model.content_hash,
            engine.policy.content_hash,
            content_hash(engine.values),
            "system" if engine.is_private else "seeded",
        )

    def differences(self, other: Terms) -> Iterator[tuple[str, str, str]]:
        """What differs in content, each with its value here and there; the policy's wording is no matter."""
        mine, theirs = self.settings.to_dict(), other.settings.to_dict()
        for name in mine:
            if name != "policy" and mine[name] != theirs[name]:
                yield name, str(mine[name]), str(theirs[name])
        for part in ("model", "policy", "measurements", "randomness"):
            if getattr(self, part) != getattr(other, part):
                yield part, _shortened(getattr(self, part)), _shortened(getattr(other, part))

    def to_json(self) -> str:
        """The terms as a JSON object, from which `from_json` makes them again."""
        return json.dumps({**asdict(self), "settings": self.settings.to_dict()}, sort_keys=True)

    @classmethod
    @checked
    def from_json(cls, text: str) -> Terms:
        """The terms that `to_json` wrote.

        Raises
        ------
        InvalidInputError
            When the text is something else.
        """
        try:
            values = parse_json(text)
            if not isinstance(values, dict) or not isinstance(values.get("settings"), dict):
                raise ValueError("there are no settings")
            for name in set(values) - {"settings"}:
                if not isinstance(values[name], str):
                    raise ValueError(f"{shorten(name)} is {shorten(values[name])}, no text")
            return cls(**{**values, "settings": ReleaseSettings.from_dict(values["settings"])})
        except (TypeError, ValueError) as problem:  # the first for a name that is missing, or one too many
            raise InvalidInputError(f"text holds no terms of a session ({one_line(problem)})") from None


def _shortened(value: str) -> str:
    return value if len(value) <= 20 else f"{value[:12]}…"
