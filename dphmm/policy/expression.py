"""Policies written as text, as options and job files hold them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, IntArray
from dphmm.errors import PolicyError
from dphmm.policy.graph import PolicyGraph, PolicyLike, as_policy, names_of
from dphmm.policy.graph_text import canonical_listed, is_listed, read_listed
from dphmm.policy.isolated_states import refuse_if_empty
from dphmm.policy.lengths import kilometres
from dphmm.policy.zones import PolygonLayer, buffered, categorical_layer, find_layer, open_places, zones
from dphmm.space.states import StateSpace
from dphmm.tables.source import file_hash

if TYPE_CHECKING:
    from scipy.sparse import csr_array

GRAMMAR = (
    "utility:1km, centres:1km, complete, transition, categorical:LAYER.geojson[@PROPERTY], "
    "zone:LAYER.geojson[@PROPERTY][+300m], open:LAYER.geojson, graph:FILE.json, graph:{JSON}, joined by & and |"
)
"""What a policy may be, for help texts and messages."""

_LABELLED_FILE = re.compile(r"(.+\.(?:(?:geo)?json|kml|gpkg|fgb|shp))@([^/\\]+)", re.IGNORECASE)
_WIDENED = re.compile(r"(.+)\+\s*([0-9.eE]+\s*k?m)\s*")
_RADII = ("utility", "centres")


@checked
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
        A `PolicyGraph` or a `networkx.Graph`, see `as_policy`; or a text:
        ``utility:1km`` (states that hold two places at most that far apart; also in ``m``), ``centres:1km`` (states
        whose points, such as the centres of a grid's cells, are: the papers' rule, which promises less for real
        places), ``complete``, ``transition`` (states that share a possible predecessor),
        ``categorical:LAYER.geojson`` (states in the same polygon of a layer; ``@PROPERTY`` after it names the
        property that holds the category), ``zone:LAYER.geojson`` (states in the same polygon; what no zone holds and
        the whole policy leaves without an edge is open; ``+300m`` after it widens the zones by the places up to so
        far away from which they can be entered), ``open:LAYER.geojson`` (states in its polygons are open), or
        ``graph:FILE.json`` (a node-link graph of states, or of the names of places), or ``graph:{…}`` (the content of
        such a file, see `policy_text`). ``&`` intersects and binds more tightly than ``|``, which unites.
    space
        The states.
    transition
        ``(N, N)``, what ``transition`` refers to.
    layers
        Polygons as values: where the text has the name of one for a layer, as in ``zone:home``, no file is read.

    Returns
    -------
    PolicyGraph
        The policy over the states of the space.

    Raises
    ------
    PolicyError
        When the text is no policy, or the policy names a state that is not in the space; when it, or one of its radii,
        joins no two states; when a state is open and connected, or in a zone.
    DataFileError
        When a file that it names is missing or of another kind, a zone holds no state, or zones of different names
        overlap.

    Examples
    --------
    >>> from dphmm.space import Places
    >>> stops = Places(["a", "b", "c"], [45.0, 45.0, 45.0], [7.0, 7.01, 7.1])
    >>> parse_policy("utility:1km", stops).edge_array().tolist()
    [[0, 1]]
    """
    if not isinstance(text, str):
        return as_policy(text, space.size, names_of(space))
    unions, opened = [], np.zeros(space.size, dtype=np.bool_)
    zoned: BoolArray | None = None
    for terms in _terms(text):
        if len(terms) > 1 and any(_kind(term) == "open" for term in terms):
            raise PolicyError(f"policy {text.strip()!r} joins open places by &; join them by |")
        if _kind(terms[0]) == "open":
            opened[_open(terms[0], space, layers)] = True
            continue
        graphs = []
        for term in terms:
            if _kind(term) == "zone":
                groups = _zones(term, space, transition, layers)
                zoned = np.zeros(space.size, dtype=np.bool_) if zoned is None else zoned
                zoned[np.concatenate(list(groups.values()))] = True
                graphs.append(PolicyGraph.from_groups(space.size, list(groups.values())))
            else:
                graphs.append(_policy(term, space, transition, layers))
        unions.append(reduce(and_, graphs))
    graph = reduce(or_, unions) if unions else PolicyGraph.from_edges(space.size, [])
    if zoned is not None:
        if (opened & zoned).any():
            state = int(np.argmax(opened & zoned))
            raise PolicyError(f"state {state} is open and in a zone; cut the open places and the zones apart")
        opened |= ~zoned & ~graph.connected()
    refuse_if_empty(graph, policy_label(text), space, is_radius=False)
    return graph.with_open(opened) if opened.any() else graph


