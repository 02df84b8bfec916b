"""The read-only part of the interface of `networkx.Graph`, for policy graphs.

networkx's algorithms read the adjacency dictionaries of a graph. A policy graph does not store them. They are built
when a method needs them for the first time, and only for graphs that fit in memory. Methods for single states and pairs
do not need them.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from dphmm.arrays import BoolArray, IntArray
from dphmm.errors import PolicyError

if TYPE_CHECKING:
    import networkx
    from networkx.classes.coreviews import AdjacencyView
    from networkx.classes.reportviews import DiDegreeView, NodeView, OutEdgeView

# Adjacency dictionaries take 85 to 115 bytes per edge as they are built here, and about 300 bytes per edge in a
# `networkx.Graph` with a dictionary of attributes for each edge (measured on complete and utility graphs of 5 million
# edges). This many edges are thus 0.6 and 1.5 GB. An array of edges takes 16 bytes per edge, and may be longer.
MAX_GRAPH_EDGES = 5_000_000


def _refuse_change(*_: Any, **__: Any) -> NoReturn:
    """Raise what networkx's frozen graphs raise."""
    import networkx

    raise networkx.NetworkXError("a PolicyGraph is frozen and can't be modified: change a copy by to_networkx()")


class _Attributes(dict[str, Any]):
    """Read-only attributes that are copied and pickled as a plain dictionary."""

    __setitem__ = __delitem__ = __ior__ = _refuse_change
    update = setdefault = pop = popitem = clear = _refuse_change

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)


# One object serves all edges, which have no attributes: a dictionary each would double the memory.
_NO_ATTRIBUTES = _Attributes()
_UNPROTECTED_ATTRIBUTES = _Attributes(open=True)


