"""The relay over HTTP: paths, who may post, how much, and what is answered. No place is ever logged or answered."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from time import perf_counter
from urllib.parse import parse_qsl

import httpx
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

import dphmm
from dphmm.errors import DphmmError, InvalidInputError
from dphmm.serve import gpslogger, home_assistant, mqtt, overland, owntracks, plain, traccar
from dphmm.serve.config import RelayConfig
from dphmm.serve.fix import Received
from dphmm.serve.keeper import Keeper
from dphmm.serve.meters import Meters
from dphmm.serve.outbox import Outbox
from dphmm.serve.senders import sender_to
from dphmm.serve.tokens import Doors

_LARGEST = 1 << 20
"""A body holds so many bytes at most: a batch of Overland has two hundred points, some hundred kilobytes."""
_PATIENCE_S = 10.0
"""A body takes so long at most."""
_LOG = logging.getLogger(__name__)

Reader = Callable[[bytes], Received]
Handler = Callable[["Relay", Request], Awaitable[Response]]


class Relay:
    """What the paths share.

    Parameters
    ----------
    config
        The relay's file.
    keeper
        Who has people's sessions.
    """

    def __init__(self, config: RelayConfig, keeper: Keeper) -> None:
        self.config, self.keeper = config, keeper
        self.doors = Doors({one.token: one.user for one in config.devices})
        self.meters = Meters()
        self.outbox: Outbox | None = None

    async def take(self, user: str, received: Received) -> None:
        """Release what a message holds, and wake those who are to be told."""
        outcome = await self.keeper.take(user, received)
        self.meters.add(outcome)
        if self.outbox is not None and outcome.released:
            self.outbox.wake(user)

    @asynccontextmanager
    async def telling(self) -> AsyncIterator[None]:
        """Tell recipients for as long as this is open."""
        async with httpx.AsyncClient(follow_redirects=False) as client:
            ways = {one.name: (one, sender_to(one, client)) for one in self.config.recipients}
            self.outbox = Outbox(self.keeper, ways, self.config.users)
            self.outbox.start()
            heard = self.config.mqtt
            users = frozenset(self.config.users)
            listening = None if heard is None else asyncio.create_task(mqtt.listen(heard, users, self.take))
            try:
                yield
            finally:
                if listening is not None:
                    listening.cancel()
                    with suppress(asyncio.CancelledError):
                        await listening
                await self.outbox.stop()


def make_app(config: RelayConfig) -> Starlette:
    """The relay of a file, as an ASGI application.

    Raises
    ------
    DphmmError
        When the model, the policy or the store cannot be used.
    """
    relay = Relay(config, Keeper(config))

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        try:
            async with relay.telling():
                yield
        finally:
            await asyncio.to_thread(relay.keeper.close)

    def post(path: str, handler: Handler, *methods: str) -> Route:
        async def endpoint(request: Request) -> Response:
            started = perf_counter()
            try:
                return await handler(relay, request)
            finally:
                relay.meters.took(path, perf_counter() - started)

        return Route(path, endpoint, methods=list(methods or ("POST",)))

    routes = [
        post("/owntracks", _owntracks),
        post("/overland", _with_bearer(overland.read, overland.ANSWER)),
        post("/osmand", _osmand, "GET", "POST"),
        post("/traccar", _traccar),
        post("/gpslogger", _gpslogger, "GET", "POST"),
        post("/home-assistant/{token}", _home_assistant),
        post("/fix", _with_bearer(plain.read, plain.ANSWER)),
        Route("/health", _health),
        Route("/metrics", _metrics(relay)),
        Route("/openapi.json", _openapi),
    ]
    return Starlette(routes=routes, lifespan=life, exception_handlers=_REFUSALS)


# ---- what phones post ------------------------------------------------------------------------------------------------


async def _owntracks(relay: Relay, request: Request) -> Response:
    user = relay.doors.user(_password(request))
    claimed = request.headers.get("x-limit-u") or request.query_params.get("u") or _username(request)
    if user is None or claimed != user:
        raise _unauthorised()
    await relay.take(user, owntracks.read(await _body(request)))
    return _json(owntracks.ANSWER)


async def _osmand(relay: Relay, request: Request) -> Response:
    fields = await _fields(request)
    user = relay.doors.user(traccar.device_of(fields))
    if user is None:
        raise HTTPException(400, "the device is unknown")
    await relay.take(user, traccar.read_fields(fields))
    return PlainTextResponse(traccar.ANSWER)


async def _traccar(relay: Relay, request: Request) -> Response:
    body = await _body(request)
    user = relay.doors.user(traccar.json_device_of(body))
    if user is None:
        raise HTTPException(404, "the device is unknown")
    await relay.take(user, traccar.read(body))
    return PlainTextResponse(traccar.ANSWER)


async def _gpslogger(relay: Relay, request: Request) -> Response:
    fields = await _fields(request)
    user = relay.doors.user(fields.get("token") or _password(request) or _bearer_token(request))
    if user is None:
        raise _unauthorised()
    await relay.take(user, gpslogger.read_fields(fields))
    return PlainTextResponse(gpslogger.ANSWER)


async def _home_assistant(relay: Relay, request: Request) -> Response:
    user = relay.doors.user(request.path_params["token"])
    if user is None:
        raise HTTPException(404, "the webhook is unknown")
    await relay.take(user, home_assistant.read(await _body(request)))
    return _json(home_assistant.ANSWER)


def _with_bearer(read: Reader, answer: str) -> Handler:
    """For apps that show their token as a bearer's, and post one body."""

    async def handler(relay: Relay, request: Request) -> Response:
        user = _bearer(relay, request)
        await relay.take(user, read(await _body(request)))
        return _json(answer)

    return handler


