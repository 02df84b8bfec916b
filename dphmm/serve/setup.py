"""A relay's first file: tokens for phones, and how to set up their apps."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import tomli_w

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError, need
from dphmm.jobs.models import load_model
from dphmm.release.settings import ReleaseSettings
from dphmm.serve.config import RelayConfig
from dphmm.serve.tokens import hash_token, new_token
from dphmm.tables import check_output, write_text

_DEFAULT_URL = "http://127.0.0.1:8787"


@checked
def write_relay(
    path: str | Path,
    model: str | Path | None,
    users: Sequence[str],
    policy: str = "utility:1km",
    epsilon: float = 0.5,
    url: str | None = None,
    overwrite: bool = False,
) -> list[str]:
    """Write a relay's file, and say how the people's apps are set up: the only time that their tokens are shown.

    Parameters
    ----------
    path
        The file to write, readable by its owner alone.
    model
        The model's file.
    users
        Whose phones post.
    policy, epsilon
        How their places are released.
    url
        Where phones reach the relay.
    overwrite
        Whether a file that exists may be replaced.

    Returns
    -------
    list of str
        Lines to show.

    Raises
    ------
    ConfigurationError
        When there is no model or nobody is named, or names or settings cannot be used.
    OutputError
        When the file exists.
    """
    if model is None or not users:
        raise ConfigurationError("--init needs --model FILE, and --user NAME for everybody whose phone posts")
    file, model_file = check_output(path, overwrite), Path(model)
    ReleaseSettings(policy=policy, epsilon=epsilon).engine(load_model(model_file))  # refuses what could not be served
    tokens = {user: new_token() for user in dict.fromkeys(users)}
    content = {
        "model": os.path.relpath(model_file.resolve(), file.resolve().parent),
        "store": "people.db",
        "listen": "127.0.0.1:8787",
        "release": {"policy": policy, "epsilon": epsilon},
        "device": [{"user": user, "token": hash_token(token)} for user, token in tokens.items()],
    }
    RelayConfig.of(content, file)
    write_text(file, tomli_w.dumps(content), overwrite, private=True)
    base = (url or _DEFAULT_URL).rstrip("/")
    return [
        f"Written: {file}. It holds digests of the tokens; the tokens themselves are shown here, and nowhere again.",
        *(line for user, token in tokens.items() for line in ("", *app_settings(user, token, base))),
        "",
        f"Run it: dphmm serve {file}",
        f"Then see at {base}/ where recipients believe people to be; any of a person's tokens opens their page.",
    ]


def app_settings(user: str, token: str, url: str) -> Iterator[str]:
    """How somebody's apps are set up, in lines, with a code to scan for OwnTracks."""
    yield f"{user}"
    yield f"  OwnTracks        mode HTTP, URL {url}/owntracks, user {user}, password {token}"
    yield f"  Overland         receiver {url}/overland, access token {token}"
    yield f"  Traccar Client   server {url}/osmand (or {url}/traccar), device identifier {token}"
    yield f"  GPSLogger        custom URL {url}/gpslogger?token={token}&lat=%LAT&lon=%LON&timestamp=%TIMESTAMP"
    yield f"  Home Assistant   webhook {url}/home-assistant/{token}"
    yield f"  anything else    POST {url}/fix with 'Authorization: Bearer {token}'"
    yield from _code(owntracks_link(user, token, url))


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


def _code(link: str) -> list[str]:
    shown = io.StringIO()
    need("segno", "serve").make(link, error="l").terminal(out=shown, compact=True)
    return ["  OwnTracks, to scan:", *(f"  {line}" for line in shown.getvalue().splitlines())]
