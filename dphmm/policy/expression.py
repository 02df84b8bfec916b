"""Parsing of policies that are written as text in options and job files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dphmm.arrays import BoolArray, IntArray
from dphmm.errors import PolicyError
from dphmm.policy.graph import PolicyGraph, PolicyLike, as_policy, get_state_names
from dphmm.policy.graph_text import PREFIX, canonicalize_listed_graph, format_policy_text, is_listed, read_listed
from dphmm.policy.lengths import parse_length
from dphmm.policy.missing_edges import refuse_if_empty
from dphmm.policy.zones import (
    PolygonLayer,
    build_categorical_policy,
    extend_zones,
    find_layer,
    find_open_states,
    find_zones,
)
from dphmm.space.states import StateSpace
from dphmm.space.streets import Streets
from dphmm.tables.source import hash_file
from dphmm.validation import check_arguments

if TYPE_CHECKING:
    import networkx
    from scipy.sparse import csr_array

# The grammar of policies, for help texts and messages.
GRAMMAR = (
    "utility:1km, centres:1km, streets:300m, complete, transition, categorical:LAYER.geojson[@PROPERTY], "
    "zone:LAYER.geojson[@PROPERTY][+300m], open:LAYER.geojson, graph:FILE.json, graph:{JSON}, without:FILE.json, "
    "without:{JSON}, combined by & and |"
)

_LABELLED_FILE = re.compile(r"(.+\.(?:(?:geo)?json|kml|gpkg|fgb|shp))@([^/\\]+)", re.IGNORECASE)
_WITH_BUFFER = re.compile(r"(.+)\+\s*([0-9.eE]+\s*k?m)\s*")
_RADII = ("utility", "centres")
# The graph is nested as deeply as the policy has terms. Its recursion must stay below the limit of Python.
_MAX_TERMS = 100
# Terms with a length as the argument.
_LENGTHS = (*_RADII, "streets")
_CANONICAL_RADIUS = re.compile(r"\butility:([0-9.e+-]+)km(:places)?")


@check_arguments
def parse_policy(
    text: str | PolicyLike,
    space: StateSpace,
    transition: csr_array | None = None,
    layers: Sequence[PolygonLayer] = (),
) -> PolicyGraph:
    """Return the policy graph that a text describes, or convert a graph of networkx.

    Parameters
    ----------
    text
        A `PolicyGraph` or a `networkx.Graph`, see `as_policy`; or a string that consists of these terms:

        - ``utility:1km``: connects states that contain two locations at most this far apart; also in ``m``.
        - ``centres:1km``: connects states with points, such as the centres of grid cells, at most this far apart. This
          is the rule of the papers. For real locations its guarantee covers a smaller distance.
        - ``streets:300m``: connects segments of streets that contain two locations at most this far apart along
          streets. Requires a space of streets.
        - ``complete``: connects all states.
        - ``transition``: connects states that share a possible predecessor.
        - ``categorical:LAYER.geojson``: connects states in the same polygon of a layer. A suffix ``@PROPERTY`` names
          the property that contains the category.
        - ``zone:LAYER.geojson``: connects states in the same polygon. States outside all zones are open unless another
          term connects them. A suffix ``+300m`` adds the states within this distance from which a zone can be entered.
        - ``open:LAYER.geojson``: declares the states in the polygons open.
        - ``graph:FILE.json``: a node-link graph of states, or of the names of places.
        - ``graph:{…}``: the content of such a file; see `format_policy_text`.
        - ``without:FILE.json`` or ``without:{…}``: removes the edges of such a graph from the terms with which it is
          combined by ``&``.

        ``&`` is the intersection and ``|`` the union. ``&`` binds more tightly.
    space
        The states.
    transition
        ``(N, N)``: the transition matrix of the term ``transition``.
    layers
        Polygon layers as values. If the text contains the name of one, as in ``zone:home``, no file is read.

    Returns
    -------
    PolicyGraph
        The policy over the states of the space.

    Raises
    ------
    PolicyError
        If the text is invalid, has more than 100 terms, or names a state that is not in the space; if the policy, or
        one of its radii, connects no two states; if a state is open and connected, or open and in a zone.
    DataFileError
        If a file is missing or invalid, a zone contains no state, or zones with different names overlap.

    Examples
    --------
    >>> from dphmm.space import Places
    >>> stops = Places(["a", "b", "c"], [45.0, 45.0, 45.0], [7.0, 7.01, 7.1])
    >>> parse_policy("utility:1km", stops).edge_array().tolist()
    [[0, 1]]
    """
    if not isinstance(text, str):
        return as_policy(text, space.size, get_state_names(space))
    unions = []
    opened = np.zeros(space.size, dtype=np.bool_)
    zoned: BoolArray | None = None
    for terms in _split_terms(text):
        # 'open' declares states rather than edges, so an intersection with it is meaningless.
        if len(terms) > 1 and any(_get_term_type(term) == "open" for term in terms):
            raise PolicyError(f"open cannot be combined by & in policy {text.strip()!r}: use |")
        if _get_term_type(terms[0]) == "open":
            opened[_read_open_states(terms[0], space, layers)] = True
            continue
        graphs = []
        removals = [term for term in terms if _get_term_type(term) == "without"]
        if len(removals) == len(terms):
            raise PolicyError(
                f"without must be combined by & with another term in policy {format_policy_label(text)!r}"
            )
        for term in (term for term in terms if term not in removals):
            if _get_term_type(term) == "zone":
                groups = _read_zones(term, space, transition, layers)
                zoned = np.zeros(space.size, dtype=np.bool_) if zoned is None else zoned
                zoned[np.concatenate(list(groups.values()))] = True
                graphs.append(PolicyGraph.from_groups(space.size, list(groups.values())))
            else:
                graphs.append(_build_term_graph(term, space, transition, layers))
        graph = reduce(and_, graphs)
        for term in removals:
            graph = graph.without_edges(_build_term_graph(term, space, transition, layers).edge_array())
        unions.append(graph)
    graph = reduce(or_, unions) if unions else PolicyGraph.from_edges(space.size, [])
    if zoned is not None:
        if (opened & zoned).any():
            state = int(np.argmax(opened & zoned))
            raise PolicyError(
                f"a state cannot be open and in a zone, got state {state}: separate the open polygons from the zones"
            )
        # Zones declare what is private. States outside them that no other term connects are released unchanged.
        opened |= ~zoned & ~graph.find_connected_states()
    refuse_if_empty(graph, format_policy_label(text), space, is_radius=False)
    return graph.with_open(opened) if opened.any() else graph


def format_policy_label(text: str) -> str:
    """Return a policy's text for display, with the number of edges of graphs.

    Parameters
    ----------
    text
        See `parse_policy`.

    Returns
    -------
    str
        The text, without spaces at its ends.

    Examples
    --------
    >>> format_policy_label('graph:{"nodes":[],"edges":[{"source":0,"target":1}]} | utility:1km')
    'graph of 1 edge | utility:1km'
    """
    if "{" not in text:
        return text.strip()
    return " | ".join(" & ".join(_format_term(term) for term in terms) for terms in _split_terms(text))


def _format_term(term: str) -> str:
    if not is_listed(term):
        return term
    kind = "graph of" if _get_term_type(term) == "graph" else "without"
    return f"{kind} {_format_edge_count(term)}"


def _format_edge_count(term: str) -> str:
    count = read_listed(term).number_of_edges()
    return f"{count:,} edge{'' if count == 1 else 's'}"


@check_arguments
def edit_edges(text: str, added: Sequence[tuple[int, int]], removed: Sequence[tuple[int, int]]) -> str:
    """Return a policy with edges added to it and removed from it, as text.

    Parameters
    ----------
    text
        The policy; see `parse_policy`.
    added, removed
        Pairs of states. An edge that is added and removed is added.

    Returns
    -------
    str
        The text, with ``graph:{…}`` for added and ``without:{…}`` for removed edges.

    Examples
    --------
    >>> format_policy_label(edit_edges("complete | open:parks.geojson", [], [(0, 1)]))
    'complete & without 1 edge | open:parks.geojson'
    """
    unions = _split_terms(text)
    if removed:
        without = "without:" + format_policy_text(_build_graph(removed)).removeprefix(PREFIX)
        unions = [terms if _get_term_type(terms[0]) == "open" else [*terms, without] for terms in unions]
    if added:
        unions.append([format_policy_text(_build_graph(added))])
    return " | ".join(" & ".join(terms) for terms in unions) if added or removed else text


def _build_graph(edges: Sequence[tuple[int, int]]) -> networkx.Graph[int]:
    import networkx

    return networkx.Graph(list(edges))


@check_arguments
def split_zones(text: str) -> tuple[str, tuple[str, ...]]:
    """Split a policy's text into the part without zones, and the layers of the zones.

    Examples
    --------
    >>> split_zones("zone:home.geojson+300m | utility:500m")
    ('utility:500m', ('home.geojson',))
    """
    unions = _split_terms(text)
    zone_terms = [union for union in unions if len(union) == 1 and _get_term_type(union[0]) == "zone"]
    rest = " | ".join(" & ".join(union) for union in unions if union not in zone_terms)
    return rest, tuple(_parse_zone(union[0])[0] for union in zone_terms)


def canonicalize_policy(text: str, layers: Sequence[PolygonLayer] = ()) -> str:
    """Return the canonical text of a policy, from which its hash is computed.

    It has no spaces, lengths in kilometres, and the SHA-256 of layers and files. Equal canonical texts describe equal
    policies over equal states, independent of the paths of files.

    Raises
    ------
    PolicyError
        If the text is invalid.
    DataFileError
        If a file cannot be read.

    Examples
    --------
    >>> canonicalize_policy("complete & utility:500m|transition")
    'complete&utility:0.5km:places|transition'
    """
    return "|".join("&".join(_canonicalize_term(term, layers) for term in terms) for terms in _split_terms(text))


def restore_policy(text: str) -> str:
    """Return a policy that has a canonical text.

    Layers and files remain digests, which cannot be read.

    Examples
    --------
    >>> restore_policy("complete&utility:0.5km:places|utility:2.0km")
    'complete&utility:0.5km|centres:2km'
    """

    def restore_radius(term: re.Match[str]) -> str:
        return f"{'utility' if term[2] else 'centres'}:{float(term[1]):.17g}km"

    return _CANONICAL_RADIUS.sub(restore_radius, text)


def find_max_radius(text: str) -> float | None:
    """Return the largest radius in a policy's text, in kilometres, or None.

    Examples
    --------
    >>> find_max_radius("complete & utility:500m | transition"), find_max_radius("complete")
    (0.5, None)
    """
    radii = (
        term.partition(":")[2] for terms in _split_terms(text) for term in terms if _get_term_type(term) in _LENGTHS
    )
    return max(map(parse_length, radii), default=None)


def describe_policy(text: str) -> str:
    """Describe the pairs of locations to which a policy's guarantee applies.

    Examples
    --------
    >>> describe_policy("utility:1km"), describe_policy("transition & utility:500m")
    ('locations within 1 km', 'locations that share a possible predecessor and are within 0.5 km')
    """
    terms = [union for union in _split_terms(text) if _get_term_type(union[0]) != "open"]
    clauses = [" and ".join(_describe_term(term) for term in union) for union in terms]
    if clauses == ["are arbitrary"]:
        return "any two locations"
    if len(clauses) == 1 and clauses[0].startswith("are within") and " and " not in clauses[0]:
        return f"locations {clauses[0].removeprefix('are ')}"
    return f"locations that {', or that '.join(clauses)}"


def _describe_term(term: str) -> str:
    kind, _, argument = (part.strip() for part in term.partition(":"))
    if kind in _RADII:
        radius = f"within {parse_length(argument):g} km"
        return f"are {radius}" if kind == "utility" else f"belong to states with points {radius}"
    if kind == "streets":
        return f"are within {parse_length(argument):g} km along streets"
    if kind == "categorical":
        return f"are in the same area of {Path(_parse_layer(argument)[0]).name}"
    if kind == "zone":
        path, _, length = _parse_zone(term)
        around = "" if length is None else f", or within {length:g} km of it"
        return f"are in the same zone of {Path(path).name}{around}"
    if kind == "graph":
        return "the graph connects" if is_listed(term) else f"{Path(argument).name} connects"
    if kind == "without":
        if is_listed(term):
            return f"are not the ends of {_format_edge_count(term).replace(' edge', ' removed edge')}"
        return f"are not adjacent in {Path(argument).name}"
    phrases = {"complete": "are arbitrary", "transition": "share a possible predecessor"}
    return phrases.get(kind, "the policy connects")


def _get_term_type(term: str) -> str:
    return term.partition(":")[0].strip()


def _split_terms(text: str) -> list[list[str]]:
    """Split a policy into unions, each a list of terms to intersect."""
    num_terms = 1 + text.count("|") + text.count("&")
    if num_terms > _MAX_TERMS:
        raise PolicyError(f"policy must have at most {_MAX_TERMS} terms, got {num_terms}")
    return [[term.strip() for term in union.split("&")] for union in text.split("|")]


def _parse_layer(argument: str, layers: Sequence[PolygonLayer] = ()) -> tuple[str, str | None]:
    """Parse the layer and the property of a term ``categorical``."""
    name, at, label = argument.strip().partition("@")
    # Names of layers cannot contain '@', paths can: in a path only '@' after a known suffix separates the property.
    if at and isinstance(find_layer(name, layers), PolygonLayer):
        return name, label
    labelled = _LABELLED_FILE.fullmatch(argument.strip())
    return (labelled[1], labelled[2]) if labelled else (argument.strip(), None)


def _parse_zone(term: str, layers: Sequence[PolygonLayer] = ()) -> tuple[str, str | None, float | None]:
    """Parse the layer, the property and the added distance (km) of a term ``zone``."""
    argument = term.partition(":")[2].strip()
    widened = _WITH_BUFFER.fullmatch(argument)
    length = parse_length(widened[2]) if widened else None
    return (*_parse_layer(widened[1] if widened else argument, layers), length)


def _read_zones(
    term: str, space: StateSpace, transition: csr_array | None, layers: Sequence[PolygonLayer]
) -> dict[str, IntArray]:
    path, label, length = _parse_zone(term, layers)
    if not path:
        raise PolicyError(f"policy must be one of {GRAMMAR}, got {term!r}")
    groups = find_zones(find_layer(path, layers), space, label)
    return groups if length is None else extend_zones(groups, space, length, transition)


def _read_open_states(term: str, space: StateSpace, layers: Sequence[PolygonLayer]) -> IntArray:
    path, label = _parse_layer(term.partition(":")[2], layers)
    if not path:
        raise PolicyError(f"policy must be one of {GRAMMAR}, got {term!r}")
    return find_open_states(find_layer(path, layers), space, label)


def _canonicalize_term(text: str, layers: Sequence[PolygonLayer]) -> str:
    kind, _, argument = (part.strip() for part in text.partition(":"))
    if kind in _RADII:  # 'centres' keeps the hash of the former 'utility', which was between centres
        return f"utility:{parse_length(argument)!r}km{':places' if kind == 'utility' else ''}"
    if kind == "streets":
        return f"streets:{parse_length(argument)!r}km"
    if kind in ("categorical", "open", "zone"):
        path, label, length = _parse_zone(text, layers) if kind == "zone" else (*_parse_layer(argument, layers), None)
        widened = "" if length is None else f"+{length!r}km"
        return f"{kind}:{_hash_layer(path, layers)}{'' if label is None else f'@{label}'}{widened}"
    if is_listed(text):
        return canonicalize_listed_graph(text)
    if kind in ("graph", "without"):
        return f"{kind}:{hash_file(argument, 'in the policy')}"
    if text not in ("complete", "transition"):
        raise PolicyError(f"policy must be one of {GRAMMAR}, got {text!r}")
    return text


def _hash_layer(path: str, layers: Sequence[PolygonLayer]) -> str:
    """Return the hash of a layer's text, which equals that of a file with this content."""
    layer = find_layer(path, layers)
    if isinstance(layer, str):
        return hash_file(layer, "in the policy")
    return hashlib.sha256(layer.geojson.encode("utf-8")).hexdigest()


