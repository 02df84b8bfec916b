"""The relay's TOML file: model, store, release settings, devices, pages and recipients.

A token of a device posts locations of its user and does nothing else. A token of a page opens the page of its user and
does nothing else. The relay keeps only digests of tokens.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dphmm.errors import ConfigurationError, DphmmError, PolicyError
from dphmm.jobs.region_map import COAST
from dphmm.plots.webmap import parse_tile_host
from dphmm.policy.lengths import parse_length
from dphmm.release.database_backends import is_server
from dphmm.release.engine import ReleaseSettings
from dphmm.release.session_limits import Limits
from dphmm.release.session_terms import MAIN_QUERY
from dphmm.space.fix_quality import MAX_ACCURACY_M
from dphmm.tables.json_toml import find_first_flaw, read_keys

Value = TypeVar("Value")

# Prefix of a digest in place of a token.
HASH_PREFIX = "sha256:"


def generate_token() -> str:
    """Return a random token of 160 bits as 40 hexadecimal digits, which every app accepts."""
    return secrets.token_hex(20)


def hash_token(token: str) -> str:
    """Return the digest of a token.

    There is no salt and no slow hash: tokens are random, not passwords that users choose.

    Parameters
    ----------
    token : str
        Token that a device sends.
    Returns
    -------
    str
        ``sha256:`` and 64 hexadecimal digits.
    """
    return HASH_PREFIX + hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def find_entry(entries: Mapping[str, Value], token: str | None) -> Value | None:
    """Return the entry of a token, looked up by its digest, or None if the token is unknown."""
    return entries.get(hash_token(token)) if token else None


GUIDE = "docs/how-to/serve.md"

_SECRET_KEYS = frozenset({"token", "headers", "password", "url"})  # URLs: webhooks, and names with passwords

_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f/#+\u2028\u2029\ud800-\udfff]{1,80}")


def check_name(name: str) -> str:
    """Return the name of a user, a recipient or a device.

    It is printable, without the separators of paths and MQTT topics.

    Raises
    ------
    ValueError
        If it is not.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"must be a name of 1 to 80 printable characters without '/', '#' and '+', got {name!r}")
    return name


# Name of a user, a recipient or a device.
Name = Annotated[str, AfterValidator(check_name)]

Kind = Literal["owntracks", "overland", "traccar", "home-assistant", "webhook", "mqtt"]

# Cells below 10 m lie within a phone's own accuracy. Cells above 1000 km reach beyond the plane of a region.
_MIN_PRECISION_M = 10
_MAX_PRECISION_M = 1_000_000


def parse_precision_m(text: str) -> int:
    """Return a precision such as ``5km`` in metres.

    Raises
    ------
    ValueError
        If the text is not an integer number of metres from 10 m to 1000 km with a unit.

    Examples
    --------
    >>> parse_precision_m("5km"), parse_precision_m("250m")
    (5000, 250)
    """
    try:
        metres = 1000 * parse_length(text)
    except PolicyError:
        metres = 0.0
    if not (_MIN_PRECISION_M <= metres <= _MAX_PRECISION_M and abs(metres - round(metres)) < 1e-6):
        raise ValueError(f"must be a length of whole metres from 10m to 1000km, such as 5km, got {text!r}")
    return round(metres)


_TOPIC_FILTER = re.compile(r"(?:(?:\+|[^+#/\0]*)/)*(?:[+#]|[^+#/\0]*)")
_ADDRESS = re.compile(r"[!-~]{1,2000}")
_HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,80}")
_HTTP_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HTTP_HEADER_VALUE = re.compile(r"([!-~]([ -~]*[!-~])?)?")
# The rule for values of HTTP headers.
HEADER_VALUE_RULE = "printable ASCII without spaces at its ends"
# Whoever can write to the database chooses these variables and the address to which their values are sent.
_STORED_VARIABLE_PREFIX = "DPHMM_RECIPIENT_"
_STORED_VARIABLE = re.compile(rf"env:{_STORED_VARIABLE_PREFIX}[A-Za-z0-9_]{{1,100}}")


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _UserToken(_StrictModel):
    user: Name
    token: str

    @field_validator("token")
    @classmethod
    def _hash_token(cls, token: str) -> str:
        if token.startswith(HASH_PREFIX):
            if not re.fullmatch(r"sha256:[0-9a-f]{64}", token):
                raise ValueError("must be sha256: and 64 hexadecimal digits")
            return token
        if len(token) < 16:
            raise ValueError("must have at least 16 characters; create a random token with dphmm serve rotate")
        return hash_token(token)


