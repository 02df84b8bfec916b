"""Policy graphs as text, ``graph:{…}`` with node-link JSON, for settings."""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dphmm.errors import PolicyError
from dphmm.policy.graph import PolicyGraph, PolicyLike, check_undirected, is_networkx, is_open, read_node_link
from dphmm.tables.json_toml import parse_json
from dphmm.tables.values import is_text, shorten, shorten_message, shorten_repr

if TYPE_CHECKING:
    import networkx

PREFIX = "graph:"
_LISTING_KINDS = ("graph", "without")

# Settings are copied into every session, certificate and run folder. At about 30 bytes per edge this many edges are
# 0.6 MB, which are read in a tenth of a second.
MAX_TEXT_EDGES = 20_000


def format_policy_text(policy: str | PolicyLike) -> str:
    """Return a policy as text: strings unchanged, graphs as ``graph:{…}`` with their edges.

    The text of a graph depends on its nodes, edges and open nodes, not on the order in which they were added.

    Parameters
    ----------
    policy
        A string, see `parse_policy`; a `PolicyGraph`; or a `networkx.Graph` of states or of names of places.

    Returns
    -------
    str
        The text. For a graph it contains node-link JSON, which networkx reads: open nodes, nodes without an edge, and
        all edges, sorted. ``num_states`` is the number of states of a `PolicyGraph`.

    Raises
    ------
    PolicyError
        If the policy is not a string or a graph, is directed, has parallel edges, has no edge, has more than 20,000
        edges, or has a node that is neither an integer nor a string.

    Examples
    --------
    >>> import networkx
    >>> format_policy_text(networkx.Graph([("work", "home")]))
    'graph:{"directed":false,"multigraph":false,"nodes":[],"edges":[{"source":"home","target":"work"}]}'
    """
    if isinstance(policy, str):
        return policy
    head: dict[str, Any] = {"directed": False, "multigraph": False}  # networkx's reader needs them
    if isinstance(policy, PolicyGraph):
        _check_count(policy.number_of_edges())
        graph = policy.to_networkx()
        head["num_states"] = policy.size
    elif is_networkx(policy):
        check_undirected(policy, "policy")
        _check_count(policy.number_of_edges())
        graph = policy
    else:
        raise PolicyError(
            "policy must be a string such as utility:1km, a PolicyGraph or a networkx.Graph, got "
            f"{shorten_repr(policy)}"
        )
    text = json.dumps(head | _build_node_link(graph), separators=(",", ":"))
    # In JSON both characters only occur within strings. There they must not be read as operators of the policy's text.
    return PREFIX + text.replace("&", r"\u0026").replace("|", r"\u007c")


def is_listed(term: str) -> bool:
    """Return whether a term of a policy contains a graph, not the name of its file.

    Parameters
    ----------
    term
        A term, such as ``graph:{…}``, ``without:{…}``, ``graph:FILE.json`` or ``utility:1km``.

    Returns
    -------
    bool
        `True` if `read_listed` can read it.
    """
    kind, _, content = term.partition(":")
    return kind.strip() in _LISTING_KINDS and content.lstrip().startswith("{")


def read_listed(term: str, size: int | None = None) -> networkx.Graph[Any]:
    """Read the graph of a term for which `is_listed` is true.

    Parameters
    ----------
    term
        A string from `format_policy_text`, or ``graph:`` and other node-link JSON.
    size
        The required number of states. By default it is not checked.

    Returns
    -------
    networkx.Graph
        The graph.

    Raises
    ------
    PolicyError
        If the JSON is invalid or not a node-link graph, or the graph was made for another number of states.
    """
    try:
        data = parse_json(term.partition(":")[2])
    except ValueError as problem:
        raise PolicyError(
            f"policy {shorten(term)} must contain node-link JSON, got {shorten_message(problem)}"
        ) from None
    num_states = data.get("num_states") if isinstance(data, dict) else None
    if size is not None and num_states not in (None, size):
        raise PolicyError(
            f"policy must be a graph over the {size} states it is used for, got one over {shorten_repr(num_states)}"
        )
    try:
        return read_node_link(data)
    except PolicyError as problem:
        raise PolicyError(f"policy {shorten(term)} is {problem}") from None


def canonicalize_listed_graph(term: str) -> str:
    """Return the canonical form of a listed graph: a hash of its edges and open nodes.

    Parameters
    ----------
    term
        The term.

    Returns
    -------
    str
        ``graph:`` or ``without:`` and a SHA-256. Terms of equal canonical form are equal policies over equal states.
    """
    content = _build_node_link(read_listed(term))
    content["nodes"] = [node for node in content["nodes"] if "open" in node]
    kind = term.partition(":")[0].strip()
    return f"{kind}:" + hashlib.sha256(json.dumps(content).encode("utf-8")).hexdigest()


def _build_node_link(graph: networkx.Graph[Any]) -> dict[str, list[dict[str, Any]]]:
    """Return a graph as node-link JSON: sorted edges, and nodes that are open or isolated."""
    opened = {_convert_node(node) for node, attributes in graph.nodes(data=True) if is_open(attributes)}
    edges = {tuple(sorted(map(_convert_node, edge), key=_get_sort_key)) for edge in graph.edges() if edge[0] != edge[1]}
    if not edges:
        raise PolicyError("policy must have an edge between two states, got a graph without edges")
    isolated = {_convert_node(node) for node in graph} - {node for edge in edges for node in edge} - opened
    nodes: Iterator[dict[str, Any]] = (
        {"id": node, "open": True} if node in opened else {"id": node}
        for node in sorted(opened | isolated, key=_get_sort_key)
    )
    ordered = sorted(edges, key=lambda edge: (*_get_sort_key(edge[0]), *_get_sort_key(edge[1])))
    return {"nodes": list(nodes), "edges": [{"source": source, "target": target} for source, target in ordered]}


def _convert_node(node: object) -> int | str:
    """Convert a node to a JSON value."""
    if isinstance(node, str) and is_text(node):
        return node
    try:
        return operator.index(node)  # type: ignore[arg-type]  # what is not an integer raises TypeError
    except TypeError:
        raise PolicyError(
            f"policy must have nodes that are states or names of states, got node {shorten_repr(node)}"
        ) from None


def _get_sort_key(node: int | str) -> tuple[bool, int, str]:
    """Return the sort key of a node: numbers before names."""
    return (True, 0, node) if isinstance(node, str) else (False, node, "")


def _check_count(count: int) -> None:
    if count > MAX_TEXT_EDGES:
        raise PolicyError(
            f"policy must have at most {MAX_TEXT_EDGES:,} edges to be written into settings, got {count:,}: write a "
            "file by PolicyGraph.to_json, and give its name as graph:FILE.json"
        )
