"""The relay's file: model, store, how places are released, whose devices post and who receives; and making a first one.

Tokens are what a device shows to say whose places it posts. Only their digests are kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dphmm.errors import ConfigurationError, DphmmError, PolicyError
from dphmm.plots.webmap import tile_host
from dphmm.policy.lengths import kilometres
from dphmm.release.engine import ReleaseSettings
from dphmm.release.ledger import Limits
from dphmm.release.session_database import is_server
from dphmm.release.session_terms import MAIN_QUERY
from dphmm.tables.json_toml import first_flaw, read_keys

HASHED = "sha256:"
"""How a digest begins where a token is written."""


def new_token() -> str:
    """A random token of 160 bits, in letters that any app takes."""
    return secrets.token_hex(20)


def hash_token(token: str) -> str:
    """The digest of a token. No salt and no slowness: tokens are random, not words that people chose.

    Parameters
    ----------
    token
        What a device shows.

    Returns
    -------
    str
        ``sha256:`` and 64 hexadecimal digits.
    """
    return HASHED + hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def user_with(tokens: Mapping[str, str], token: str | None) -> str | None:
    """The user of a token, by the digests of tokens; None for one that is unknown."""
    return tokens.get(hash_token(token)) if token else None


EXAMPLE = "docs/how-to/serve.md"

_SECRET = frozenset({"token", "headers", "password", "url"})  # the last: webhooks, names with passwords

Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f\x7f/#+]+$")]
"""Of a person or a recipient: printable, and no part of a path or of an MQTT topic."""

Kind = Literal["owntracks", "overland", "traccar", "home-assistant", "webhook", "mqtt"]


# Finer cells than 10 m lie within a phone's own accuracy, coarser ones than 1000 km reach beyond the plane of a region.
_FINEST_M, _COARSEST_M = 10, 1_000_000


def precision_metres(text: str) -> int:
    """Return a precision such as ``5km`` in metres.

    Raises
    ------
    ValueError
        If it is not a whole number of metres from 10 m to 1000 km, with its unit.

    Examples
    --------
    >>> precision_metres("5km"), precision_metres("250m")
    (5000, 250)
    """
    try:
        metres = 1000 * kilometres(text)
    except PolicyError:
        metres = 0.0
    if not (_FINEST_M <= metres <= _COARSEST_M and abs(metres - round(metres)) < 1e-6):
        raise ValueError("must be a length of whole metres from 10m to 1000km, such as 5km")
    return round(metres)


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
    """A recipient, who is told where people are as far as their policy allows.

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
    precision : str, optional
        A length such as ``5km``: they are sent the centres of square cells of this side, see `dphmm.serve.precision`.
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
    users: Annotated[tuple[Name, ...], Field(strict=False)] | None = None
    precision: str | None = None
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    paused: bool = False
    tells: Literal["place", "zone"] = "place"
    when_withheld: Literal["prediction", "nothing"] = "prediction"
    true_places_unprotected: bool = False

    @field_validator("precision")
    @classmethod
    def _length(cls, precision: str | None) -> str | None:
        if precision is not None:
            precision_metres(precision)
        return precision

    @model_validator(mode="after")
    def _reachable(self) -> Recipient:
        _checked_url(self.url, ("mqtt", "mqtts") if self.kind == "mqtt" else ("http", "https"))
        if self.tells == "zone" and self.kind not in ("webhook", "mqtt"):
            raise ValueError(f"{self.name!r} is told zones, which no {self.kind} takes; choose webhook or mqtt")
        if self.tells == "zone" and self.precision is not None:
            raise ValueError(f"{self.name!r} is told zones: precision cannot be combined with tells = 'zone'")
        if self.true_places_unprotected:
            if self.precision is not None or self.tells == "zone":
                raise ValueError(f"{self.name!r} is sent true places; leave precision and tells out")
            host = urlsplit(self.url).hostname or ""
            if not self.url.startswith(("https:", "mqtts:")) and host not in ("localhost", "127.0.0.1", "::1"):
                raise ValueError(f"{self.name!r} is sent true places; give an address with TLS, or of this machine")
        return self

    @property
    def precision_m(self) -> int:
        """The side of the cells to which their messages are rounded, metres; 0 without a precision."""
        return 0 if self.precision is None else precision_metres(self.precision)

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

    Parameters
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
    device, recipient
        The phones that post, and the recipients: a table of the file for each.
    mqtt
        A broker at which phones post.
    basemap
        A map of the region's streets, as ``dphmm basemap`` makes it: the page draws it, and needs no other host. Left
        out, the coarse map of the world that the package holds: coast, borders and names.
    tiles
        A server of map tiles for the page, ``https://host/{z}/{x}/{y}.png``: browsers of the page ask that host, and
        no other; left out, they ask none.
    tiles_attribution
        What the page says of them.
    clock_skew_seconds
        By how much a fix may lie ahead of this machine's clock.
    worst_accuracy_m
        A fix whose app says that it is good to no less than this is dropped: a release of it would be about a place
        where the person is not.
    allow_own_model
        Whether the model may have been learned from people of the relay. The promise is void for them then.
    """

    model: str
    store: str
    listen: str = "127.0.0.1:8787"
    release: ReleaseSettings = ReleaseSettings()
    limits: Limits | None = None
    devices: tuple[Device, ...] = Field(alias="device", min_length=1, strict=False)
    recipients: tuple[Recipient, ...] = Field(alias="recipient", default=(), strict=False)
    mqtt: Broker | None = None
    basemap: str | None = None
    tiles: str | None = None
    tiles_attribution: str = ""
    clock_skew_seconds: float = Field(default=300.0, ge=0, le=86400)
    worst_accuracy_m: float = Field(default=1000.0, gt=0)
    allow_own_model: bool = False

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)

    @field_validator("tiles")
    @classmethod
    def _tiled(cls, url: str | None) -> str | None:
        if url is not None:
            try:
                tile_host(url)
            except ConfigurationError:
                raise ValueError("is no address of tiles of the form https://host/{z}/{x}/{y}.png") from None
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
    def told_releases(self) -> tuple[Recipient, ...]:
        """The recipients of releases, or of what follows from them; not those of true places."""
        return tuple(one for one in self.recipients if not one.true_places_unprotected)

    @property
    def predicting(self) -> frozenset[str]:
        """The people about whom a recipient wants predictions where no budget is left."""
        wanted = [one for one in self.told_releases if one.when_withheld == "prediction"]
        return frozenset(user for user in self.users if any(one.is_about(user) for one in wanted))

    def check_environment(self) -> None:
        """Refuse ``env:NAME`` where the environment has no such variable: an empty one would be sent.

        Raises
        ------
        ConfigurationError
            Naming the variable.
        """
        values = [value for one in self.recipients for value in one.headers.values()]
        if self.mqtt is not None and self.mqtt.password is not None:
            values.append(self.mqtt.password)
        for value in values:
            if value.startswith(_IN_ENVIRONMENT) and not os.environ.get(value.removeprefix(_IN_ENVIRONMENT)):
                raise ConfigurationError(f"the relay's file names {value}, which is not set; set that variable")

    def query(self, recipient: Recipient) -> str:
        """The query whose releases a recipient is told; a name that no query has where they are sent true places.

        Parameters
        ----------
        recipient
            One of the file's recipients.

        Returns
        -------
        str
            The query.
        """
        return "true places" if recipient.true_places_unprotected else MAIN_QUERY

    def key(self, recipient: Recipient) -> str:
        """What a recipient is called among a session's readers; another address or precision makes another reader.

        Parameters
        ----------
        recipient
            One of the file's recipients.

        Returns
        -------
        str
            Its name, and a digest of where and what it is told.
        """
        address = json.dumps([recipient.kind, recipient.url, self.query(recipient), recipient.precision_m])
        return f"recipient {recipient.name} {hashlib.sha256(address.encode()).hexdigest()[:16]}"

    def readers(self, user: str) -> dict[str, tuple[str, str, int]]:
        """The recipients who are told of a person, but for those who are paused in the file.

        Parameters
        ----------
        user
            The person.

        Returns
        -------
        dict
            The key of each → its name, the query whose releases it is told, and its precision in metres (0 for none).
        """
        told = [one for one in self.recipients if one.is_about(user) and not one.paused]
        return {self.key(one): (one.name, self.query(one), one.precision_m) for one in told}

    def precisions(self, user: str) -> tuple[int, ...]:
        """Return the precisions that a link about a user may have: 0 for none, and those of the file's recipients.

        Parameters
        ----------
        user : str
            The user.

        Returns
        -------
        tuple of int
            Metres, ascending, each once.
        """
        return tuple(sorted({0, *(one.precision_m for one in self.told_releases if one.is_about(user))}))

    @classmethod
    def read(cls, path: Path) -> RelayConfig:
        """What a TOML file says. Paths in it are taken from its folder.

        Parameters
        ----------
        path
            The file.

        Returns
        -------
        RelayConfig
            With paths that hold from here.

        Raises
        ------
        DataFileError, ConfigurationError
            When it cannot be read, or a key is unknown, missing or wrong; the message names the first.
        """
        return cls.from_keys(read_keys(path, EXAMPLE), path).beside(path.parent)

    @classmethod
    def from_keys(cls, keys: Mapping[str, Any], path: Path) -> RelayConfig:
        """What the keys of a file say; errors as `read`.

        Parameters
        ----------
        keys
            What the file holds.
        path
            The file, for messages.

        Returns
        -------
        RelayConfig
            The relay.
        """
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
        """The same, with files that are named relative to a folder found from here.

        Parameters
        ----------
        folder
            Where relative names begin.

        Returns
        -------
        RelayConfig
            The same relay.
        """
        store = self.store if is_server(self.store) else str(folder / self.store)
        basemap = self.basemap and str(folder / self.basemap)
        return self.model_copy(update={"model": str(folder / self.model), "store": store, "basemap": basemap})


def _checked_url(url: str, schemes: tuple[str, ...]) -> str:
    parts = urlsplit(url)
    if parts.scheme not in schemes or not parts.hostname:
        raise ValueError(f"is no address of the form {schemes[-1]}://host")
    return url


def _from_environment(value: str) -> str:
    return os.environ.get(value.removeprefix(_IN_ENVIRONMENT), "") if value.startswith(_IN_ENVIRONMENT) else value


_IN_ENVIRONMENT = "env:"
