"""Create and change a relay's file.

Tokens are printed once, with the settings of the apps. Only digests are stored.
"""

from __future__ import annotations

import base64
import io
import ipaddress
import json
import os
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil, floor, log10
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import numpy as np
import tomli_w

from dphmm.arrays import FloatArray
from dphmm.errors import ConfigurationError, DataFileError, import_library
from dphmm.formatting import describe_likelihood_ratio
from dphmm.jobs.model.loading import Model, load_model
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.model.model import MarkovModel
from dphmm.model.path_sampling import sample_paths
from dphmm.policy.expression import format_policy_label
from dphmm.policy.graph import PolicyLike
from dphmm.policy.graph_text import format_policy_text
from dphmm.release.database_backends import is_server
from dphmm.release.engine import ReleaseSettings
from dphmm.release.ledger import DAY_SECONDS
from dphmm.release.session_store import SessionStore
from dphmm.release.settings import DEFAULT_DAILY_EPSILON, Schedule
from dphmm.serve.clock import get_current_second
from dphmm.serve.config import GUIDE, RelayConfig, StoredRecipient, check_name, generate_token, hash_token
from dphmm.serve.devices_and_recipients import Access, AccessTable
from dphmm.tables import check_output, create_file, iso_time, write_text
from dphmm.tables.json_toml import read_keys
from dphmm.validation import Interval, NoiseEpsilon, NonNegativeInt, NonNegativeNumber, PositiveInt, check_arguments

_MONDAY = 1_709_510_400  # midnight, UTC
_MAX_USERS = 4  # simulated users
_MAX_TOTAL_STATES = 3000  # simulated users times states, to bound the time of a simulation
_SEED = 1
_ERROR_TOLERANCE = 1.2  # mean errors up to this multiple of the target are not reported as missing it
_EPSILON_CANDIDATES = (0.5, 1.0, 2.0, 4.0)  # budgets of a release that are tried