def _build_term_graph(
    text: str, space: StateSpace, transition: csr_array | None, layers: Sequence[PolygonLayer]
) -> PolicyGraph:
    kind, _, argument = (part.strip() for part in text.partition(":"))
    if kind in _RADII and argument:
        cell = space.extent_km if kind == "utility" else 0.0
        graph = PolicyGraph.utility(space.measurements(), parse_length(argument), cell)
        return refuse_if_empty(graph, text, space, is_radius=True)
    if kind == "streets" and argument:
        distance = parse_length(argument)
        if not isinstance(space, Streets):
            raise PolicyError(f"policy {text!r} requires a region of streets: build the model with --streets FILE")
        return PolicyGraph.from_edges(space.size, space.pairs_within(distance))
    if kind == "categorical" and argument:
        path, label = _parse_layer(argument, layers)
        return build_categorical_policy(find_layer(path, layers), space, label)
    if kind in ("graph", "without") and argument:
        if is_listed(text):
            return as_policy(read_listed(text, space.size), space.size, get_state_names(space))
        return PolicyGraph.from_json(argument, size=space.size, names=get_state_names(space))
    if kind == "transition" and not argument:
        if transition is None:
            raise PolicyError("policy 'transition' needs a model: pass a model or use another policy")
        return PolicyGraph.transition(transition)
    if kind != "complete" or argument:
        raise PolicyError(f"policy must be one of {GRAMMAR}, got {text!r}")
    return PolicyGraph.complete(space.size)
