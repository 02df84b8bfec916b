"""Calls that the type checker must accept, and calls that it must refuse.

`scripts/check` checks this file. mypy reports an unused ``type: ignore``, and thereby a wrong call that it accepts.
"""

from __future__ import annotations

from networkx import Graph

from dphmm import ReleaseSettings


def call(graph: Graph[int]) -> str:
    ReleaseSettings(policy=3)  # type: ignore[arg-type]
    return ReleaseSettings(graph).policy