class Device(_UserToken):
    """A device that posts the locations of a user.

    Attributes
    ----------
    user : str
        User of the device.
    token : str
        Token that the device sends, or its SHA-256 as ``sha256:…``. Only the digest is kept.
    preferred : bool
        Use locations of the user's other devices only while this one is silent, see `preferred_silence_seconds`. At
        most one device of a user.
    mqtt_device : str, optional
        With `preferred`, the third level of the topics at which this device posts at a broker.
    """

    preferred: bool = False
    mqtt_device: Name | None = None

    @model_validator(mode="after")
    def _check_preference(self) -> Device:
        if self.mqtt_device is not None and not self.preferred:
            raise ValueError("mqtt_device requires preferred = true")
        return self

    @property
    def names(self) -> frozenset[str]:
        """Names under which this device posts, see `get_mqtt_name`."""
        return frozenset({self.token} if self.mqtt_device is None else {self.token, get_mqtt_name(self.mqtt_device)})


def get_mqtt_name(topic_level: str) -> str:
    """Return the name of a device that posts at a broker, which differs from every digest."""
    return f"mqtt {topic_level}"


def make_user_topic(topic: str, user: str) -> str | None:
    """Return the part of a topic filter that concerns one user. None if there is none."""
    first, *rest = topic.split("/")
    if first == "#":
        return f"+/{user}/#"
    if not rest:
        return None
    if rest[0] == "#":
        return f"{first}/{user}/#"
    return "/".join((first, user, *rest[1:])) if rest[0] in ("+", user) else None


class PageAccess(_UserToken):
    """Access to the page of a user.

    Attributes
    ----------
    user : str
        User of the page, who has a device.
    token : str
        Token that opens the page, or its SHA-256 as ``sha256:…``. It differs from the tokens of devices.
    """


