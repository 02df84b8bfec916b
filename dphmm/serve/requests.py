"""Requests to the relay: reading bodies, and the answers to errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from dphmm.errors import DphmmError, InvalidInputError
from dphmm.tables.json_toml import parse_json

# A batch of Overland has two hundred points, some hundred kilobytes.
_MAX_BODY_BYTES = 1 << 20
_BODY_TIMEOUT_S = 10.0
_LOG = logging.getLogger(__name__)


async def read_body(request: Request) -> bytes:
    """Read the body of a request once, and cache it on the request.

    Parameters
    ----------
    request : Request
        The request.

    Returns
    -------
    bytes
        At most one mebibyte.

    Raises
    ------
    HTTPException
        413 if the body is too large, 408 if it takes too long, 400 if it is cut off.
    """
    if hasattr(request.state, "content"):
        return bytes(request.state.content)
    if int(request.headers.get("content-length") or 0) > _MAX_BODY_BYTES:
        raise HTTPException(413, "the body must be at most one mebibyte")
    parts = []
    size = 0
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            async for part in request.stream():
                size += len(part)
                if size > _MAX_BODY_BYTES:
                    raise HTTPException(413, "the body must be at most one mebibyte")
                parts.append(part)
    except TimeoutError:
        raise HTTPException(408, "the body was not received in time") from None
    except ClientDisconnect:
        raise HTTPException(400, "the body was cut off") from None
    request.state.content = b"".join(parts)
    return bytes(request.state.content)


async def read_object(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body.

    Its content type is required: a page of another site cannot send it without permission.
    """
    try:
        body = parse_json(await read_body(request))
    except ValueError:
        body = None
    if not isinstance(body, dict) or request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(400, "the body must be a JSON object")
    return body


async def read_fields(request: Request) -> Mapping[str, str]:
    """Return the fields of the query and of a form in the body."""
    fields = dict(request.query_params)
    if request.method == "POST":
        body = (await read_body(request)).decode("utf-8", "replace")
        fields |= dict(parse_qsl(body, max_num_fields=100) if body.count("&") < 100 else ())
    return fields


async def read_json_or_fields(request: Request) -> bytes | Mapping[str, str]:
    """Return the body if it is a JSON object, otherwise the fields of query and form."""
    body = await read_body(request) if request.method == "POST" else b""
    return body if body.lstrip().startswith(b"{") else await read_fields(request)


# ---- answers to errors -----------------------------------------------------------------------------------------------


async def _answer_http_exception(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    return JSONResponse({"error": problem.detail}, problem.status_code, headers=problem.headers)


async def _answer_invalid_input(_: Request, problem: Exception) -> Response:
    return JSONResponse({"error": str(problem)}, 400)


async def _answer_unavailable(_: Request, problem: Exception) -> Response:
    """Answer 503 if the store is busy or full. The phone keeps the message and sends it again."""
    _LOG.error("a message was not accepted: %s", problem)
    return JSONResponse({"error": "not available now; send the message again"}, 503, headers={"Retry-After": "10"})


async def _answer_unexpected(_: Request, problem: Exception) -> Response:
    """Answer 500. The text of the error could contain a location and is not logged."""
    _LOG.error("a message was not accepted: %s", type(problem).__name__)
    return JSONResponse({"error": "not available now; send the message again"}, 500)


def get_status(problem: Exception) -> int:
    """Return the status with which `EXCEPTION_HANDLERS` answers an error."""
    if isinstance(problem, HTTPException):
        return problem.status_code
    return 400 if isinstance(problem, InvalidInputError) else 503 if isinstance(problem, DphmmError) else 500


# Type of error → handler that answers it.
EXCEPTION_HANDLERS: Mapping[type[Exception] | int, Callable[[Request, Exception], Awaitable[Response]]] = {
    HTTPException: _answer_http_exception,
    InvalidInputError: _answer_invalid_input,
    DphmmError: _answer_unavailable,
    Exception: _answer_unexpected,
}
