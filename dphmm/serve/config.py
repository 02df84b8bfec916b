"""What a relay's file says: the model, the store, how places are released, whose devices post and who is told."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dphmm.errors import ConfigurationError, DphmmError
from dphmm.jobs.keys import first_flaw, read_keys
from dphmm.release.ledger import Limits
from dphmm.release.postgres import is_server
from dphmm.release.settings import ReleaseSettings
from dphmm.serve.tokens import HASHED, hash_token

EXAMPLE = "docs/how-to/serve.md"

_SECRET = frozenset({"token", "headers", "password", "url"})  # the last: webhooks, names with passwords

Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f\x7f/#+]+$")]
"""Of a person or a recipient: printable, and no part of a path or of an MQTT topic."""

Kind = Literal["owntracks", "overland", "traccar", "home-assistant", "webhook", "mqtt"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Device(_Strict):
    """Something that posts a person's places.

    Attributes
    ----------
    user
        Whose places.
    token
        What it shows: the token itself, or its SHA-256 as ``sha256:…``, which is all that is kept.
    """

    user: Name
    token: str

    @field_validator("token")
    @classmethod
    def _hashed(cls, token: str) -> str:
        if token.startswith(HASHED):
            if not re.fullmatch(r"sha256:[0-9a-f]{64}", token):
                raise ValueError("is no SHA-256 in hexadecimal")
            return token
        if len(token) < 16:
            raise ValueError("has fewer than 16 characters, which can be guessed; make one with dphmm serve --init")
        return hash_token(token)


class Recipient(_Strict):
    """Somebody who is told where people are, as far as their policy allows.

    Attributes
    ----------
    name
        What the relay calls them.
    kind
        The format and the way.
    url
        Where to: ``https://…``, or ``mqtt://host:port`` for MQTT.
    users
        About whom; left out, about everybody.
    epsilon
        A budget below the release's own: they get coarser releases; see `dphmm.release.coarser`.
    tells
        ``"place"``; or ``"zone"``, the name of the zone that the estimate lies in, ``"away"`` where it is none, instead
        of any place: for webhooks and MQTT.
    when_withheld
        What they are told of a moment for which no budget is left: the ``"prediction"``, marked, or ``"nothing"``.
    true_places_unprotected
        They are sent every place as the phone posts it, and no release. For a server of one's own.
    paused
        Whether they are told nothing for now.
    headers
        Sent with every message, such as an authorisation. Values of the form ``env:NAME`` are read from the
        environment.
    """

    name: Name
    kind: Kind
    url: str
    users: tuple[Name, ...] | None = None
    epsilon: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    paused: bool = False
    tells: Literal["place", "zone"] = "place"
    when_withheld: Literal["prediction", "nothing"] = "prediction"
    true_places_unprotected: bool = False

    @field_validator("users", mode="before")
    @classmethod
    def _listed(cls, users: Any) -> Any:
        return tuple(users) if isinstance(users, list) else users

    @model_validator(mode="after")
    def _reachable(self) -> Recipient:
        _checked_url(self.url, ("mqtt", "mqtts") if self.kind == "mqtt" else ("http", "https"))
        if self.tells == "zone" and self.kind not in ("webhook", "mqtt"):
            raise ValueError(f"{self.name!r} is told zones, which no {self.kind} takes; choose webhook or mqtt")
        if self.true_places_unprotected:
            if self.epsilon is not None or self.tells == "zone":
                raise ValueError(f"{self.name!r} is sent true places; leave epsilon and tells out")
            host = urlsplit(self.url).hostname or ""
            if not self.url.startswith(("https:", "mqtts:")) and host not in ("localhost", "127.0.0.1", "::1"):
                raise ValueError(f"{self.name!r} is sent true places; give an address with TLS, or of this machine")
        return self

    def is_about(self, user: str) -> bool:
        """Whether they are told of a person."""
        return self.users is None or user in self.users

    def sent_headers(self) -> dict[str, str]:
        """The headers, with what the environment holds."""
        return {name: _from_environment(value) for name, value in self.headers.items()}


class Broker(_Strict):
    """An MQTT broker at which phones post.

    Attributes
    ----------
    url
        ``mqtt://host:port``, with a user name and ``env:NAME`` for its password where it wants them.
    topic
        What is subscribed to; the second part of a message's topic is the user.
    username, password
        What the broker wants to be told. A password ``env:NAME`` is read from the environment.
    """

    url: str
    topic: str = "owntracks/+/+"
    username: str | None = None
    password: str | None = Field(default=None, repr=False)

    @field_validator("url")
    @classmethod
    def _reachable(cls, url: str) -> str:
        return _checked_url(url, ("mqtt", "mqtts"))

    @property
    def secret(self) -> str | None:
        """The password, as the environment has it."""
        return None if self.password is None else _from_environment(self.password)


class RelayConfig(_Strict):
    """A relay's file.

    Attributes
    ----------
    model
        The model's file.
    store
        A file of durable sessions, made where there is none, or ``postgresql://user@host/database``.
    listen
        ``host:port``; only this machine reaches ``127.0.0.1``.
    release
        How places are released.
    limits
        What each person may spend; the keys of `dphmm.Limits`.
    devices, recipients
        Who posts and who is told.
    mqtt
        A broker at which phones post.
    tiles
        A server of map tiles for the page, ``https://host/{z}/{x}/{y}.png``: who looks at the page asks that host then,
        and no other. Left out, the page asks nobody.
    tiles_attribution
        What the page says of them.
    clock_skew_seconds
        By how much a fix may lie ahead of this machine's clock.
    allow_own_model
        Whether the model may have been learned from people of the relay. The promise is void for them then.
    """

    model: str
    store: str
    listen: str = "127.0.0.1:8787"
    release: ReleaseSettings = ReleaseSettings()
    limits: Limits | None = None
    devices: tuple[Device, ...] = Field(alias="device", min_length=1)
    recipients: tuple[Recipient, ...] = Field(alias="recipient", default=())
    mqtt: Broker | None = None
    tiles: str | None = None
    tiles_attribution: str = ""
    clock_skew_seconds: float = Field(default=300.0, ge=0, le=86400)
    allow_own_model: bool = False

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)

    @field_validator("devices", "recipients", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("tiles")
    @classmethod
    def _tiled(cls, url: str | None) -> str | None:
        if url is not None:
            _checked_url(url, ("http", "https"))
            if not all(part in url for part in ("{z}", "{x}", "{y}")) or not re.fullmatch(r"[!-~]+", url):
                raise ValueError("is no address of tiles of the form https://host/{z}/{x}/{y}.png")
        return url

    @field_validator("release", mode="before")
    @classmethod
    def _settings(cls, value: Any) -> Any:
        return ReleaseSettings.from_dict(value) if isinstance(value, dict) else value

    @field_validator("limits", mode="before")
    @classmethod
    def _spending(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        unknown = set(value) - {field.name for field in fields(Limits)}
        if unknown:
            raise ValueError(f"has no key {min(unknown)!r}; keys are those of dphmm.Limits")
        return Limits(**value)

    @model_validator(mode="after")
    def _distinct(self) -> RelayConfig:
        names = [one.name for one in self.recipients]
        if len(set(names)) < len(names):
            raise ValueError("two recipients have the same name; give each its own")
        if len({one.token for one in self.devices}) < len(self.devices):
            raise ValueError("two devices have the same token; give each its own")
        known = {one.user for one in self.devices}
        for one in self.recipients:
            if one.epsilon is not None and one.epsilon > self.release.epsilon:
                raise ValueError(
                    f"recipient {one.name!r} has epsilon {one.epsilon:g}, and a release {self.release.epsilon:g}; "
                    "nobody can be told more than is released"
                )
            for user in one.users or ():
                if user not in known:
                    raise ValueError(f"recipient {one.name!r} is told of {user!r}, who has no device")
        self.address  # noqa: B018 - raises where it is none
        return self

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdigit() or not 0 <= int(port) < 65536:
            raise ValueError(f"listen is {self.listen!r}; give host:port, such as 127.0.0.1:8787")
        return host.strip("[]"), int(port)

    @property
    def users(self) -> tuple[str, ...]:
        """Everybody who has a device, sorted."""
        return tuple(sorted({one.user for one in self.devices}))

    @property
    def told(self) -> tuple[Recipient, ...]:
        """Those who are told releases, or what follows from them."""
        return tuple(one for one in self.recipients if not one.true_places_unprotected)

    @property
    def predicting(self) -> frozenset[str]:
        """Of whom somebody wants predictions where no budget is left."""
        wanted = [one for one in self.told if one.when_withheld == "prediction"]
        return frozenset(user for user in self.users if any(one.is_about(user) for one in wanted))

    def coarser(self, recipient: Recipient) -> float | None:
        """The budget of a recipient's releases where these are coarser; None for the releases themselves."""
        return recipient.epsilon if recipient.epsilon != self.release.epsilon else None

    def coarser_of(self, user: str) -> tuple[float, ...]:
        """The budgets of coarser releases about a person, from the greatest down."""
        found = {self.coarser(one) for one in self.told if one.is_about(user)}
        return tuple(sorted((epsilon for epsilon in found if epsilon is not None), reverse=True))

    @classmethod
    def read(cls, path: Path) -> RelayConfig:
        """What a TOML file says. Paths in it are taken from its folder.

        Raises
        ------
        DataFileError, ConfigurationError
            When it cannot be read, or a key is unknown, missing or wrong; the message names the first.
        """
        return cls.of(read_keys(path, EXAMPLE), path).beside(path.parent)

    @classmethod
    def of(cls, keys: Mapping[str, Any], path: Path) -> RelayConfig:
        """What the keys of a file say; errors as `read`."""
        try:
            return cls.model_validate(keys)
        except ValidationError as problem:
            key, kind, said = first_flaw(problem, _SECRET)
            if kind == "extra_forbidden":
                raise ConfigurationError(f"{path}: key {key!r} is unknown; see {EXAMPLE}") from None
            raise ConfigurationError(f"{path}: {key or 'the file'} {said}; see {EXAMPLE}") from None
        except DphmmError as problem:
            raise ConfigurationError(f"{path}: {problem}") from None

    def beside(self, folder: Path) -> RelayConfig:
        """The same, with files that are named relative to a folder found from here."""
        store = self.store if is_server(self.store) else str(folder / self.store)
        return self.model_copy(update={"model": str(folder / self.model), "store": store})


def _checked_url(url: str, schemes: tuple[str, ...]) -> str:
    parts = urlsplit(url)
    if parts.scheme not in schemes or not parts.hostname:
        raise ValueError(f"is no address of the form {schemes[-1]}://host")
    return url


def _from_environment(value: str) -> str:
    return os.environ.get(value.removeprefix("env:"), "") if value.startswith("env:") else value
