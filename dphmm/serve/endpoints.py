"""The relay over HTTP: paths, who may post, how much, and what is answered; its metrics and OpenAPI description.

No place is ever logged or answered, and no metric follows from a true place but by way of what was released of it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import dphmm
from dphmm.serve import page
from dphmm.serve.broker import Listener
from dphmm.serve.config import RelayConfig, Tokens
from dphmm.serve.delivery import Deliveries, Outbox, TruePlaces
from dphmm.serve.message_formats import (
    Received,
    json_object,
    read_gpslogger,
    read_home_assistant,
    read_osmand,
    read_overland,
    read_owntracks,
    read_plain,
    read_traccar,
)
from dphmm.serve.requests import REFUSALS, basic_account, bearer_token, body_of, fields_of, json_or_fields_of
from dphmm.serve.senders import sender_to
from dphmm.serve.sessions import Outcome, Sessions

_READY_TIMEOUT_S = 4.0


class Metrics:
    """Counts since the start: fixes by what became of them, and requests.

    None follows from a true place but by way of what was released of it. How long requests take would: where nothing
    is released of a place, less is computed.
    """

    def __init__(self) -> None:
        self._fixes = Outcome()
        self._requests: Counter[str] = Counter()

    def add(self, outcome: Outcome) -> None:
        """Count the fixes of a message."""
        self._fixes.add(outcome)

    def asked(self, path: str) -> None:
        """Count a request."""
        self._requests[path] += 1

    def text(self, deliveries: Mapping[str, Deliveries], ages: Mapping[str, float]) -> str:
        """Everything, in Prometheus' text format; recipients' counts and the ages of what waits are by name."""
        lines = ["# HELP dphmm_fixes_total Fixes by what became of them.", "# TYPE dphmm_fixes_total counter"]
        lines += [
            f'dphmm_fixes_total{{outcome="{one.name}"}} {getattr(self._fixes, one.name)}' for one in fields(Outcome)
        ]
        name = "dphmm_requests_total"
        lines += [f"# HELP {name} Messages from phones.", f"# TYPE {name} counter"]
        lines += [f'{name}{{path="{path}"}} {count}' for path, count in self._requests.items()]
        name = "dphmm_messages_total"
        lines += [f"# HELP {name} Messages to recipients.", f"# TYPE {name} counter"]
        for recipient, told in deliveries.items():
            for one in fields(told):
                lines.append(
                    f'{name}{{recipient="{_label(recipient)}",outcome="{one.name}"}} {getattr(told, one.name)}'
                )
        name = "dphmm_oldest_message_seconds"
        lines += [f"# HELP {name} How long the oldest message to a recipient waits.", f"# TYPE {name} gauge"]
        lines += [f'{name}{{recipient="{_label(recipient)}"}} {age:.1f}' for recipient, age in ages.items()]
        return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    """A text between the quotation marks of Prometheus' format."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def openapi() -> dict[str, Any]:
    """The description of the plain endpoint, an OpenAPI document."""
    document: dict[str, Any] = json.loads(Path(__file__).with_name("openapi.json").read_text(encoding="utf-8"))
    document["info"]["version"] = dphmm.__version__
    return document


# ---- what phones post ------------------------------------------------------------------------------------------------


async def _basic_user(tokens: Tokens, request: Request) -> str | None:
    name, password = basic_account(request)
    claimed = request.headers.get("x-limit-u") or request.query_params.get("u") or name
    user = tokens.user(password)
    return user if claimed == user else None


async def _bearer_user(tokens: Tokens, request: Request) -> str | None:
    return tokens.user(bearer_token(request))


async def _osmand_user(tokens: Tokens, request: Request) -> str | None:
    found = await json_or_fields_of(request)
    if isinstance(found, bytes):
        return await _traccar_user(tokens, request)
    return tokens.user(found.get("id") or found.get("deviceid"))


async def _traccar_user(tokens: Tokens, request: Request) -> str | None:
    device = json_object(await body_of(request)).get("device_id")
    return tokens.user(device) if isinstance(device, str) else None


async def _gpslogger_user(tokens: Tokens, request: Request) -> str | None:
    shown = (await fields_of(request)).get("token") or basic_account(request)[1] or bearer_token(request)
    return tokens.user(shown)


async def _webhook_user(tokens: Tokens, request: Request) -> str | None:
    return tokens.user(request.path_params["token"])


Refusal = tuple[int, str] | tuple[int, str, Mapping[str, str]]
_UNAUTHORISED: Refusal = (401, "the token is unknown", {"WWW-Authenticate": 'Basic realm="dphmm"'})
_NO_DEVICE = "the device is unknown"


@dataclass(frozen=True)
class _App:
    """How an app posts: the path, who shows the token and how, and what is read, answered and refused."""

    path: str
    user: Callable[[Tokens, Request], Awaitable[str | None]]
    content: Callable[[Request], Awaitable[Any]]
    read: Callable[[Any], Received]
    answer: str
    refusal: Refusal = _UNAUTHORISED
    methods: tuple[str, ...] = ("POST",)

    def response(self) -> Response:
        """The answer to a message that was taken."""
        return Response(self.answer, media_type="application/json" if self.answer else "text/plain")


