"""Authentication of requests to the relay: the device that posted a message.

Each app sends its token in another place. The functions return None for an unknown token.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

from starlette.requests import Request

from dphmm.serve import incoming_messages
from dphmm.serve.config import find_entry
from dphmm.serve.devices_and_recipients import Source
from dphmm.serve.requests import read_body, read_json_or_fields


def parse_basic_credentials(request: Request) -> tuple[str, str]:
    """Return name and password of basic authentication, or empty strings."""
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        name, _, password = base64.b64decode(encoded, validate=True).decode("utf-8").partition(":")
    except ValueError:  # also for characters beyond ASCII
        return "", ""
    return name, password


def parse_bearer_token(request: Request) -> str | None:
    """Return the bearer token of a request's header.

    A token in a query is not accepted, because servers and browsers store addresses.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else None


async def find_basic_device(devices: Mapping[str, Source], request: Request) -> Source | None:
    """Find the device by the password of basic authentication, and check its user (OwnTracks)."""
    credentials = parse_basic_credentials(request)
    claimed = request.headers.get("x-limit-u") or request.query_params.get("u")
    device = find_entry(devices, credentials[1])
    if device is None:  # the name contains a colon
        name, _, password = ":".join(credentials).rpartition(":")
        credentials, device = (name, password), find_entry(devices, password)
    return device if device is not None and (claimed or credentials[0]) == device.user else None


async def find_bearer_device(devices: Mapping[str, Source], request: Request) -> Source | None:
    """Find the device by a bearer token (Overland, ``/fix``)."""
    return find_entry(devices, parse_bearer_token(request))


async def find_osmand_device(devices: Mapping[str, Source], request: Request) -> Source | None:
    """Find the device by the identifier in a query, a form or a JSON object (OsmAnd, Traccar)."""
    content = await read_json_or_fields(request)
    if isinstance(content, bytes):
        return await _find_traccar_device(devices, request)
    return find_entry(devices, content.get("id") or content.get("deviceid"))


async def _find_traccar_device(devices: Mapping[str, Source], request: Request) -> Source | None:
    device = incoming_messages.parse_object(await read_body(request)).get("device_id")
    return find_entry(devices, device) if isinstance(device, str) else None


async def find_gpslogger_device(devices: Mapping[str, Source], request: Request) -> Source | None:
    """Find the device by a bearer token or by the password (GPSLogger)."""
    return find_entry(devices, parse_bearer_token(request) or parse_basic_credentials(request)[1])


async def find_webhook_device(devices: Mapping[str, Source], request: Request) -> Source | None:
    """Find the device by the last part of the path (Home Assistant)."""
    return find_entry(devices, request.path_params["token"])