# ---- what people watch -----------------------------------------------------------------------------------------------


async def _health(_: Request) -> Response:
    return JSONResponse({"status": "ok", "version": dphmm.__version__})


def _metrics(relay: Relay) -> Callable[[Request], Awaitable[Response]]:
    async def metrics(_: Request) -> Response:
        return Response(relay.meters.text(relay.outbox), media_type="text/plain; version=0.0.4; charset=utf-8")

    return metrics


async def _openapi(_: Request) -> Response:
    from dphmm.serve.openapi import DESCRIPTION

    return JSONResponse(DESCRIPTION)


# ---- requests --------------------------------------------------------------------------------------------------------


async def _body(request: Request) -> bytes:
    """The body, unless it is too large or takes too long."""
    if int(request.headers.get("content-length") or 0) > _LARGEST:
        raise HTTPException(413, "the body is larger than a mebibyte")
    parts, size = [], 0
    try:
        async with asyncio.timeout(_PATIENCE_S):
            async for part in request.stream():
                size += len(part)
                if size > _LARGEST:
                    raise HTTPException(413, "the body is larger than a mebibyte")
                parts.append(part)
    except TimeoutError:
        raise HTTPException(408, "the body takes too long") from None
    except ClientDisconnect:
        raise HTTPException(400, "the body is cut off") from None
    return b"".join(parts)


async def _fields(request: Request) -> Mapping[str, str]:
    """The fields of the query, and of a form in the body."""
    fields = dict(request.query_params)
    if request.method == "POST":
        body = (await _body(request)).decode("utf-8", "replace")
        fields |= dict(parse_qsl(body, max_num_fields=100) if body.count("&") < 100 else ())
    return fields


def _basic(request: Request) -> tuple[str, str]:
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            name, _, password = base64.b64decode(encoded, validate=True).decode("utf-8").partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return "", ""
        return name, password
    return "", ""


def _username(request: Request) -> str:
    return _basic(request)[0]


def _password(request: Request) -> str:
    return _basic(request)[1]


def _bearer_token(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else request.query_params.get("token")


def _bearer(relay: Relay, request: Request) -> str:
    user = relay.doors.user(_bearer_token(request))
    if user is None:
        raise _unauthorised()
    return user


def _unauthorised() -> HTTPException:
    return HTTPException(401, "the token is unknown", headers={"WWW-Authenticate": 'Basic realm="dphmm"'})


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")


# ---- refusals --------------------------------------------------------------------------------------------------------


async def _said(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    return JSONResponse({"error": problem.detail}, problem.status_code, headers=problem.headers)


async def _wrong(_: Request, problem: Exception) -> Response:
    return JSONResponse({"error": str(problem)}, 400)


async def _later(_: Request, problem: Exception) -> Response:
    """The store is busy or full: the phone keeps the message and sends it again."""
    _LOG.error("a message was not taken: %s", problem)
    return JSONResponse({"error": "not now; send it again"}, 503, headers={"Retry-After": "10"})


async def _broken(_: Request, problem: Exception) -> Response:
    """Something else: only its kind is logged, for what it says might hold a place."""
    _LOG.error("a message was not taken: %s", type(problem).__name__)
    return JSONResponse({"error": "not now; send it again"}, 500)


_REFUSALS: Mapping[type[Exception] | int, Callable[[Request, Exception], Awaitable[Response]]] = {
    HTTPException: _said,
    InvalidInputError: _wrong,
    DphmmError: _later,
    Exception: _broken,
}
