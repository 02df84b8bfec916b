"""What the relay's plain endpoint takes, described as OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

import dphmm

_PLACE: dict[str, Any] = {
    "type": "object",
    "required": ["time", "latitude", "longitude"],
    "properties": {
        "time": {"type": "string", "format": "date-time", "description": "ISO 8601 with a zone."},
        "latitude": {"type": "number", "minimum": -90, "maximum": 90},
        "longitude": {"type": "number", "minimum": -180, "maximum": 180},
    },
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}


def _answer(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


DESCRIPTION: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {
        "title": "dphmm relay",
        "version": dphmm.__version__,
        "description": "Takes true places, keeps none, and tells recipients what a policy allows.",
    },
    "paths": {
        "/fix": {
            "post": {
                "summary": "Post one place, or several.",
                "security": [{"token": []}],
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {
                            "schema": {"oneOf": [_PLACE, {"type": "array", "items": _PLACE, "maxItems": 5000}]}
                        }
                    },
                },
                "responses": {
                    "200": _answer(
                        "Taken. What became of the places is not said.",
                        {"type": "object", "required": ["result"], "properties": {"result": {"const": "ok"}}},
                    ),
                    "400": _answer("No place, or no JSON.", _ERROR),
                    "401": _answer("The token is unknown.", _ERROR),
                    "408": _answer("The body takes too long.", _ERROR),
                    "413": _answer("The body is too large.", _ERROR),
                    "503": _answer("Not now; send it again.", _ERROR),
                },
            }
        },
        "/health": {
            "get": {
                "summary": "Whether the relay runs.",
                "responses": {
                    "200": _answer(
                        "It does.",
                        {
                            "type": "object",
                            "required": ["status", "version"],
                            "properties": {"status": {"const": "ok"}, "version": {"type": "string"}},
                        },
                    )
                },
            }
        },
    },
    "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
}