class Recipient(_StrictModel):
    """A recipient of released locations.

    Attributes
    ----------
    name : str
        Name of the recipient in the relay.
    kind : str
        Message format and protocol.
    url : str
        Address: ``https://…``, or ``mqtt://host:port`` for MQTT.
    users : tuple of str, optional
        Users of whom releases are sent. Defaults to all users.
    precision : str, optional
        A length such as ``5km``: the recipient is sent the centres of square cells of this side, see
        `dphmm.serve.precision_grid`.
    content : str
        ``"location"``; or ``"zone"``, the name of the zone that contains the estimate (``"away"`` if no zone does),
        instead of any location. Zones can be sent to webhooks and MQTT.
    when_withheld : str
        Message for a timestep that is withheld: a ``"prediction"``, marked as one, or ``"nothing"``.
    true_locations_unprotected : bool
        Send every location exactly as the phone posts it, and no release. Intended for the user's own server.
    paused : bool
        Send nothing for now.
    headers : dict
        Headers of every message, such as an authorisation. Values of the form ``env:NAME`` are read from the
        environment.
    """

    name: Name
    kind: Kind
    url: str
    users: Annotated[tuple[Name, ...], Field(strict=False)] | None = None
    precision: str | None = None
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    paused: bool = False
    content: Literal["location", "zone"] = "location"
    when_withheld: Literal["prediction", "nothing"] = "prediction"
    true_locations_unprotected: bool = False

    @field_validator("precision")
    @classmethod
    def _check_precision(cls, precision: str | None) -> str | None:
        if precision is not None:
            parse_precision_m(precision)
        return precision

    @model_validator(mode="after")
    def _check_combination(self) -> Recipient:
        schemes = ("mqtt", "mqtts") if self.kind == "mqtt" else ("http", "https")
        _check_url(self.url, schemes, f"{self.name!r}: url ")
        for name, value in self.http_headers.items():
            if not _HTTP_HEADER_NAME.fullmatch(name):
                raise ValueError(f"{self.name!r}: headers must have names of letters, digits and hyphens, got {name!r}")
            if not (value.startswith(_ENVIRONMENT_PREFIX) or _HTTP_HEADER_VALUE.fullmatch(value)):
                raise ValueError(f"{self.name!r}: the value of header {name} must be {HEADER_VALUE_RULE}")
        if self.content == "zone" and self.kind not in ("webhook", "mqtt"):
            raise ValueError(
                f"{self.name!r}: content = 'zone' cannot be combined with kind = {self.kind!r}; use webhook or mqtt"
            )
        if self.content == "zone" and self.precision is not None:
            raise ValueError(f"{self.name!r}: precision cannot be combined with content = 'zone'")
        if self.true_locations_unprotected:
            if self.precision is not None or self.content == "zone":
                raise ValueError(
                    f"{self.name!r}: true_locations_unprotected cannot be combined with precision or content"
                )
            host = urlsplit(self.url).hostname or ""
            if not self.url.startswith(("https:", "mqtts:")) and host not in ("localhost", "127.0.0.1", "::1"):
                raise ValueError(
                    f"{self.name!r}: true_locations_unprotected needs an address with TLS or on this machine"
                )
        return self

    @property
    def precision_m(self) -> int:
        """Side of the cells to which messages are rounded, metres. 0 without a precision."""
        return 0 if self.precision is None else parse_precision_m(self.precision)

    @property
    def query(self) -> str:
        """Query of the releases that are sent. For true locations, a name that no query has."""
        return "true locations" if self.true_locations_unprotected else MAIN_QUERY

    @property
    def key(self) -> str:
        """Key in the store: the name, and a digest of kind, address, query, precision and content."""
        address = json.dumps([self.kind, self.url, self.query, "zone" if self.content == "zone" else self.precision_m])
        return f"recipient {self.name} {hashlib.sha256(address.encode()).hexdigest()[:16]}"

    @property
    def http_headers(self) -> dict[str, str]:
        """The headers without replacements. Empty for MQTT, where they are an account."""
        return {} if self.kind == "mqtt" else self.headers

    def has_user(self, user: str) -> bool:
        """Return whether the recipient is sent the releases of a user."""
        return self.users is None or user in self.users

    def resolve_headers(self) -> dict[str, str]:
        """Return the headers with ``env:NAME`` replaced by values from the environment."""
        return {name: _resolve_environment(value) for name, value in self.headers.items()}

    def find_missing_variable(self) -> str | None:
        """Return the first header value ``env:NAME`` without a variable, or None."""
        return next(filter(_lacks_variable, self.headers.values()), None)

    def find_invalid_variable(self) -> str | None:
        """Return the first value ``env:NAME`` that an HTTP header cannot contain, or None."""
        values = self.http_headers.values()
        return next((value for value in values if not _HTTP_HEADER_VALUE.fullmatch(_resolve_environment(value))), None)


