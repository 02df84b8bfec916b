"""Making a relay's file and changing whose phones post; what is entered in each app is shown once, and kept nowhere."""

from __future__ import annotations

import base64
import io
import json
import os
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log10
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
import tomli_w

from dphmm.arguments import checked
from dphmm.arrays import FloatArray
from dphmm.errors import ConfigurationError, need
from dphmm.facts import factor_in_words
from dphmm.jobs.models import Model, load_model
from dphmm.jobs.progress import Watch, unwatched
from dphmm.model.model import MarkovModel
from dphmm.model.path_sampling import draw_paths
from dphmm.policy.expression import policy_label
from dphmm.policy.graph import PolicyLike
from dphmm.policy.graph_text import policy_text
from dphmm.release.engine import ReleaseSettings
from dphmm.release.ledger import DAY_SECONDS
from dphmm.release.session_store import SessionStore
from dphmm.release.settings import A_DAY, Schedule
from dphmm.serve.config import EXAMPLE, RelayConfig, hash_token, new_token
from dphmm.tables import check_output, new_file, write_text
from dphmm.tables.json_toml import read_keys

_DEFAULT_URL = "http://127.0.0.1:8787"
_MONDAY = 1_709_510_400
"""A Monday at midnight, UTC."""
_SIMULATED, _STATES, _SEED = 4, 3000, 1
_LADDER = (0.5, 1.0, 2.0, 4.0)
"""Budgets of a release that are tried."""