def policy_label(text: str) -> str:
    """Return a policy's text for display: the edges of a graph in it are counted, not listed.

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
    >>> policy_label('graph:{"nodes":[],"edges":[{"source":0,"target":1}]} | utility:1km')
    'graph of 1 edge | utility:1km'
    """
    if "{" not in text:
        return text.strip()
    return " | ".join(" & ".join(_label(term) for term in terms) for terms in _terms(text))


def _label(term: str) -> str:
    if not is_listed(term):
        return term
    count = read_listed(term).number_of_edges()
    return f"graph of {count:,} edge{'' if count == 1 else 's'}"


@checked
def with_buffer(text: str, length: str) -> str:
    """A policy's text with every zone of it widened by the places up to a length away from which it is entered.

    Raises
    ------
    PolicyError
        When the policy has no zone, or one that is widened already, or the length is none.

    Examples
    --------
    >>> with_buffer("zone:home.geojson | utility:200m", "300m")
    'zone:home.geojson+300m | utility:200m'
    """
    kilometres(length)
    terms = [[f"{term}+{length.strip()}" if _kind(term) == "zone" else term for term in some] for some in _terms(text)]
    made = " | ".join(" & ".join(some) for some in terms)
    zoned = [term for some in _terms(text) for term in some if _kind(term) == "zone"]
    if not zoned or any(_zone(term)[2] is not None for term in zoned):
        found = "has no zone" if not zoned else "says how far its zones are widened already"
        raise PolicyError(f"policy {text.strip()!r} {found}, so leave the buffer out; zones are zone:LAYER.geojson")
    return made


def split_zones(text: str) -> tuple[str, tuple[str, ...]]:
    """A policy's text without what is zones alone, and the layers that these are drawn in.

    Examples
    --------
    >>> split_zones("zone:home.geojson+300m | utility:500m")
    ('utility:500m', ('home.geojson',))
    """
    unions = _terms(text)
    alone = [some for some in unions if len(some) == 1 and _kind(some[0]) == "zone"]
    rest = " | ".join(" & ".join(some) for some in unions if some not in alone)
    return rest, tuple(_zone(some[0])[0] for some in alone)


def canonical_policy(text: str, layers: Sequence[PolygonLayer] = ()) -> str:
    """A policy's text as it is hashed: without spaces, lengths in kilometres, layers and files by their SHA-256.

    Equal canonical texts describe equal policies over equal states, wherever the files lie.

    Raises
    ------
    PolicyError
        When the text is no policy.
    DataFileError
        When a file that the text names cannot be read.

    Examples
    --------
    >>> canonical_policy("complete & utility:500m|transition")
    'complete&utility:0.5km:places|transition'
    """
    return "|".join("&".join(_canonical_term(term, layers) for term in terms) for terms in _terms(text))


def policy_radius(text: str) -> float | None:
    """The longest radius in a policy's text, in kilometres; None where it has none.

    Examples
    --------
    >>> policy_radius("complete & utility:500m | transition"), policy_radius("complete")
    (0.5, None)
    """
    radii = (term.partition(":")[2] for terms in _terms(text) for term in terms if _kind(term) in _RADII)
    return max(map(kilometres, radii), default=None)


def policy_in_words(text: str) -> str:
    """Between which places a policy makes its promise.

    Examples
    --------
    >>> policy_in_words("utility:1km"), policy_in_words("transition & utility:500m")
    ('places at most 1 km apart', 'places that share a possible place before and are at most 0.5 km apart')
    """
    terms = [some for some in _terms(text) if _kind(some[0]) != "open"]
    said = [" and ".join(_in_words(term) for term in some) for some in terms]
    if said == ["are any two"]:
        return "any two places"
    if len(said) == 1 and said[0].startswith("are at most") and " and " not in said[0]:
        return f"places {said[0].removeprefix('are ')}"
    return f"places that {', or that '.join(said)}"


def _in_words(term: str) -> str:
    kind, _, argument = (part.strip() for part in term.partition(":"))
    if kind in _RADII:
        near = f"are at most {kilometres(argument):g} km apart"
        return near if kind == "utility" else f"belong to states whose points {near}"
    if kind == "categorical":
        return f"lie in one area of {Path(_layer(argument)[0]).name}"
    if kind == "zone":
        path, _, length = _zone(term)
        around = "" if length is None else f", or at most {length:g} km around it"
        return f"lie in one zone of {Path(path).name}{around}"
    if kind == "graph":
        return "the graph joins" if is_listed(term) else f"{Path(argument).name} joins"
    return {"complete": "are any two", "transition": "share a possible place before"}.get(kind, "the policy joins")