class StoredRecipient(Recipient):
    """A recipient in the database, without secrets and not of true locations.

    Values of headers are ``env:DPHMM_RECIPIENT_NAME``, and the address has no password. Any process that can write to
    the database could otherwise request true locations or other variables of the environment.

    See `Recipient` for its attributes.
    """

    @field_validator("url")
    @classmethod
    def _check_stored_url(cls, url: str) -> str:
        try:
            netloc = urlsplit(url).netloc
        except ValueError:
            return url  # `_check_url` refuses it
        if not _ADDRESS.fullmatch(url) or "@" in netloc:
            raise ValueError("must be printable ASCII without spaces and without a user or password")
        return url

    @model_validator(mode="after")
    def _check_stored(self) -> StoredRecipient:
        if self.true_locations_unprotected:
            raise ValueError("true_locations_unprotected must be in the relay's file, not in the database")
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError("headers must have names of letters, digits and hyphens")
            if not _STORED_VARIABLE.fullmatch(value):
                raise ValueError(f"header {name} must have a value env:{_STORED_VARIABLE_PREFIX}NAME in the database")
        return self

    @classmethod
    def from_keys(cls, keys: Mapping[str, Any]) -> StoredRecipient:
        """Validate the keys of a recipient in the database.

        Parameters
        ----------
        keys : mapping
            The keys, those of a table ``[[recipient]]``.

        Returns
        -------
        StoredRecipient
            The recipient.

        Raises
        ------
        ConfigurationError
            If a key is unknown, missing or invalid. The message names the first one.
        """
        try:
            return cls.model_validate(keys)
        except ValidationError as problem:
            key, _, reason = find_first_flaw(problem, _SECRET_KEYS)
            raise ConfigurationError(f"recipient: {key + ' ' if key else ''}{reason}; see {GUIDE}") from None


class Broker(_StrictModel):
    """An MQTT broker at which phones post.

    Attributes
    ----------
    url : str
        ``mqtt://host:port`` or ``mqtts://host:port``.
    topic : str
        Subscribed topic filter. The second level of a message's topic is the user.
    username, password : str, optional
        Account at the broker. A password ``env:NAME`` is read from the environment.
    """

    url: str
    topic: str = "owntracks/+/+"
    username: str | None = None
    password: str | None = Field(default=None, repr=False)

    @field_validator("url")
    @classmethod
    def _check_broker_url(cls, url: str) -> str:
        return _check_url(url, ("mqtt", "mqtts"))

    @property
    def resolved_password(self) -> str | None:
        """The password, read from the environment if it has the form ``env:NAME``."""
        return None if self.password is None else _resolve_environment(self.password)