class ReadOnlyGraph(ABC):
    """A graph that networkx's algorithms can read, and not change.

    Nodes are states (integers). Edges have no attributes, open states have the attribute ``open=True``. Views are
    networkx's classes. Methods that would change the graph raise `networkx.NetworkXError`.
    """

    __networkx_backend__ = "networkx"  # networkx's dispatcher reads it if other backends are installed
    frozen = True  # `networkx.is_frozen` reads it

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of states, whether the graph contains them or not."""

    @property
    @abstractmethod
    def node_mask(self) -> BoolArray:
        """Which states the graph contains, ``(N,)``."""

    @property
    @abstractmethod
    def open(self) -> BoolArray:
        """Which states are open, ``(N,)``."""

    @abstractmethod
    def edge_array(self) -> IntArray:
        """All edges ``(m, 2)``, the smaller state first, in lexicographic order."""

    @abstractmethod
    def connects(self, first: Any, second: Any) -> BoolArray:
        """Whether each pair of states is an edge."""

    @abstractmethod
    def _keep(self, states: BoolArray) -> Self:
        """The states of a mask ``(N,)`` that the graph contains, and the edges between them."""

    def __getstate__(self) -> dict[str, Any]:
        """Everything except the dictionaries: workers rebuild them if they need them."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_node", "_graph")}

    # ---- methods that do not build the graph ------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of states that the graph contains."""
        return int(np.count_nonzero(self.node_mask))

    def __iter__(self) -> Iterator[int]:
        """Iterate over the states that the graph contains, ascending."""
        return iter(np.flatnonzero(self.node_mask).tolist())

    def __contains__(self, node: object) -> bool:
        """Whether a value is a state that the graph contains."""
        try:
            state = operator.index(node)  # type: ignore[arg-type]  # what is not an integer is not a state
        except TypeError:
            return False
        return 0 <= state < self.size and bool(self.node_mask[state])

    def has_node(self, node: object) -> bool:
        """Return whether a value is a state that the graph contains.

        Parameters
        ----------
        node
            Any value.

        Returns
        -------
        bool
            ``node in self``.
        """
        return node in self

    def has_edge(self, u: object, v: object) -> bool:
        """Return whether two values are states that an edge connects.

        Parameters
        ----------
        u, v
            Any values.

        Returns
        -------
        bool
            `False` also for values that are not states, and for a state and itself.
        """
        return u in self and v in self and bool(self.connects(u, v)[0])

    def number_of_nodes(self) -> int:
        """Return the number of states that the graph contains."""
        return len(self)

    def order(self) -> int:
        """Return the number of states that the graph contains."""
        return len(self)

    def number_of_edges(self, u: object = None, v: object = None) -> int:
        """Return the number of edges, or of edges between two states.

        Parameters
        ----------
        u, v
            Two states. Defaults to all edges.

        Returns
        -------
        int
            The number of edges; 0 or 1 for two states.

        Raises
        ------
        PolicyError
            If the edges are too many to be listed; see `edge_array`.
        """
        return self._num_edges if u is None else int(self.has_edge(u, v))

    @cached_property
    def _num_edges(self) -> int:
        return len(self.edge_array())

    def is_directed(self) -> bool:
        """Return `False`: indistinguishability is mutual."""
        return False

    def is_multigraph(self) -> bool:
        """Return `False`: two states have one edge at most."""
        return False

    @property
    def nodes(self) -> NodeView[int]:
        """The states of the graph, as networkx's view of nodes. See `node_mask` for a mask."""
        from networkx.classes.reportviews import NodeView

        return NodeView(self)  # type: ignore[arg-type]  # it reads `_node` alone

    @cached_property
    def _node(self) -> dict[int, dict[str, Any]]:
        opened = self.open
        return {state: _UNPROTECTED_ATTRIBUTES if opened[state] else _NO_ATTRIBUTES for state in self}

    @property
    def graph(self) -> dict[str, Any]:
        """Attributes of the graph: none."""
        return {}

    @property
    def name(self) -> str:
        """The name of the graph: none."""
        return ""

    def subgraph(self, nodes: Iterable[Hashable] | Hashable) -> Self:
        """Restrict the graph to some states. See also `restrict`, which takes a mask.

        Parameters
        ----------
        nodes
            States, or one state. Values that the graph does not contain are ignored, as in networkx.

        Returns
        -------
        PolicyGraph
            These states and the edges between them.

        Raises
        ------
        PolicyError
            If `nodes` is neither a state of the graph nor iterable.
        """
        if not isinstance(nodes, Iterable) and nodes not in self:
            raise PolicyError(f"nodes must be states of the graph, got {nodes!r}")
        kept = np.zeros(self.size, dtype=np.bool_)
        values = nodes if isinstance(nodes, Iterable) else [nodes]
        kept[np.array([node for node in values if node in self], dtype=np.int64)] = True
        return self._keep(kept)

    # ---- methods that build the graph -------------------------------------------------------------------------------

    @cached_property
    def _graph(self) -> networkx.Graph[int]:
        """The states and edges as a frozen `networkx.Graph`, built on first use."""
        import networkx

        edges = self._list_edges()
        # Both directions of each edge, ordered by their first state and then by their second: networkx's order for
        # edges that are added in lexicographic order.
        ends = np.concatenate([edges, edges[:, ::-1]])
        ends = ends[np.lexsort((ends[:, 1], ends[:, 0]))]
        cuts = np.searchsorted(ends[:, 0], np.arange(self.size + 1))
        states = list(range(self.size))  # one object for each state, which all dictionaries share
        graph: Any = networkx.Graph()
        graph._node = self._node
        graph._adj = {
            state: dict.fromkeys(
                [states[other] for other in ends[cuts[state] : cuts[state + 1], 1].tolist()], _NO_ATTRIBUTES
            )
            for state in self._node
        }
        frozen: networkx.Graph[int] = networkx.freeze(graph)
        return frozen

    def _list_edges(self) -> IntArray:
        """Return all edges ``(m, 2)``, or raise `PolicyError` if a `networkx.Graph` is too large."""
        edges = self.edge_array()
        if len(edges) > MAX_GRAPH_EDGES:
            raise PolicyError(
                f"a networkx graph must have at most {MAX_GRAPH_EDGES:,} edges to fit in memory, got {len(edges):,}: "
                "restrict the policy, or use edge_array() or edge_blocks()"
            )
        return edges

    @property
    def edges(self) -> OutEdgeView[int]:
        """All edges, as networkx's view of edges. See `edge_array` for an array.

        Raises
        ------
        PolicyError
            If there are more than five million edges.
        """
        return self._graph.edges

    @property
    def adj(self) -> AdjacencyView[int, int, dict[str, Any]]:
        """The neighbours of each state, as networkx's view of an adjacency."""
        return self._graph.adj

    @property
    def _adj(self) -> Any:
        return vars(self._graph)["_adj"]

    @property
    def degree(self) -> DiDegreeView[int]:
        """The number of neighbours of each state, as networkx's view of degrees."""
        return self._graph.degree

    def __getitem__(self, node: int) -> Mapping[int, dict[str, Any]]:
        """The neighbours of a state, each with its edge's attributes: none."""
        neighbors: Mapping[int, dict[str, Any]] = self._adj[node]
        return neighbors

    def adjacency(self) -> Iterator[tuple[int, Any]]:
        """Iterate over states, each with the dictionary of its neighbours.

        Returns
        -------
        iterator of tuple
            As `networkx.Graph.adjacency`.
        """
        return self._graph.adjacency()

    def neighbors(self, n: int) -> Iterator[int]:
        """Iterate over the neighbours of a state, ascending.

        Parameters
        ----------
        n
            A state of the graph.

        Returns
        -------
        iterator of int
            The states that an edge connects to it.

        Raises
        ------
        networkx.NetworkXError
            If the graph does not contain the state.
        """
        return self._graph.neighbors(n)

    def nbunch_iter(self, nbunch: Any = None) -> Iterator[int]:
        """Iterate over those of some values that are states of the graph.

        Parameters
        ----------
        nbunch
            A state, or an iterable of values. Defaults to all states of the graph.

        Returns
        -------
        iterator of int
            As `networkx.Graph.nbunch_iter`.
        """
        return self._graph.nbunch_iter(nbunch)

    def get_edge_data(self, u: Hashable, v: Hashable, default: Any = None) -> Any:
        """Return the attributes of an edge: none.

        Parameters
        ----------
        u, v
            Any values.
        default
            The value to return if no edge connects them.

        Returns
        -------
        dict
            An empty dictionary, or `default`.
        """
        return _NO_ATTRIBUTES if self.has_edge(u, v) else default

    # ---- copies, and methods of a frozen graph -----------------------------------------------------------------------

    def to_networkx(self) -> networkx.Graph[int]:
        """Return the states and edges as a new `networkx.Graph`.

        Returns
        -------
        networkx.Graph
            States that the graph contains, open ones with ``open=True``, and all edges.

        Raises
        ------
        PolicyError
            If there are more than five million edges.
        """
        import networkx

        graph: networkx.Graph[int] = networkx.Graph()
        graph.add_nodes_from((state, dict(attributes)) for state, attributes in self._node.items())
        graph.add_edges_from(self._list_edges().tolist())
        return graph

    def copy(self, as_view: bool = False) -> networkx.Graph[int]:
        """Return a `networkx.Graph` that can be changed, as `to_networkx` does.

        Parameters
        ----------
        as_view
            Whether to return the frozen graph instead, without copying.

        Returns
        -------
        networkx.Graph
            The states and edges.
        """
        return self._graph if as_view else self.to_networkx()

    def to_undirected(self, as_view: bool = False) -> networkx.Graph[int]:
        """Return a `networkx.Graph`, as `copy` does.

        Parameters
        ----------
        as_view
            As in `copy`.

        Returns
        -------
        networkx.Graph
            The states and edges.
        """
        return self.copy(as_view)

    def to_directed(self, as_view: bool = False) -> networkx.DiGraph[int]:
        """Return a `networkx.DiGraph` with both directions of every edge.

        Parameters
        ----------
        as_view
            Whether to return a view of the frozen graph instead, without copying.

        Returns
        -------
        networkx.DiGraph
            The states, and two edges for each edge.
        """
        return self.copy(as_view).to_directed(as_view)

    add_node = add_nodes_from = remove_node = remove_nodes_from = _refuse_change
    add_edge = add_edges_from = add_weighted_edges_from = remove_edge = remove_edges_from = _refuse_change
    clear = clear_edges = _refuse_change
