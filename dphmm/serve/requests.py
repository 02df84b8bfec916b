"""Requests to the relay: their bodies and what they show to be let in; and how they are refused."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from dphmm.errors import DphmmError, InvalidInputError

_LARGEST = 1 << 20
"""The most bytes of a body: a batch of Overland has two hundred points, some hundred kilobytes."""
_BODY_TIMEOUT_S = 10.0
"""How long a body may take."""
_LOG = logging.getLogger(__name__)


async def body_of(request: Request) -> bytes:
    """The body, unless it is too large or takes too long; read once, and kept with the request.

    Parameters
    ----------
    request
        The request.

    Returns
    -------
    bytes
        At most a mebibyte.

    Raises
    ------
    HTTPException
        413 or 408 then; 400 when the body is cut off.
    """
    if hasattr(request.state, "content"):
        return bytes(request.state.content)
    if int(request.headers.get("content-length") or 0) > _LARGEST:
        raise HTTPException(413, "the body is larger than a mebibyte")
    parts, size = [], 0
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            async for part in request.stream():
                size += len(part)
                if size > _LARGEST:
                    raise HTTPException(413, "the body is larger than a mebibyte")
                parts.append(part)
    except TimeoutError:
        raise HTTPException(408, "the body takes too long") from None
    except ClientDisconnect:
        raise HTTPException(400, "the body is cut off") from None
    request.state.content = b"".join(parts)
    return bytes(request.state.content)


async def fields_of(request: Request) -> Mapping[str, str]:
    """The fields of the query, and of a form in the body."""
    fields = dict(request.query_params)
    if request.method == "POST":
        body = (await body_of(request)).decode("utf-8", "replace")
        fields |= dict(parse_qsl(body, max_num_fields=100) if body.count("&") < 100 else ())
    return fields


async def json_or_fields_of(request: Request) -> bytes | Mapping[str, str]:
    """The body where it is a JSON object, otherwise the fields of the query, and of a form in the body."""
    body = await body_of(request) if request.method == "POST" else b""
    return body if body.lstrip().startswith(b"{") else await fields_of(request)


def basic_account(request: Request) -> tuple[str, str]:
    """The name and the password of a request's basic authentication; empty where it has none."""
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        name, _, password = base64.b64decode(encoded, validate=True).decode("utf-8").partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return name, password


def bearer_token(request: Request) -> str | None:
    """The token of a bearer, in a header or in the query."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else request.query_params.get("token")


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


REFUSALS: Mapping[type[Exception] | int, Callable[[Request, Exception], Awaitable[Response]]] = {
    HTTPException: _said,
    InvalidInputError: _wrong,
    DphmmError: _later,
    Exception: _broken,
}
"""Kind of error → its answer."""