class RelayConfig(_StrictModel):
    """Configuration of a relay, read from its TOML file.

    Parameters
    ----------
    model : str
        File of the model.
    store : str
        File of durable sessions, created if it does not exist, or ``postgresql://user@host/database``.
    listen : str
        ``host:port``. With ``127.0.0.1`` only this machine can connect.
    url : str, optional
        Address at which phones reach the relay, such as ``https://relay.example``. Commands print it in the settings of
        apps; the relay does not use it.
    release : ReleaseSettings
        Settings under which locations are released.
    limits : Limits, optional
        Budget limits of each user; the keys of `dphmm.Limits`.
    device, page, recipient : sequence
        Devices that post, access to the pages of users, and recipients: one table of the file for each. With PostgreSQL
        the database contains further ones; see `dphmm.serve.devices_and_recipients`.
    mqtt : Broker, optional
        Broker at which phones post.
    basemap : str, optional
        Map of the region's streets, written by ``dphmm basemap``. The page draws it without requests to other hosts.
        Defaults to the coarse world map of the package: coast, borders and names.
    tiles : str, optional
        Server of map tiles for the page, ``https://host/{z}/{x}/{y}.png``. Browsers request tiles from this host and
        from no other. None means that they request none.
    tiles_attribution : str
        Attribution of the tiles, shown on the page.
    adversary_map : str, optional
        Map of an adversary whose figures the page shows, too: ``"coast"`` or a map file, see
        `dphmm.jobs.region_map.build_region_map`. None means no such figures. Releases do not depend on it.
    clock_skew_seconds : float
        Maximum time by which a fix may lie ahead of this machine's clock.
    max_accuracy_m : float
        A fix with an accuracy radius of this or more is dropped, because its release would concern a location where
        the user is not.
    preferred_silence_seconds : float
        Time since the last post of a user's preferred device after which locations of the user's other devices are
        used.
    allow_training_users : bool
        Accept a model that was trained on users of the relay. The guarantee is void for these users.
    """

    model: str
    store: str
    listen: str = "127.0.0.1:8787"
    url: str | None = None
    release: ReleaseSettings = ReleaseSettings()
    limits: Limits | None = None
    devices: tuple[Device, ...] = Field(alias="device", default=(), strict=False)
    pages: tuple[PageAccess, ...] = Field(alias="page", default=(), strict=False)
    recipients: tuple[Recipient, ...] = Field(alias="recipient", default=(), strict=False)
    mqtt: Broker | None = None
    basemap: str | None = None
    tiles: str | None = None
    tiles_attribution: str = ""
    adversary_map: str | None = None
    clock_skew_seconds: float = Field(default=300.0, ge=0, le=86400)
    max_accuracy_m: float = Field(default=MAX_ACCURACY_M, gt=0)
    preferred_silence_seconds: float = Field(default=1800.0, gt=0, le=604800)
    allow_training_users: bool = False

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)

    @field_validator("url")
    @classmethod
    def _check_own_url(cls, url: str | None) -> str | None:
        return url if url is None else _check_url(url, ("http", "https"))

    @field_validator("tiles")
    @classmethod
    def _check_tiles(cls, url: str | None) -> str | None:
        if url is not None:
            try:
                parse_tile_host(url)
            except ConfigurationError:
                raise ValueError("must be of the form https://host/{z}/{x}/{y}.png") from None
        return url

    @field_validator("release", mode="before")
    @classmethod
    def _parse_release(cls, value: Any) -> Any:
        return ReleaseSettings.from_dict(value) if isinstance(value, dict) else value

    @field_validator("limits", mode="before")
    @classmethod
    def _parse_limits(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        unknown = set(value) - {field.name for field in fields(Limits)}
        if unknown:
            names = ", ".join(field.name for field in fields(Limits))
            raise ValueError(f"must contain the keys {names} only, got {min(unknown)!r}")
        return Limits(**value)

    @model_validator(mode="after")
    def _check_names(self) -> RelayConfig:
        names = [recipient.name for recipient in self.recipients]
        if len(set(names)) < len(names):
            raise ValueError("recipient names must be unique")
        if len({entry.token for entry in (*self.devices, *self.pages)}) < len(self.devices) + len(self.pages):
            raise ValueError("tokens of devices and pages must be unique: a token that posts must not open a page")
        preferring = [device.user for device in self.devices if device.preferred]
        for user in set(preferring):
            if preferring.count(user) > 1:
                raise ValueError(f"at most one device of a user can be preferred, got several of {user!r}")
        device_users = {device.user for device in self.devices}
        has_others = is_server(self.store)  # in the database
        if not device_users and not has_others:
            raise ValueError("device must list at least one device unless store is postgresql://…")
        for page in self.pages:
            if page.user not in device_users and not has_others:
                raise ValueError(f"users of pages must have a device, got {page.user!r}")
        for recipient in self.recipients:
            for user in recipient.users or ():
                if user not in device_users and not has_others:
                    raise ValueError(f"users of recipient {recipient.name!r} must have a device, got {user!r}")
        if self.mqtt is not None:
            _check_topic(self.mqtt.topic, device_users, has_others)
        self.address  # noqa: B018 - raises if it is invalid
        return self

    @property
    def address(self) -> tuple[str, int]:
        """Host and port on which the relay listens."""
        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdigit() or not 0 <= int(port) < 65536:
            raise ValueError(f"listen must be host:port, such as 127.0.0.1:8787, got {self.listen!r}")
        return host.strip("[]"), int(port)

    @property
    def users(self) -> tuple[str, ...]:
        """Users with at least one device in the file, sorted."""
        return tuple(sorted({device.user for device in self.devices}))

    def check_environment(self) -> None:
        """Refuse ``env:NAME`` if the variable is not set, or a header cannot contain it.

        Otherwise an empty value would be sent, or messages would wait.

        Raises
        ------
        ConfigurationError
            If a variable is not set or invalid. The message names it.
        """
        values = [value for recipient in self.recipients for value in recipient.headers.values()]
        if self.mqtt is not None and self.mqtt.password is not None:
            values.append(self.mqtt.password)
        for value in values:
            if _lacks_variable(value):
                raise ConfigurationError(f"{value}: the environment variable is not set; set it")
        for recipient in self.recipients:
            invalid = recipient.find_invalid_variable()
            if invalid is not None:
                raise ConfigurationError(f"{invalid}: the environment variable must be {HEADER_VALUE_RULE}")

    @classmethod
    def read(cls, path: Path) -> RelayConfig:
        """Read a configuration from a TOML file, with paths relative to its folder.

        Parameters
        ----------
        path : Path
            The file.

        Returns
        -------
        RelayConfig
            The configuration, with paths that are valid from the working directory.

        Raises
        ------
        DataFileError, ConfigurationError
            If the file cannot be read, or a key is unknown, missing or invalid. The message names the first one.
        """
        return cls.from_keys(read_keys(path, GUIDE), path).with_paths_from(path.parent)

    @classmethod
    def from_keys(cls, keys: Mapping[str, Any], path: Path) -> RelayConfig:
        """Validate the keys of a file. Raises the errors of `read`.

        Parameters
        ----------
        keys : mapping
            Content of the file.
        path : Path
            The file, for messages.

        Returns
        -------
        RelayConfig
            The configuration.
        """
        try:
            return cls.model_validate(keys)
        except ValidationError as problem:
            key, kind, reason = find_first_flaw(problem, _SECRET_KEYS)
            if kind == "extra_forbidden":
                raise ConfigurationError(f"{path}: key {key!r} is unknown; see {GUIDE}") from None
            raise ConfigurationError(f"{path}: {key + ' ' if key else ''}{reason}; see {GUIDE}") from None
        except DphmmError as problem:
            raise ConfigurationError(f"{path}: {problem}") from None

    def with_paths_from(self, folder: Path) -> RelayConfig:
        """Return this configuration with relative file names resolved from a folder.

        Parameters
        ----------
        folder : Path
            Folder from which relative names are resolved.

        Returns
        -------
        RelayConfig
            The changed configuration.
        """
        store = self.store if is_server(self.store) else str(folder / self.store)
        basemap = self.basemap and str(folder / self.basemap)
        region_map = self.adversary_map
        paths = {
            "model": str(folder / self.model),
            "store": store,
            "basemap": basemap,
            "adversary_map": region_map if region_map in (None, COAST) else str(folder / region_map),
        }
        return self.model_copy(update=paths)


def _check_url(url: str, schemes: tuple[str, str], subject: str = "") -> str:
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port or an IPv6 address
        is_valid = False
    if not is_valid:
        forms = " or ".join(f"{scheme}://host" for scheme in schemes)
        raise ValueError(f"{subject}must be of the form {forms}")  # without the URL, which can contain a secret
    return url


def _check_topic(topic: str, users: Collection[str], has_others: bool) -> None:
    """Refuse a topic filter that matches no user, because messages would be lost silently."""
    _, _, rest = topic.partition("/")
    second_level = rest.partition("/")[0]
    # With a database, users can be added later, and the second level can be any of them.
    candidates = {*users, second_level or "+"} if has_others else users
    if not _TOPIC_FILTER.fullmatch(topic) or all(make_user_topic(topic, user) is None for user in candidates):
        raise ValueError(
            "mqtt.topic must be an MQTT topic filter whose second level is the user, such as owntracks/+/+, "
            f"got {topic!r}"
        )


def _resolve_environment(value: str) -> str:
    return (
        os.environ.get(value.removeprefix(_ENVIRONMENT_PREFIX), "") if value.startswith(_ENVIRONMENT_PREFIX) else value
    )


def _lacks_variable(value: str) -> bool:
    return value.startswith(_ENVIRONMENT_PREFIX) and not os.environ.get(value.removeprefix(_ENVIRONMENT_PREFIX))


_ENVIRONMENT_PREFIX = "env:"
