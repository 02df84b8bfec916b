"""Calls that the type checker must accept, and calls that it must refuse.

`scripts/check` checks this file. mypy reports an unused ``type: ignore``, and thereby a wrong call that it accepts.
"""

from __future__ import annotations

from networkx import Graph

from dphmm import MarkovModel, Releaser, ReleaseSettings


def create_engine(model: MarkovModel, graph: Graph[int]) -> Releaser:
    Releaser(model, [[0.0]], graph, 1.0, nois_scope="graph")  # type: ignore[call-arg]
    Releaser(model, [[0.0]], graph, 1.0, noise_scope="graf")  # type: ignore[arg-type]
    ReleaseSettings.for_a_day(polici="complete")  # type: ignore[call-arg]
    return Releaser(model, [[0.0]], graph, 1.0, noise_scope="graph").for_query([[1.0]], epsilon=0.5)


def call(graph: Graph[int]) -> str:
    ReleaseSettings(policy=3)  # type: ignore[arg-type]
    return ReleaseSettings(graph).policy