@dataclass(frozen=True)
class Day:
    """What a schedule did on days of simulated people, who move as the model says.

    Parameters
    ----------
    settings
        How their places were released.
    errors_m
        How far each moment's estimate was from where the person was, in metres, of all people.
    spent
        What each person's day cost.
    """

    settings: ReleaseSettings
    errors_m: FloatArray
    spent: tuple[float, ...]

    @classmethod
    def simulated(cls, settings: ReleaseSettings, model: MarkovModel, watch: Watch = unwatched) -> Day:
        """A day of each of a few people, the same ones every time.

        Parameters
        ----------
        settings
            How their places are released.
        model
            The model.
        watch
            Shows how far it has come.

        Returns
        -------
        Day
            What came of it.
        """
        engine, errors, spent = settings.engine(model), [], []
        first, steps = int(_MONDAY // model.step), max(1, round(DAY_SECONDS / model.step))
        people = max(1, min(_SIMULATED, _STATES // model.size))
        paths = draw_paths(model, people, steps, first, _SEED)
        for number, path in enumerate(watch(paths, f"a day at epsilon {settings.epsilon:g}", len(paths))):
            person, cost = engine.another(np.random.default_rng(_SEED + number)), 0.0
            person.restart(first)
            for state in path.tolist():
                record = person.release(state)
                errors.append(1000 * float(np.linalg.norm(np.array(record.estimate) - model.space.points[state])))
                cost += record.epsilon
            spent.append(cost)
        return cls(settings, np.array(errors), tuple(spent))


def plan_day(
    model: MarkovModel,
    policy: str | PolicyLike,
    metres: float | None = None,
    hours: float | None = None,
    epsilon: float | None = None,
    watch: Watch = unwatched,
) -> Day:
    """A schedule for a relay, and what it does on a day of simulated people.

    Without metres no 24 hours cost more than a budget, and recipients are told as well as that allows. With metres
    recipients know where somebody is to these metres: the budget of a release is the least of a ladder with which the
    estimate is that near on average, and that of a day what the day of simulated people costs that costs most, in the
    share of the hours.

    Parameters
    ----------
    model
        The model.
    policy
        What must stay indistinguishable.
    metres
        How near recipients are to know, on average; left out, as near as the budget of a day lets them.
    hours
        With metres: for how many hours of a day, at most 24 and left out all; in the others recipients are told what
        the model says.
    epsilon
        Without metres the budget of a day, by default that of `ReleaseSettings.for_a_day`; with metres that of a
        release, by default found.
    watch
        Shows how far it has come.

    Returns
    -------
    Day
        The settings, and what they do.

    Raises
    ------
    ConfigurationError
        When the metres or hours are out of range, or hours are given without metres.
    DphmmError
        When the policy cannot be used with the model.
    """
    policy = policy_text(policy)
    if metres is None:
        if hours is not None:
            raise ConfigurationError(f"hours are {hours:g} without metres; give both, or neither for a day's budget")
        settings = ReleaseSettings.for_a_day(A_DAY if epsilon is None else epsilon, policy=policy)
        return Day.simulated(settings, model, watch)
    hours = 24.0 if hours is None else hours
    if not 0 < metres < 1e6 or not 0 < hours <= 24:
        raise ConfigurationError(f"metres are {metres:g}, hours {hours:g}; give a length, and at most 24 hours")
    aim = Schedule(target_error=metres / 1000)
    for budget in _LADDER if epsilon is None else (epsilon,):
        day = Day.simulated(ReleaseSettings(policy=policy, epsilon=budget, schedule=aim), model, watch)
        if float(day.errors_m.mean()) <= metres:
            break
    most = max(day.settings.epsilon, max(day.spent) * hours / 24)
    digits = 1 - floor(log10(most))
    schedule = replace(aim, window_epsilon=ceil(most * 10**digits) / 10**digits)
    return Day.simulated(replace(day.settings, schedule=schedule), model, watch)


@checked
def write_relay(
    path: str | Path,
    model: Model | None,
    users: Sequence[str],
    policy: str | PolicyLike = "utility:1km",
    epsilon: float | None = None,
    url: str | None = None,
    overwrite: bool = False,
    metres: float | None = None,
    hours: float | None = None,
    recipients: Sequence[str] = (),
    watch: Watch = unwatched,
) -> list[str]:
    """Write a relay's file, and say how the people's apps are set up: the only time that their tokens are shown.

    Parameters
    ----------
    path
        The file to write, readable by its owner alone.
    model
        The model's file; or a model, which is then written beside, such as one of a region alone.
    users
        Whose phones post.
    policy, epsilon, metres, hours, watch
        How their places are released: see `plan_day`.
    url
        Where phones reach the relay.
    overwrite
        Whether a file that exists may be replaced.
    recipients
        The recipients, each as ``name:kind:address``, such as ``family:owntracks:https://recorder.example/pub``.

    Returns
    -------
    list of str
        Lines to show.

    Raises
    ------
    ConfigurationError
        When there is no model or no user, or names or settings cannot be used.
    OutputError
        When the file exists.
    """
    if model is None or not users:
        raise ConfigurationError(
            "--init needs --bbox, --town or --model FILE, and --user NAME for everybody whose phone posts"
        )
    file, made = check_output(path, overwrite), model if isinstance(model, MarkovModel) else None
    model_file = check_output(file.with_suffix(".npz"), overwrite) if made is not None else Path(str(model))
    learned, tokens = load_model(model), {user: new_token() for user in dict.fromkeys(users)}
    content: dict[str, Any] = {
        "model": os.path.relpath(model_file.resolve(), file.resolve().parent),
        "store": "people.db",
        "listen": "127.0.0.1:8787",
        "device": [{"user": user, "token": hash_token(token)} for user, token in tokens.items()],
        "recipient": [dict(zip(("name", "kind", "url"), one.split(":", 2), strict=False)) for one in recipients],
    }
    RelayConfig.from_keys(content, file)  # before the work of finding a schedule
    day = plan_day(learned, policy, metres, hours, epsilon, watch)
    settings = day.settings
    assert settings.schedule is not None, "that is what was planned"
    content["release"] = {
        "policy": settings.policy,
        "epsilon": settings.epsilon,
        "schedule": settings.schedule.to_dict(),
    }
    RelayConfig.from_keys(content, file)
    if made is not None:
        with new_file(model_file, overwrite) as part:
            made.save(part)
    entries = [_entry(name, one) for name in ("device", "recipient") for one in content.pop(name)]
    write_text(file, tomli_w.dumps(content) + "".join(entries), overwrite, private=True)
    return [
        f"Written: {file}. It holds digests of the tokens; the tokens themselves are shown here, and nowhere again.",
        "",
        *_in_words(day, metres),
        *(line for user, token in tokens.items() for line in ("", *app_settings(user, token, url))),
        "",
        f"Run it: dphmm serve {file}",
        f"Then see at {(url or _DEFAULT_URL).rstrip('/')}/ where recipients believe people to be; any of a person's "
        "tokens opens their page.",
    ]


def _in_words(day: Day, metres: float | None) -> Iterator[str]:
    settings, errors = day.settings, day.errors_m
    assert settings.schedule is not None, "a day has one"
    assert settings.schedule.window_epsilon is not None, "and a budget"
    near, nine, most = errors.mean(), np.quantile(errors, 0.9), settings.schedule.window_epsilon
    missed = metres is not None and near > 1.2 * metres
    more = f"; you asked for {metres:,.0f}, and nearer needs a larger --epsilon" if missed else ""
    if metres is None:
        costs = (
            f"The releases of any 24 hours together are {factor_in_words(most)} from one path of a person as from "
            f"another that '{policy_label(settings.policy)}' joins to it throughout (epsilon {most:g}).",
            "Recipients are to know more? Give --metres.",
        )
    else:
        costs = (
            f"One release is {factor_in_words(settings.epsilon)} from one place as from another that "
            f"'{policy_label(settings.policy)}' joins to it.",
            f"A day is many releases, which cost these people epsilon {np.mean(day.spent):.3g} on average, and none of "
            f"them more than {most:g}: where somebody is for hours gets known.",
        )
    off = (
        f"On a day of {len(day.spent)} simulated people the estimate is {near:,.0f} m off on average, nine times of "
        f"ten at most {nine:,.0f} m{more}."
    )
    yield from wrap(" ".join((off, *costs)), 110)


@checked
def add_device(path: str | Path, user: str, url: str | None = None) -> list[str]:
    """Add a device of a person, a new one or one who is there, to a relay's file, and say how its apps are set up.

    Parameters
    ----------
    path
        The relay's file.
    user
        Whose phone posts.
    url
        Where phones reach the relay.

    Returns
    -------
    list of str
        Lines to show.

    Raises
    ------
    ConfigurationError
        When the file cannot be changed, or the name cannot be used.
    """
    token = new_token()
    text = Path(path).read_text(encoding="utf-8") if Path(path).is_file() else ""
    _rewrite(Path(path), text.rstrip() + "\n" + _entry("device", {"user": user, "token": hash_token(token)}))
    told = f"Added to {path}; a relay that runs is told by: dphmm serve reload {path}"
    return [told, "", *app_settings(user, token, url)]


@checked
def rotate_token(path: str | Path, user: str, number: int | None = None, url: str | None = None) -> list[str]:
    """Give a person's device a new token in a relay's file: from when it is read again, the old one opens nothing.

    Parameters
    ----------
    path
        The relay's file.
    user
        The person.
    number
        Which of the person's devices, from 1, as they stand in the file; left out, the only one.
    url
        Where phones reach the relay.

    Returns
    -------
    list of str
        Lines to show.

    Raises
    ------
    ConfigurationError
        When there is no such device, or the file cannot be changed.
    """
    keys = read_keys(Path(path), EXAMPLE)
    RelayConfig.from_keys(keys, Path(path))
    tokens = [str(one["token"]) for one in keys["device"] if one["user"] == user]
    if not 1 <= (number or len(tokens) or 2) <= len(tokens) or (number is None and len(tokens) > 1):
        raise ConfigurationError(f"{path}: {user!r} has {len(tokens)} devices; give one of them, or --number")
    token, old = new_token(), tokens[(number or 1) - 1]
    text = Path(path).read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise ConfigurationError(f"{path}: the token stands there more than once, or in parts; change it by hand")
    _rewrite(Path(path), text.replace(old, hash_token(token)))
    told = f"Changed in {path}; a relay that runs is told by: dphmm serve reload {path}"
    return [told, "", *app_settings(user, token, url)]


def _entry(name: str, values: Mapping[str, Any]) -> str:
    """An entry of an array of tables, as TOML that can follow a file's others."""
    return f"\n[[{name}]]\n{tomli_w.dumps(values)}"


def _rewrite(path: Path, text: str) -> None:
    """Replace a relay's file by a text that is one, whole or not at all."""
    read_keys(path, EXAMPLE)
    try:
        keys = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise ConfigurationError(f"{path} holds its devices in no [[device]] tables; change it by hand") from None
    RelayConfig.from_keys(keys, path)
    write_text(path, text, overwrite=True, private=True)


@checked
def prune_relay(path: str | Path, older_seconds: float) -> list[str]:
    """Remove the records of what a relay released long ago; what was promised and what it cost stays.

    Parameters
    ----------
    path
        The relay's file; it may run meanwhile.
    older_seconds
        Records of time steps that ended longer ago than this are removed, but for those that limits and schedules look
        back to.

    Returns
    -------
    list of str
        Lines to show, one for each person.

    Raises
    ------
    ConfigurationError
        With caps on events, which are kept over all releases together.
    DphmmError
        When the file, the model or the store cannot be used.
    """
    config = RelayConfig.read(Path(path))
    step, lines = load_model(config.model).step, []
    with SessionStore(config.store) as store:
        for name in store.names():
            stored = store.session(name)
            assert stored is not None, "the store has just named it"
            gone = store.prune(stored, int((time.time() - older_seconds) // step), step)
            kept = store.progress(stored.number).count - gone
            lines.append(f"{name}: {kept} releases have a record, {gone} earlier ones have none")
    return lines or ["nothing was released yet"]


def app_settings(user: str, token: str, url: str | None) -> Iterator[str]:
    """How a person's apps are set up, in lines, with a code to scan for OwnTracks.

    Parameters
    ----------
    user, token
        The person, and what the apps are to show.
    url
        Where phones reach the relay; left out, this machine.

    Yields
    ------
    str
        Lines to print; the last of them are the code.
    """
    url = (url or _DEFAULT_URL).rstrip("/")
    yield f"{user}"
    yield f"  OwnTracks        mode HTTP, URL {url}/owntracks, user {user}, password {token}"
    yield f"  Overland         receiver {url}/overland, access token {token}"
    yield f"  Traccar Client   server {url}/osmand (or {url}/traccar), device identifier {token}"
    yield f"  GPSLogger        custom URL {url}/gpslogger?token={token}&lat=%LAT&lon=%LON&timestamp=%TIMESTAMP"
    yield f"  Home Assistant   webhook {url}/home-assistant/{token}"
    yield f"  anything else    POST {url}/fix with 'Authorization: Bearer {token}'"
    code = io.StringIO()
    need("segno", "serve").make(owntracks_link(user, token, url), error="l").terminal(out=code, compact=True)
    yield "  OwnTracks, to scan:"
    yield from (f"  {line}" for line in code.getvalue().splitlines())


def owntracks_link(user: str, token: str, url: str) -> str:
    """A link that sets OwnTracks up when its code is scanned."""
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