_BOTH = ("GET", "POST")
_APPS = (
    _App("/owntracks", _basic_user, body_of, read_owntracks, "[]"),  # a list of messages for the app
    _App("/overland", _bearer_user, body_of, read_overland, '{"result":"ok"}'),
    _App("/osmand", _osmand_user, json_or_fields_of, read_osmand, "", (400, _NO_DEVICE), _BOTH),
    _App("/traccar", _traccar_user, body_of, read_traccar, "", (404, _NO_DEVICE)),
    _App("/gpslogger", _gpslogger_user, fields_of, read_gpslogger, "", methods=_BOTH),
    _App(
        "/home-assistant/{token}",
        _webhook_user,
        body_of,
        read_home_assistant,
        "{}",
        (404, "the webhook is unknown"),
    ),
    _App("/fix", _bearer_user, body_of, read_plain, '{"result":"ok"}'),
)


class Relay:
    """What the paths share.

    Parameters
    ----------
    config
        The relay's file.
    sessions
        People's sessions.
    """

    def __init__(self, config: RelayConfig, sessions: Sessions) -> None:
        self.config, self.sessions = config, sessions
        self.tokens = Tokens({one.token: one.user for one in config.devices})
        self.metrics = Metrics()
        self.outbox: Outbox | None = None
        self.listener: Listener | None = None
        self.true_places: list[TruePlaces] = []

    async def take(self, user: str, received: Received) -> None:
        """Release what a message holds, and wake those who are to be told."""
        outcome = await self.sessions.take(user, received)
        self.metrics.add(outcome)
        if self.outbox is not None and outcome.released:
            self.outbox.wake(user)
        for one in self.true_places:
            one.take(user, received.fixes)

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Send to recipients for as long as this is open."""
        async with httpx.AsyncClient(follow_redirects=False) as client:
            present = [one for one in self.config.recipients if not one.paused]
            senders = {one.name: (one, sender_to(one, client)) for one in present}
            told = {one.name: senders.pop(one.name) for one in present if not one.true_places_unprotected}
            self.outbox = Outbox(self.sessions, told, self.config.users)
            self.outbox.start()
            for recipient, sender in senders.values():
                self.true_places.append(TruePlaces(recipient, sender, partial(self.sessions.told_from, recipient)))
                self.true_places[-1].start()
            if self.config.mqtt is not None:
                users, leads = frozenset(self.config.users), self.sessions.leads
                self.listener = Listener(self.config.mqtt, self.config.store, users, self.take, leads)
                self.listener.start()
            try:
                yield
            finally:
                if self.listener is not None:
                    await self.listener.stop()
                for one in self.true_places:
                    await one.stop()
                await self.outbox.stop()

    def route(self, app: _App) -> Route:
        """The path at which an app posts."""

        async def endpoint(request: Request) -> Response:
            self.metrics.asked(app.path)
            user = await app.user(self.tokens, request)
            if user is None:
                raise HTTPException(*app.refusal)
            await self.take(user, app.read(await app.content(request)))
            return app.response()

        return Route(app.path, endpoint, methods=list(app.methods))

    async def health(self, _: Request) -> Response:
        """That the relay runs, whether or not it can do anything."""
        return JSONResponse({"status": "ok", "version": dphmm.__version__})

    async def ready(self, _: Request) -> Response:
        """Whether the store and the broker are there, and for how long the oldest message to a recipient waits."""
        store = False
        with suppress(TimeoutError):
            async with asyncio.timeout(_READY_TIMEOUT_S):
                store = await self.sessions.is_there()
        broker = None if self.listener is None else self.listener.is_connected
        waits = {} if self.outbox is None else self.outbox.ages()
        said = {"store": store, "broker": broker, "oldest_message_s": round(max(waits.values(), default=0.0), 1)}
        return JSONResponse(said, 200 if store and broker is not False else 503)

    async def measured(self, _: Request) -> Response:
        """The metrics."""
        deliveries, ages = ({}, {}) if self.outbox is None else (self.outbox.counts, self.outbox.ages())
        text = self.metrics.text(deliveries, ages)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def described(self, _: Request) -> Response:
        """The OpenAPI document."""
        return JSONResponse(openapi())


def make_app(config: RelayConfig, accept_changes: bool = False) -> Starlette:
    """The relay of a file, as an ASGI application.

    Parameters
    ----------
    config, accept_changes
        As for `Sessions`.

    Returns
    -------
    starlette.applications.Starlette
        The application; its sessions are open.

    Raises
    ------
    DphmmError
        When the model, the policy or the store cannot be used.
    """
    relay = Relay(config, Sessions(config, accept_changes))

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        try:
            async with relay.sending():
                yield
        finally:
            await asyncio.to_thread(relay.sessions.close)

    routes = [
        *map(relay.route, _APPS),
        Route("/health", relay.health),
        Route("/ready", relay.ready),
        Route("/metrics", relay.measured),
        Route("/openapi.json", relay.described),
        *page.routes(config, relay.sessions, relay.tokens),
    ]
    headers = Middleware(page.SecurityHeaders, tiles=config.tiles)
    return Starlette(routes=routes, lifespan=life, exception_handlers=REFUSALS, middleware=[headers])