@dataclass(frozen=True)
class SimulatedDay:
    """Result of a schedule on one day of users who are simulated by the model.

    Parameters
    ----------
    settings : ReleaseSettings
        Settings of the releases.
    errors_m : ndarray
        Error of the estimate at each timestep of all users, in metres.
    spent : tuple of float
        Epsilon spent on each user's day.
    unlimited_error_m : float, optional
        With an error target, the mean error of estimates without a budget of the day, in metres.
    """

    settings: ReleaseSettings
    errors_m: FloatArray
    spent: tuple[float, ...]
    unlimited_error_m: float | None = None

    @classmethod
    def simulate(
        cls, settings: ReleaseSettings, model: MarkovModel, watch: ProgressCallback = suppress_progress
    ) -> SimulatedDay:
        """Simulate a day of a few users. The users are the same in every call.

        Parameters
        ----------
        settings : ReleaseSettings
            Settings of the releases.
        model : MarkovModel
            The model.
        watch : ProgressCallback
            Progress display.

        Returns
        -------
        SimulatedDay
            The result.
        """
        engine = settings.engine(model)
        errors = []
        spent = []
        first = int(_MONDAY // model.step)
        steps = max(1, round(DAY_SECONDS / model.step))
        num_users = max(1, min(_MAX_USERS, _MAX_TOTAL_STATES // model.size))
        paths = sample_paths(model, num_users, steps, first, _SEED)
        for number, path in enumerate(watch(paths, f"a day at epsilon {settings.epsilon:g}", len(paths))):
            user_engine = engine.spawn(np.random.default_rng(_SEED + number))
            epsilon = 0.0
            user_engine.restart(first)
            for state in path.tolist():
                record = user_engine.release(state)
                errors.append(1000 * float(np.linalg.norm(np.array(record.estimate) - model.space.points[state])))
                epsilon += record.epsilon
            spent.append(epsilon)
        return cls(settings, np.array(errors), tuple(spent))


_Kilometres = Annotated[float, Interval(0, 1e3, "neither", "kilometres", ConfigurationError)]
_Hours = Annotated[float, Interval(0, 24, "right", "hours", ConfigurationError)]


@check_arguments
def plan_schedule(
    model: MarkovModel,
    policy: str | PolicyLike,
    target_error_km: _Kilometres | None = None,
    hours: _Hours | None = None,
    epsilon: NoiseEpsilon | None = None,
    watch: ProgressCallback = suppress_progress,
) -> SimulatedDay:
    """Choose a schedule for a relay, and simulate it for one day.

    Without ``target_error_km`` the budget of any 24 hours is fixed, and estimates are as accurate as it allows. With
    it, the mean error of estimates is the target: the budget of a release is the smallest candidate that reaches it.
    The budget of a day is the largest epsilon that a simulated user's day spends, times the fraction ``hours / 24``.

    Parameters
    ----------
    model : MarkovModel
        The model.
    policy : str or PolicyLike
        Locations that must stay indistinguishable.
    target_error_km : float, optional
        Target of the mean error of estimates. None means as small as the budget of a day allows.
    hours : float, optional
        With ``target_error_km``, the number of hours of a day for which the target is kept, at most 24. Defaults to 24.
        In the other hours recipients are sent predictions.
    epsilon : float, optional
        Without ``target_error_km``, the budget of a day, by default that of `ReleaseSettings.for_a_day`. With it, the
        budget of a release, by default searched.
    watch : ProgressCallback
        Progress display.

    Returns
    -------
    SimulatedDay
        The settings and their simulated day.

    Raises
    ------
    ConfigurationError
        If ``target_error_km`` or ``hours`` is out of range, or ``hours`` is set without ``target_error_km``.
    DphmmError
        If the policy cannot be used with the model.
    """
    policy = format_policy_text(policy)
    if target_error_km is None:
        if hours is not None:
            raise ConfigurationError(f"hours requires target_error_km, got hours={hours:g} alone")
        settings = ReleaseSettings.for_a_day(DEFAULT_DAILY_EPSILON if epsilon is None else epsilon, policy=policy)
        return SimulatedDay.simulate(settings, model, watch)
    hours = 24.0 if hours is None else hours
    aim = Schedule(target_error=target_error_km)
    for budget in _EPSILON_CANDIDATES if epsilon is None else (epsilon,):
        day = SimulatedDay.simulate(ReleaseSettings(policy=policy, epsilon=budget, schedule=aim), model, watch)
        if float(day.errors_m.mean()) <= 1000 * target_error_km:
            break
    max_epsilon = max(day.settings.epsilon, max(day.spent) * hours / 24)
    digits = 1 - floor(log10(max_epsilon))
    schedule = replace(aim, window_epsilon=ceil(max_epsilon * 10**digits) / 10**digits)
    limited = SimulatedDay.simulate(replace(day.settings, schedule=schedule), model, watch)
    return replace(limited, unlimited_error_m=float(day.errors_m.mean()))


@check_arguments
def write_relay(
    path: str | Path,
    model: Model | None,
    users: Sequence[str],
    policy: str | PolicyLike = "utility:1km",
    epsilon: NoiseEpsilon | None = None,
    url: str | None = None,
    overwrite: bool = False,
    target_error_km: _Kilometres | None = None,
    hours: _Hours | None = None,
    recipients: Sequence[str] = (),
    watch: ProgressCallback = suppress_progress,
) -> list[str]:
    """Write a relay's file and return the settings of the users' apps.

    The tokens are not shown again.

    Parameters
    ----------
    path : str or Path
        File to write, readable by its owner only.
    model : Model, optional
        File of the model; or a model, which is then written next to the relay's file.
    users : sequence of str
        Users with phones that post.
    policy, epsilon, target_error_km, hours, watch
        Release settings, see `plan_schedule`.
    url : str, optional
        Address at which phones reach the relay, which is written to the file.
    overwrite : bool
        Whether an existing file may be replaced.
    recipients : sequence of str
        Recipients as ``name:kind:address``, such as ``family:owntracks:https://recorder.example/pub``.

    Returns
    -------
    list of str
        Lines to print.

    Raises
    ------
    ConfigurationError
        If there is no model or no user, or names or settings cannot be used.
    OutputError
        If the file exists.
    """
    if model is None or not users:
        raise ConfigurationError("--init requires --bbox, --town or --model FILE, and --user NAME for each user")
    for user in users:
        _check_name(user, "--user")
    for recipient in recipients:
        if recipient.count(":") < 2:
            raise ConfigurationError(f"--recipient must be NAME:KIND:URL, got {recipient!r}")
    file = check_output(path, overwrite)
    new_model = model if isinstance(model, MarkovModel) else None
    model_file = check_output(file.with_suffix(".npz"), overwrite) if new_model is not None else Path(str(model))
    learned = load_model(model)
    tokens = {user: generate_token() for user in dict.fromkeys(users)}
    page_tokens = {user: generate_token() for user in tokens}
    content: dict[str, Any] = {
        "model": os.path.relpath(model_file.resolve(), file.resolve().parent),
        "store": "users.db",
        "listen": RelayConfig.model_fields["listen"].default,
        **({} if url is None else {"url": url}),
        "device": [{"user": user, "token": hash_token(token)} for user, token in tokens.items()],
        "page": [{"user": user, "token": hash_token(token)} for user, token in page_tokens.items()],
        "recipient": [
            dict(zip(("name", "kind", "url"), recipient.split(":", 2), strict=False)) for recipient in recipients
        ],
    }
    address = _find_address(content, file)  # before the search for a schedule, which takes long
    day = plan_schedule(learned, policy, target_error_km, hours, epsilon, watch)
    settings = day.settings
    assert settings.schedule is not None, "plan_schedule sets one"
    content["release"] = {
        "policy": settings.policy,
        "epsilon": settings.epsilon,
        "schedule": settings.schedule.to_dict(),
    }
    RelayConfig.from_keys(content, file)
    if new_model is not None:
        with create_file(model_file, overwrite) as part:
            new_model.save(part)
    entries = [_format_entry(name, values) for name in ("device", "page", "recipient") for values in content.pop(name)]
    write_text(file, tomli_w.dumps(content) + "".join(entries), overwrite, private=True)
    return [
        f"Wrote {file}. It contains digests of the tokens. The tokens are shown here and not again.",
        "",
        *_describe_day(day, target_error_km, hours or 24),
        "",
        *_describe_reach(address, file),
        *([] if recipients else _describe_missing_recipients(file)),
        *(line for user, token in tokens.items() for line in (*describe_app_settings(user, token, address), "")),
        f"To start the relay: dphmm serve {file}",
        "The pages show where recipients see a user. Log in with:",
        *(_describe_page(user, token, address) for user, token in page_tokens.items()),
    ]


def _describe_day(day: SimulatedDay, target_error_km: float | None, hours: float) -> Iterator[str]:
    settings, errors = day.settings, day.errors_m
    assert settings.schedule is not None, "plan_schedule sets one"
    assert settings.schedule.window_epsilon is not None, "plan_schedule sets a budget"
    mean_error = errors.mean()
    error_90 = np.quantile(errors, 0.9)
    max_epsilon = settings.schedule.window_epsilon
    more = ""
    if target_error_km is not None and day.unlimited_error_m is not None:
        target_m = 1000 * target_error_km
        if day.unlimited_error_m > _ERROR_TOLERANCE * target_m:
            more = (
                f" Without a budget of a day, the mean error would be {day.unlimited_error_m:,.0f} m: the requested "
                f"{target_m:,.0f} m need a larger --epsilon."
            )
        elif mean_error > _ERROR_TOLERANCE * target_m:
            more = (
                f" The budget of a day, epsilon {max_epsilon:g}, limits the requested {target_m:,.0f} m to about "
                f"{hours:g} h of it: for a smaller error, set a longer --horizon."
            )
    policy = format_policy_label(settings.policy)
    if not any(day.spent):
        users = "these users" if len(day.spent) > 1 else "this user"
        guarantee: tuple[str, ...] = (
            f"Nothing is released for {users}: the expected error of the model alone meets the target, so that "
            "recipients see where the model expects any user. For releases, set a smaller --target-error.",
        )
    elif target_error_km is None:
        guarantee = (
            f"Take two trajectories that the model considers possible and that the policy '{policy}' connects at every "
            "timestep. The releases of any 24 hours are "
            f"{describe_likelihood_ratio(max_epsilon, 'under one', 'under the other', f'epsilon {max_epsilon:g}')}.",
            "For more accurate estimates, set --target-error.",
        )
    else:
        guarantee = (
            "Take two locations that the model considers possible and that the policy "
            f"'{policy}' connects. One release is "
            f"{describe_likelihood_ratio(settings.epsilon, 'from one', 'from the other')}.",
            f"A day has many releases. They spend epsilon {np.mean(day.spent):.3g} on average for these users, and "
            f"never more than {max_epsilon:g}. Recipients learn where a user stays for hours.",
        )
    num_users = len(day.spent)
    utility = (
        f"On a day of {num_users} simulated user{'s' if num_users > 1 else ''}, estimates have a mean error of "
        f"{mean_error:,.0f} m and a 90th percentile of {error_90:,.0f} m.{more}"
    )
    yield from wrap(" ".join((utility, *guarantee)), 110)


@check_arguments
def add_device(path: str | Path, user: str, url: str | None = None) -> list[str]:
    """Add a device of a user to a relay's file, and return the settings of its apps.

    A user without a page gets access to one, too.

    Parameters
    ----------
    path : str or Path
        TOML file of the relay.
    user : str
        User of the device.
    url : str, optional
        Address at which phones reach the relay. Defaults to `url` of the file, otherwise to `listen`.

    Returns
    -------
    list of str
        Lines to print.

    Raises
    ------
    ConfigurationError
        If the file cannot be changed, or the name is invalid.
    """
    _check_name(user, "USER")
    keys = read_keys(Path(path), GUIDE)
    address = _find_address(keys, Path(path), url)
    token = generate_token()
    config = RelayConfig.from_keys(keys, Path(path))
    if is_server(config.store):
        lines = [*describe_app_settings(user, token, address), *_describe_reach(address, Path(path))]
        with SessionStore(config.store) as store:
            table = AccessTable(store)
            table.add("device", user, hash_token(token))
            if not table.list_tokens("page", user) and user not in [page.user for page in config.pages]:
                page_token = generate_token()
                table.add("page", user, hash_token(page_token))
                lines = [_describe_page(user, page_token, address), *lines]
        return [_IN_DATABASE, "", *lines]
    text = Path(path).read_text(encoding="utf-8").rstrip()
    text += "\n" + _format_entry("device", {"user": user, "token": hash_token(token)})
    lines = [*describe_app_settings(user, token, address), *_describe_reach(address, Path(path))]
    if not any(page.get("user") == user for page in keys.get("page", ())):
        page_token = generate_token()
        text += _format_entry("page", {"user": user, "token": hash_token(page_token)})
        lines = [_describe_page(user, page_token, address), *lines]
    _rewrite_file(Path(path), text)
    return [_describe_change("Added to", path), "", *lines]


@check_arguments
def rotate_token(
    path: str | Path, user: str, number: PositiveInt | None = None, url: str | None = None, page: bool = False
) -> list[str]:
    """Replace the token of a user's device or page in a relay's file or database.

    The old token of a file is invalid after the next reload, and logins with it end.

    Parameters
    ----------
    path : str or Path
        TOML file of the relay.
    user : str
        The user.
    number : int, optional
        Index of the device among the user's devices, from 1: those in the file, then those in the database. None means
        the only one.
    url : str, optional
        Address at which phones reach the relay. Defaults to `url` of the file, otherwise to `listen`.
    page : bool
        Whether the token of the user's page is replaced, or added if there is none. Defaults to that of a device.

    Returns
    -------
    list of str
        Lines to print.

    Raises
    ------
    ConfigurationError
        If there is no such device or page, or the file cannot be changed.
    """
    keys = read_keys(Path(path), GUIDE)
    address = _find_address(keys, Path(path), url)
    reach = _describe_reach(address, Path(path))
    kind: Literal["device", "page"] = "page" if page else "device"
    tokens = [str(entry["token"]) for entry in keys.get(kind, ()) if entry["user"] == user]
    config = RelayConfig.from_keys(keys, Path(path))
    num_stored = 0
    if tokens and is_server(config.store):
        with SessionStore(config.store) as store:
            num_stored = len(AccessTable(store).list_tokens(kind, user))
        if num_stored:
            _check_number(number, len(tokens) + num_stored, user, kind, f"{path} and the database")
    if is_server(config.store) and (not tokens or (num_stored and (number or 1) > len(tokens))):
        token = generate_token()
        stored_number = None if number is None else number - len(tokens)
        _rotate_in_database(config, user, stored_number, kind, hash_token(token))
        settings = [_describe_page(user, token, address)] if page else describe_app_settings(user, token, address)
        return [_IN_DATABASE, "", *settings, *reach]
    if not tokens and page and number is None:
        token = generate_token()
        text = Path(path).read_text(encoding="utf-8").rstrip() + "\n"
        _rewrite_file(Path(path), text + _format_entry("page", {"user": user, "token": hash_token(token)}))
        message = _describe_change("Added to", path)
        return [message, "", _describe_page(user, token, address), *reach]
    _check_number(number, len(tokens), user, kind, str(path))
    token = generate_token()
    old = tokens[(number or 1) - 1]
    text = Path(path).read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise ConfigurationError(f"{path}: the token must occur exactly once in the file; edit the file by hand")
    _rewrite_file(Path(path), text.replace(old, hash_token(token)))
    message = _describe_change("Changed in", path)
    settings = [_describe_page(user, token, address)] if page else describe_app_settings(user, token, address)
    return [message, "", *settings, *reach]


@check_arguments
def add_recipient(path: str | Path, name: str, kind: str, url: str, keys: Mapping[str, Any] | None = None) -> list[str]:
    """Add a recipient to a relay's file, or to its database if the store is PostgreSQL.

    Parameters
    ----------
    path : str or Path
        TOML file of the relay.
    name, kind, url : str
        Name, message format and address of the recipient, see `dphmm.serve.config.Recipient`.
    keys : mapping, optional
        Further keys of the recipient, such as ``precision``. Values of headers are
        ``env:DPHMM_RECIPIENT_NAME``.

    Returns
    -------
    list of str
        Lines to print.

    Raises
    ------
    ConfigurationError
        If a value is invalid, the name is used already, or the file cannot be changed.
    """
    config = RelayConfig.from_keys(read_keys(Path(path), GUIDE), Path(path))
    entry = {**(keys or {}), "name": name, "kind": kind, "url": url}
    recipient = StoredRecipient.from_keys(entry)
    if recipient.name in [other.name for other in config.recipients]:
        raise ConfigurationError(f"recipient {name!r} is in {path} already; change it there, or use another name")
    if is_server(config.store):
        with SessionStore(config.store) as store:
            table = AccessTable(store)
            access = Access(config)
            access.refresh(table)
            for user in recipient.users or ():
                if user not in access.users:
                    raise ConfigurationError(
                        f"users of recipient {name!r} must have a device, got {user!r}; see dphmm serve add-device"
                    )
            table.add_recipient(recipient)
        return [_IN_DATABASE]
    text = Path(path).read_text(encoding="utf-8").rstrip() + "\n"
    _rewrite_file(Path(path), text + _format_entry("recipient", entry))
    return [_describe_change("Added to", path)]


@check_arguments
def pause_recipient(path: str | Path, name: str, paused: bool = True) -> list[str]:
    """Pause a recipient in a relay's database until further notice, or end its pause.

    Parameters
    ----------
    path : str or Path
        TOML file of the relay.
    name : str
        Name of the recipient.
    paused : bool
        Whether it is paused.

    Returns
    -------
    list of str
        Lines to print.

    Raises
    ------
    ConfigurationError
        If the database contains no such recipient.
    """
    with _open_access(path, name) as table:
        table.pause_recipient(name, paused)
    return [_IN_DATABASE]


@check_arguments
def remove_recipient(path: str | Path, name: str) -> list[str]:
    """Remove a recipient from a relay's database.

    Parameters
    ----------
    path : str or Path
        TOML file of the relay.
    name : str
        Name of the recipient.

    Returns
    -------
    list of str
        Lines to print.

    Raises
    ------
    ConfigurationError
        If the database contains no such recipient.
    """
    with _open_access(path, name) as table:
        table.remove_recipient(name)
    return [_IN_DATABASE]


@check_arguments
def list_recipients(path: str | Path) -> list[dict[str, Any]]:
    """List the recipients of a relay's file and database, without secrets.

    Parameters
    ----------
    path : str or Path
        TOML file of the relay.

    Returns
    -------
    list of dict
        Name, kind, host, users (None for all), whether it is paused, and where it is defined: ``file`` or ``database``.
        The rest of an address can be secret.

    Raises
    ------
    DphmmError
        If the file or the database cannot be used.
    """
    config = RelayConfig.read(Path(path))
    access = Access(config)
    if is_server(config.store):
        with SessionStore(config.store) as store:
            access.refresh(AccessTable(store))
    return [
        {
            "name": recipient.name,
            "kind": recipient.kind,
            "host": urlsplit(recipient.url).hostname,
            "users": None if recipient.users is None else list(recipient.users),
            "paused": recipient.paused,
            "defined_in": "database" if isinstance(recipient, StoredRecipient) else "file",
        }
        for recipient in access.recipients
    ]


@contextmanager
def _open_access(path: str | Path, name: str) -> Iterator[AccessTable]:
    """Open the database for a change of a recipient, which must not be in the file."""
    config = RelayConfig.read(Path(path))
    if name in [recipient.name for recipient in config.recipients] or not is_server(config.store):
        raise ConfigurationError(
            f"the recipient must be in the database, got {name!r}: change {path}, then run dphmm serve "
            f"reload {path} (under systemd, restart it)"
        )
    with _open_existing_store(config) as store:
        yield AccessTable(store)


@check_arguments
def prefer_device(
    path: str | Path, user: str, number: NonNegativeInt | None = None, mqtt_device: str | None = None
) -> list[str]:
    """Prefer a device of a user in a relay's database, or none.

    Parameters
    ----------
    path : str or Path
        TOML file of the relay.
    user : str
        The user.
    number : int, optional
        Index of the device among the user's devices in the database, from 1; 0 for none. None means the only one.
    mqtt_device : str, optional
        Third level of the topics at which the device posts at a broker.

    Returns
    -------
    list of str
        Lines to print.

    Raises
    ------
    ConfigurationError
        If there is no such device, or the name is invalid.
    """
    config = RelayConfig.read(Path(path))
    devices = [device for device in config.devices if device.user == user]
    in_file = f"preferred devices of {user!r} are those of {path}; change preferred there"
    if not is_server(config.store) or any(device.preferred for device in devices):
        raise ConfigurationError(in_file)
    if number == 0 and mqtt_device is not None:
        raise ConfigurationError(f"MQTT_DEVICE cannot be combined with --number 0, got {mqtt_device!r}")
    if mqtt_device is not None:
        _check_name(mqtt_device, "MQTT_DEVICE")
    with SessionStore(config.store) as store:
        table = AccessTable(store)
        tokens = list(table.list_tokens("device", user))
        if devices and not tokens:
            raise ConfigurationError(in_file)
        digest = None if number == 0 and tokens else _select_token(tokens, user, number, "device")
        table.prefer(user, digest, mqtt_device)
    return [_IN_DATABASE]


def _select_token(tokens: Sequence[str], user: str, number: int | None, kind: str) -> str:
    """Return the digest of the device or page that a number selects in the database."""
    _check_number(number, len(tokens), user, kind, "the database")
    return tokens[(number or 1) - 1]


def _check_number(number: int | None, count: int, user: str, kind: str, where: str) -> None:
    """Refuse an index that selects none of a user's devices or pages.

    Without an index there must be one only.
    """
    if count == 0:
        raise ConfigurationError(f"USER must have a {kind} in {where}, got {user!r} with 0 {kind}s")
    if not 1 <= (number or 1) <= count or (number is None and count > 1):
        value = ", which is missing" if number is None else f", got {number}"
        raise ConfigurationError(f"--number must select one of the {count} {kind}s of {user!r} in {where}{value}")


def _check_name(name: str, parameter: str) -> None:
    """Refuse a name that a relay's file could not contain."""
    try:
        check_name(name)
    except ValueError as problem:
        raise ConfigurationError(f"{parameter} {problem}") from None


def _rotate_in_database(
    config: RelayConfig, user: str, number: int | None, kind: Literal["device", "page"], digest: str
) -> None:
    """Replace the token of a device or page in a relay's database, or add that of a page."""
    with SessionStore(config.store) as store:
        table = AccessTable(store)
        tokens = list(table.list_tokens(kind, user))
        has_device = user in config.users or table.list_tokens("device", user)
        if not tokens and kind == "page" and number is None and has_device:
            table.add("page", user, digest)
            return
        table.replace(_select_token(tokens, user, number, kind), digest)


_IN_DATABASE = "Changed in the database. Running relays apply it within a second."


def _find_address(keys: Mapping[str, Any], path: Path, url: str | None = None) -> str:
    """Return `url`, or else the address in a relay's file, or else that of `listen`."""
    config = RelayConfig.from_keys({**keys, **({} if url is None else {"url": url})}, path)
    host, port = config.address
    return (config.url or f"http://{f'[{host}]' if ':' in host else host}:{port}").rstrip("/")


def _is_local(url: str) -> bool:
    """Return whether an address is valid on one machine only, such as localhost or 0.0.0.0."""
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def _is_in_local_network(url: str) -> bool:
    """Return whether an address is valid in one network only, such as 192.168.1.5."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith((".local", ".lan", ".home.arpa", ".internal"))


def _describe_missing_recipients(path: Path) -> Iterator[str]:
    """Describe how to add a recipient to a relay without one, in lines."""
    yield from wrap(
        "The relay has no recipient yet: estimates appear only on the pages of the users. To send them to others, add "
        f"tables [[recipient]] to {path} (docs/how-to/serve.md), or use --recipient NAME:KIND:URL with --init, such as "
        "family:owntracks:https://recorder.example/pub.",
        110,
    )
    yield ""


def _describe_change(verb: str, path: str | Path) -> str:
    """Describe a change of a relay's file, and how a running relay applies it."""
    # Under systemd the relay reads a copy of the file, which is made when it starts.
    return f"{verb} {path}. To apply it to a running relay: dphmm serve reload {path} (under systemd, restart it)"


def _describe_reach(url: str, path: Path) -> Iterator[str]:
    """Describe which phones cannot reach a relay at its address and the fix, in lines."""
    if _is_in_local_network(url) and not _is_local(url):
        yield from wrap(
            f"Phones can reach {url} only within its network, such as a home's Wi-Fi or a VPN. Elsewhere they keep "
            "their locations, if the app supports that, and post them on return.",
            110,
        )
        yield ""
    if _is_local(url):
        yield from wrap(
            f"Phones cannot reach {url}: it is an address of this machine only. Make the relay reachable over TLS "
            "(docs/how-to/serve_running.md), set url in the file to its address, such as url = "
            f"\"https://relay.example\" above the first table, and run 'dphmm serve rotate {path} USER' for settings "
            "with this address and a QR code.",
            110,
        )
        yield ""


def _describe_page(user: str, token: str, url: str) -> str:
    """Describe how to open a user's page in one line."""
    return f"  {user:<16} {url}/ with the page token {token}"


def _format_entry(name: str, values: Mapping[str, Any]) -> str:
    """Format an entry of an array of tables as TOML that can be appended to a file."""
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    lines = [tomli_w.dumps({key: value for key, value in values.items() if key not in tables})]
    # Dotted keys, because a table in an entry would need the name of the array.
    lines += [f"{key}.{tomli_w.dumps({part: value})}" for key, table in tables.items() for part, value in table.items()]
    return f"\n[[{name}]]\n{''.join(lines)}"


def _rewrite_file(path: Path, text: str) -> None:
    """Atomically replace a relay's file, if the new text is valid."""
    read_keys(path, GUIDE)
    try:
        keys = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise ConfigurationError(
            f"{path} must list devices, pages and recipients in tables such as [[device]]; edit the file by hand"
        ) from None
    RelayConfig.from_keys(keys, path)
    write_text(path, text, overwrite=True, private=True)


def _open_existing_store(config: RelayConfig) -> SessionStore:
    """Open a relay's store, and refuse one that the relay has not created yet."""
    if not is_server(config.store) and not Path(config.store).exists():
        raise DataFileError(config.store, "must exist; the relay creates it at its first start")
    SessionStore(config.store, readonly=True).close()
    return SessionStore(config.store)


@check_arguments
def prune_relay(path: str | Path, older_seconds: NonNegativeNumber) -> list[str]:
    """Remove old release records of a relay. Settings and epsilon spent are kept.

    Parameters
    ----------
    path : str or Path
        TOML file of the relay, which may be running.
    older_seconds : float
        Minimum age of the timesteps of which records are removed. Records that limits and schedules need are kept.

    Returns
    -------
    list of str
        Lines to print, one for each user.

    Raises
    ------
    ConfigurationError
        If the relay has event caps, which concern all releases together.
    DphmmError
        If the file, the model or the store cannot be used.
    """
    config = RelayConfig.read(Path(path))
    step = load_model(config.model).step
    lines = []
    with _open_existing_store(config) as store:
        for name in store.names():
            stored = store.session(name)
            assert stored is not None, "names() lists existing sessions"
            num_removed = store.prune(stored, int((time.time() - older_seconds) // step), step)
            num_kept = store.progress(stored.number).count - num_removed
            lines.append(f"{name}: {num_kept} releases with a record, {num_removed} earlier ones without")
    return lines or ["no release yet"]


@check_arguments
def confirm_clock(path: str | Path) -> list[str]:
    """Confirm this machine's clock after a relay was off for more than 30 days.

    Parameters
    ----------
    path : str or Path
        TOML file of the relay, which may be running.

    Returns
    -------
    list of str
        Lines to print.

    Raises
    ------
    DphmmError
        If the file or the store cannot be used.
    """
    with _open_existing_store(RelayConfig.read(Path(path))) as store:
        store.keep_clock(get_current_second())
    return [f"{iso_time(np.datetime64('now', 'us'))} is confirmed as the present time."]


def describe_app_settings(user: str, token: str, url: str) -> Iterator[str]:
    """Describe the settings of a user's apps in lines, with a QR code for phones.

    Parameters
    ----------
    user, token : str
        The user and the token of the device.
    url : str
        Address at which phones reach the relay.

    Yields
    ------
    str
        Lines to print. The last ones are the QR code for OwnTracks. There is none for an address of one machine only.
    """
    url = url.rstrip("/")
    yield f"{user}"
    yield f"  OwnTracks        mode HTTP, URL {url}/owntracks, user {user}, password {token}"
    yield f"  Overland         receiver {url}/overland, access token {token}"
    yield f"  Traccar Client   server URL {url}/traccar, device identifier {token}"
    yield f"  GPSLogger        custom URL {url}/gpslogger, method POST, header 'Authorization: Bearer {token}',"
    yield "                   body lat=%LAT&lon=%LON&timestamp=%TIMESTAMP"
    yield f"  Home Assistant   webhook {url}/home-assistant/{token}"
    yield f"  other apps       POST {url}/fix with 'Authorization: Bearer {token}'"
    if _is_local(url):
        return
    code = io.StringIO()
    import_library("segno", "serve").make(make_owntracks_link(user, token, url), error="l").terminal(
        out=code, compact=True
    )
    yield "  QR code for OwnTracks:"
    yield from (f"  {line}" for line in code.getvalue().splitlines())


def make_owntracks_link(user: str, token: str, url: str) -> str:
    """Return the link that configures OwnTracks when its QR code is scanned."""
    configuration = {
        "_type": "configuration",
        "mode": 3,
        "url": f"{url}/owntracks",
        "auth": True,
        "username": user,
        "password": token,
        "tid": user[-2:],
    }
    encoded = base64.b64encode(json.dumps(configuration).encode("utf-8")).decode("ascii")
    return f"owntracks:///config?inline={encoded}"