def _kind(term: str) -> str:
    return term.partition(":")[0].strip()


def _terms(text: str) -> list[list[str]]:
    """The terms of a policy: the unions of lists of policies to intersect."""
    return [[term.strip() for term in union.split("&")] for union in text.split("|")]


def _layer(argument: str, layers: Sequence[PolygonLayer] = ()) -> tuple[str, str | None]:
    """The layer and the property that ``categorical`` names."""
    name, at, label = argument.strip().partition("@")
    if at and isinstance(find_layer(name, layers), PolygonLayer):
        return name, label
    labelled = _LABELLED_FILE.fullmatch(argument.strip())
    return (labelled[1], labelled[2]) if labelled else (argument.strip(), None)


def _zone(term: str, layers: Sequence[PolygonLayer] = ()) -> tuple[str, str | None, float | None]:
    """The layer and the property that ``zone`` names, and by how many kilometres it is widened."""
    argument = term.partition(":")[2].strip()
    widened = _WIDENED.fullmatch(argument)
    length = kilometres(widened[2]) if widened else None
    return (*_layer(widened[1] if widened else argument, layers), length)


def _zones(
    term: str, space: StateSpace, transition: csr_array | None, layers: Sequence[PolygonLayer]
) -> dict[str, IntArray]:
    path, label, length = _zone(term, layers)
    if not path:
        raise PolicyError(f"policy {term!r} is none; give {GRAMMAR}")
    groups = zones(find_layer(path, layers), space, label)
    return groups if length is None else buffered(groups, space, length, transition)


def _open(term: str, space: StateSpace, layers: Sequence[PolygonLayer]) -> IntArray:
    path, label = _layer(term.partition(":")[2], layers)
    if not path:
        raise PolicyError(f"policy {term!r} is none; give {GRAMMAR}")
    return open_places(find_layer(path, layers), space, label)


def _canonical_term(text: str, layers: Sequence[PolygonLayer]) -> str:
    kind, _, argument = (part.strip() for part in text.partition(":"))
    if kind in _RADII:  # what was written 'utility' when it was about centres has the hash that it had
        return f"utility:{kilometres(argument)!r}km{':places' if kind == 'utility' else ''}"
    if kind in ("categorical", "open", "zone"):
        path, label, length = _zone(text, layers) if kind == "zone" else (*_layer(argument, layers), None)
        widened = "" if length is None else f"+{length!r}km"
        return f"{kind}:{_layer_hash(path, layers)}{'' if label is None else f'@{label}'}{widened}"
    if is_listed(text):
        return canonical_listed(text)
    if kind == "graph":
        return f"{kind}:{file_hash(argument, 'in the policy')}"
    if text not in ("complete", "transition"):
        raise PolicyError(f"policy {text!r} is none; give {GRAMMAR}")
    return text


def _layer_hash(path: str, layers: Sequence[PolygonLayer]) -> str:
    """The hash of a layer's text, which is that of a file with the same text."""
    layer = find_layer(path, layers)
    if isinstance(layer, str):
        return file_hash(layer, "in the policy")
    return hashlib.sha256(layer.geojson.encode("utf-8")).hexdigest()


def _policy(text: str, space: StateSpace, transition: csr_array | None, layers: Sequence[PolygonLayer]) -> PolicyGraph:
    kind, _, argument = (part.strip() for part in text.partition(":"))
    if kind in _RADII and argument:
        cell = space.cell_km if kind == "utility" else 0.0
        graph = PolicyGraph.utility(space.measurements(), kilometres(argument), cell)
        return refuse_if_empty(graph, text, space, is_radius=True)
    if kind == "categorical" and argument:
        path, label = _layer(argument, layers)
        return categorical_layer(find_layer(path, layers), space, label)
    if kind == "graph" and argument:
        if is_listed(text):
            return as_policy(read_listed(text, space.size), space.size, names_of(space))
        return PolicyGraph.from_json(argument, size=space.size, names=names_of(space))
    if kind == "transition" and not argument:
        if transition is None:
            raise PolicyError("policy 'transition' needs a model, and there is none; give a model or another policy")
        return PolicyGraph.transition(transition)
    if kind != "complete" or argument:
        raise PolicyError(f"policy {text!r} is none; give {GRAMMAR}")
    return PolicyGraph.complete(space.size)
