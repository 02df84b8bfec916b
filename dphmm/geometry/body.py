"""The kinds of symmetric bodies that noise is drawn from."""

from __future__ import annotations

from typing import Literal

Body = Literal["hull", "cross-polytope", "disc"]
"""The sensitivity hull itself, or the least cross-polytope or disc that holds it."""
