"""Policy graphs: which states must stay indistinguishable (Definition 4.2)."""

from __future__ import annotations

import json
import sys
from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import (
    LARGEST,
    SMALLEST,
    BoolArray,
    FloatArray,
    IntArray,
    as_constraint,
    as_integers,
    content_hash,
    locked,
)
from dphmm.errors import DataFileError, PolicyError, StochasticError
from dphmm.geometry.gauge import Gauge
from dphmm.geometry.hull import SensitivityHull
from dphmm.geometry.measurements import Measurements
from dphmm.policy.cliques import CliqueEdges
from dphmm.policy.edges import EdgeSet, IntersectionEdges, ListedEdges, UnionEdges
from dphmm.policy.radius import RadiusEdges
from dphmm.policy.read_only_graph import ReadOnlyGraph
from dphmm.space.states import Places, StateSpace
from dphmm.stochastic import as_csr
from dphmm.tables import read_document, write_text
from dphmm.tables.json_toml import read_json
from dphmm.tables.values import one_line, shorten, shown

if TYPE_CHECKING:
    import networkx
    from scipy.sparse import csr_array

PolicyLike: TypeAlias = "PolicyGraph | networkx.Graph[Any]"
"""A policy as a graph: of this package, or an undirected graph of networkx."""

_LISTABLE = 50_000_000
"""Graphs that may have more edges than this are not listed edge by edge."""


@checked
class PolicyGraph(ReadOnlyGraph):
    """An undirected graph over states ``0 .. size - 1``; an edge asks that its two states be indistinguishable.

    A state without an edge may be declared `open`: it is released as it is.

    Made by `complete`, `categorical`, `utility`, `transition`, `from_groups`, `from_edges`, `from_networkx` or
    `from_json`; combined by ``a | b`` and ``a & b``; cut down to a constraint set by `restrict`. Graphs are immutable,
    and the dense kinds are never listed edge by edge unless `edge_array` or `to_networkx` asks for it.

    networkx's algorithms take it as a graph: it has the read-only part of the interface of `networkx.Graph`. Only
    `size` differs, which is the number of states here and counts edges in networkx. Pass `to_networkx()` to the few
    algorithms that call it, and to those that return a graph of the same class, such as `minimum_spanning_tree`.

    Parameters
    ----------
    edge_set
        What the graph knows about its edges; made by the constructors above.
    nodes
        ``(N,)`` booleans: the states that the graph holds; left out, all.
    open_
        ``(N,)`` booleans: the states that are released as they are; left out, none.

    Examples
    --------
    >>> graph = PolicyGraph.categorical([0, 1, 1, 2, 2, 2])
    >>> graph.edge_array().tolist()
    [[1, 2], [3, 4], [3, 5], [4, 5]]
    >>> import networkx
    >>> list(networkx.connected_components(graph))
    [{0}, {1, 2}, {3, 4, 5}]
    >>> graph.restrict([False, True, True, False, True, False]).edge_array().tolist()
    [[1, 2]]
    """

    def __init__(
        self, edge_set: EdgeSet | None = None, nodes: BoolArray | None = None, open_: BoolArray | None = None
    ) -> None:
        # networkx's algorithms that return a graph of the class of their argument call the class without arguments.
        if edge_set is None:
            raise PolicyError("a PolicyGraph cannot be built edge by edge: pass policy.to_networkx() to the algorithm")
        self._edge_set: EdgeSet = edge_set
        self._holds_all = nodes is None
        self._nodes: BoolArray = locked(np.ones(edge_set.size, dtype=np.bool_) if nodes is None else nodes.copy())
        self._open: BoolArray | None = None if open_ is None or not open_.any() else locked(open_.copy())
        self.has_open = self._open is not None and bool((self._open & self._nodes).any())
        """Whether any state is open."""
        self.joins_everyone = edge_set.is_complete
        """Whether every two states that the graph holds are known to be connected."""

    # ---- making graphs -------------------------------------------------------------------------------------------

    @classmethod
    @checked
    def complete(cls, size: int) -> PolicyGraph:
        """Every two states are connected: a state must be indistinguishable from all others.

        Parameters
        ----------
        size
            The number of states, at least 1.
        """
        if size < 1:
            raise PolicyError(f"a complete policy over {size} states has no meaning; give at least one state")
        return cls(CliqueEdges(size, np.array([0, size]), np.arange(size)))

    @classmethod
    @checked
    def categorical(cls, labels: Sequence[Hashable] | npt.ArrayLike) -> PolicyGraph:
        """States with the same label are connected.

        Parameters
        ----------
        labels
            One per state. ``None``, NaN and negative integers mean 'in no category': such a state has no edges.
        """
        try:
            values = np.asarray(labels)
        except ValueError:
            raise PolicyError("labels are lists of different lengths; give one label per state") from None
        if values.ndim != 1 or not len(values):
            raise PolicyError(f"labels have shape {values.shape}; give one label per state")
        if values.dtype.kind in "iu":
            codes = values.astype(np.int64)
        else:
            entries = values.tolist()
            if not all(isinstance(label, Hashable) for label in entries):
                raise PolicyError("a label cannot be compared (it is a list or a mapping); give texts or numbers")
            known = {label: i for i, label in enumerate(dict.fromkeys(x for x in entries if not _is_missing(x)))}
            codes = np.array([-1 if _is_missing(x) else known[x] for x in entries], dtype=np.int64)
        return cls(CliqueEdges.from_labels(codes))

    @classmethod
    @checked
    def utility(cls, f: npt.ArrayLike | Measurements, radius: float, cell: float = 0.0) -> PolicyGraph:
        """States that hold two places at most ``radius`` apart (Euclidean, closed) are connected.

        Parameters
        ----------
        f
            ``(N, d)`` measurements, or where the states are.
        radius
            In the unit of ``f``; kilometres for locations. Zero, or from 1e-30 to 1e30.
        cell
            The side of the cell that each state is the centre of, in the unit of ``f`` and along its axes; likewise.
            With 0, where states are points, measurements at most ``radius`` apart are connected, as in the paper (§4.2)
            also for the centres of cells: for real places the promise then holds for a shorter distance.

        Raises
        ------
        PolicyError
            When the radius or the cell is out of range.
        """
        for name, value in (("radius", radius), ("cell", cell)):
            if not (value == 0 or SMALLEST <= value <= LARGEST):
                raise PolicyError(f"{name} is {value}; give zero or a number from {SMALLEST:g} to {LARGEST:g}")
        return cls(RadiusEdges(Measurements.of(f), float(radius), float(cell)))

    @classmethod
    @checked
    def transition(cls, transition: npt.ArrayLike | csr_array) -> PolicyGraph:
        """States that share a possible predecessor are connected (one-step transition protection, §4.2).

        Parameters
        ----------
        transition
            ``(N, N)`` transition probabilities, dense or sparse; only where they are positive matters.
        """
        try:
            matrix = as_csr(transition, "transition matrix")
        except StochasticError as problem:
            raise PolicyError(str(problem)) from None
        if matrix.shape[0] != matrix.shape[1]:
            raise PolicyError(f"transition matrix has shape {matrix.shape}; it must be square")
        positive = matrix.data > 0
        starts = np.concatenate([[0], np.cumsum(positive)])[matrix.indptr]
        return cls(CliqueEdges(int(matrix.shape[0]), starts, matrix.indices[positive].astype(np.int64)))

    @classmethod
    @checked
    def from_groups(cls, size: int, groups: Sequence[npt.ArrayLike]) -> PolicyGraph:
        """The states of each group are connected with each other; groups may overlap.

        Parameters
        ----------
        size
            The number of states.
        groups
            Of each group its states, integers from 0 to ``size - 1``.
        """
        members = [np.unique(as_integers(group, "the states of a group", PolicyError)) for group in groups]
        everyone = np.concatenate([np.zeros(0, dtype=np.int64), *members])
        _check_states(everyone, size)
        starts = np.cumsum([0, *(len(group) for group in members)])
        return cls(CliqueEdges(size, starts, everyone))

    @classmethod
    @checked
    def from_edges(cls, size: int, edges: npt.ArrayLike) -> PolicyGraph:
        """A graph with the listed edges ``(m, 2)``.

        Parameters
        ----------
        size
            The number of states.
        edges
            ``(m, 2)`` integers from 0 to ``size - 1``; an edge may be listed twice, either way round.

        Raises
        ------
        PolicyError
            For a state outside ``0 .. size - 1`` or an edge from a state to itself.
        """
        pairs = as_integers(edges, "edges", PolicyError)
        if pairs.size and (pairs.ndim != 2 or pairs.shape[1] != 2):
            raise PolicyError(f"edges have shape {pairs.shape}; give pairs of states")
        pairs = pairs.reshape(-1, 2)
        _check_states(pairs.ravel(), size)
        if len(loops := pairs[pairs[:, 0] == pairs[:, 1]]):
            raise PolicyError(f"edge {loops[0].tolist()} joins a state to itself; leave it out")
        return cls(ListedEdges(size, pairs))

    @classmethod
    @checked
    def from_networkx(
        cls, graph: networkx.Graph[Any], size: int | None = None, names: Sequence[Hashable] | None = None
    ) -> PolicyGraph:
        """Convert an undirected networkx graph.

        Self-loops are ignored. Nodes with the attribute ``open=True`` are open.

        Parameters
        ----------
        graph
            Its nodes are states ``0 .. size - 1``, or entries of ``names``. States that it lacks have no edges.
        size
            The number of states. Defaults to the number of names or of nodes.
        names
            Names of the states, in their order, which the graph's nodes may have. If all are strings, a node may also
            be a state's number.

        Raises
        ------
        PolicyError
            If the graph is directed, has parallel edges, contains a node that is not a state, has an edge at an open
            state, or is without nodes while neither ``size`` nor ``names`` is provided.
        """
        return cls._from_networkx(graph, size, names, "graph")

    @classmethod
    def _from_networkx(
        cls, graph: networkx.Graph[Any], size: int | None, names: Sequence[Hashable] | None, argument: str
    ) -> PolicyGraph:
        """`from_networkx`, with the name of the caller's parameter for messages."""
        check_undirected(graph, argument)
        if names is None and size is None and not len(graph):
            raise PolicyError(f"{argument} must have nodes if size is not provided, got an empty graph")
        count = len(names) if names is not None else graph.number_of_nodes() if size is None else size
        index: dict[Hashable, int] = {}
        # A string is never the number of a state, so names and numbers cannot be confused.
        if names is None or all(isinstance(name, str) for name in names):
            index = {state: state for state in range(count)}
        index.update({name: state for state, name in enumerate(() if names is None else names)})
        unknown = [node for node in graph.nodes if node not in index]
        if unknown:
            or_names = f" or their names, such as {shorten(names[0])}" if names else ""
            raise PolicyError(
                f"{argument} must have nodes that are among the {count:,} states 0 to {count - 1}{or_names}, got node "
                f"{shown(unknown[0])}: remove it, or rename it by networkx.relabel_nodes"
            )
        policy = cls(ListedEdges(count, [(index[a], index[b]) for a, b in graph.edges() if a != b]))
        open_ = [index[node] for node, attributes in graph.nodes(data=True) if attributes.get("open") is True]
        return policy.with_open(open_) if open_ else policy

    @classmethod
    @checked
    def from_json(
        cls, path: str | Path, size: int | None = None, names: Sequence[Hashable] | None = None
    ) -> PolicyGraph:
        """A graph from a node-link JSON file, as networkx writes it.

        Parameters
        ----------
        path
            The file.
        size, names
            As in `from_networkx`.
        """
        try:
            graph = read_node_link(read_json(read_document(path)))
        except PolicyError as problem:
            raise DataFileError(path, f"{problem}; write one with PolicyGraph.to_json") from None
        return cls.from_networkx(graph, size, names)

    # ---- asking graphs -------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """The number of states ``N``, restricted or not."""
        return self._edge_set.size

    @property
    def node_mask(self) -> BoolArray:
        """Which states the graph holds, ``(N,)``: all, unless it was restricted. Read-only.

        One that it does not hold has no edge. It counts as any other state without an edge: where it is possible it is
        exposed, and repaired.
        """
        return self._nodes

    @cached_property
    def open(self) -> BoolArray:
        """Which states are open, ``(N,)``: released as they are, and called neither exposed nor protected. Read-only.

        An open state has no edge, so that releasing it as it is costs nothing on any; see `with_open`.
        """
        return locked(np.zeros(self.size, dtype=np.bool_) if self._open is None else self._open & self._nodes)

    @checked
    def components(self, constraint: npt.ArrayLike | None = None) -> IntArray:
        """The number of each state's connected component, ``(N,)``, among the possible states; -1 outside.

        Counted from 0 in the order of their smallest states. A state without an edge is one of its own.

        Without a ``constraint``, ``(N,)`` booleans, the possible states are those that the graph holds.

        Parameters
        ----------
        constraint
            ``(N,)`` booleans: the possible states; left out, those that the graph holds.

        Returns
        -------
        IntArray
            ``(N,)``: component numbers, -1 outside the constraint.

        Examples
        --------
        >>> PolicyGraph.categorical([0, 1, 1, 2, 2, 2]).components([True, False, True, True, False, True]).tolist()
        [0, -1, 1, 2, -1, 2]
        """
        nodes = self._nodes if constraint is None else as_constraint(constraint, self.size)
        first = self.restrict(nodes)._edge_set.components(nodes)
        number = np.cumsum(first == np.arange(self.size)) - 1
        return np.where(first >= 0, number[first], -1)

    def crosses(self, labels: IntArray, constraint: BoolArray) -> bool:
        """Whether an edge between possible states joins different labels ``(N,)``; shares nothing with `components`.

        Parameters
        ----------
        labels
            ``(N,)`` integers.
        constraint
            ``(N,)`` booleans: the possible states.

        Returns
        -------
        bool
            Whether there is such an edge.
        """
        nodes = self._nodes & constraint
        within = labels[nodes]
        return bool((within != within[:1]).any()) and self._edge_set.crosses(labels, nodes)

    @property
    def content_hash(self) -> str:
        """A hash of what defines the graph, in hexadecimal: graphs of equal hash are the same.

        The same graph made in another way (`complete` and `categorical` with one label, say) may have another hash.
        """
        parts = () if self._open is None else ("open", self.open)
        return content_hash("policy", self._edge_set.content_hash, self._nodes, *parts)

    def terms(self) -> list[dict[str, Any]]:
        """The edges as plain JSON values, as a certificate has them: near cells, groups, listed pairs.

        Returns
        -------
        list of dict
            Terms; an edge is one of any of them.

        Raises
        ------
        PolicyError
            When edges have to be listed, and are more than two million.
        """
        return self._edge_set.terms(self._nodes)

    def edge_array(self) -> IntArray:
        """All edges ``(m, 2)``, the smaller state first, in lexicographic order.

        Returns
        -------
        IntArray
            ``(m, 2)``: pairs of states.

        Raises
        ------
        PolicyError
            When there may be more than fifty million; use `differences`, `connects` or a smaller constraint.
        """
        possible = int(self._nodes.sum())
        bound = min(self._edge_set.count_bound(), possible * (possible - 1) // 2)
        if bound > _LISTABLE:
            raise PolicyError(f"listing up to {bound} edges would not fit; restrict the graph, or use differences()")
        edges = np.concatenate([np.zeros((0, 2), dtype=np.int64), *self.edge_blocks()])
        # One number per edge, ordered as the edges are: `numpy.unique` takes ten times as long and more.
        keys = np.sort(edges[:, 0] * self.size + edges[:, 1])
        keys = keys[np.diff(keys, prepend=-1) > 0]
        return np.stack(np.divmod(keys, self.size), axis=1)

    def edge_blocks(self) -> Iterator[IntArray]:
        """All edges a block ``(m, 2)`` at a time, the smaller state first, for graphs too dense to list.

        An edge may come more than once; nothing is said of the order.

        Returns
        -------
        iterator of IntArray
            Blocks ``(m, 2)`` of pairs of states.
        """
        return self._edge_set.chunks(self._nodes)

    @checked
    def connects(self, first: npt.ArrayLike, second: npt.ArrayLike) -> BoolArray:
        """Whether each pair of states is an edge.

        Parameters
        ----------
        first, second
            Integers from 0 to ``size - 1``: ``(m,)`` each, or one for all.

        Returns
        -------
        BoolArray
            ``(m,)``: whether each pair is an edge.
        """
        a, b = (np.atleast_1d(as_integers(ends, "states", PolicyError)) for ends in (first, second))
        if a.ndim != 1 or b.ndim != 1 or (a.shape != b.shape and 1 not in (len(a), len(b))):
            raise PolicyError(f"states have shapes {a.shape} and {b.shape}; give one of each for every pair")
        a, b = np.broadcast_arrays(a, b)
        _check_states(np.concatenate([a, b]), self.size)
        return np.asarray(self._edge_set.connects(a, b) & self._nodes[a] & self._nodes[b] & (a != b))

    @property
    def is_empty(self) -> bool:
        """Whether no two states are connected."""
        return self._edge_set.is_empty(self._nodes)

    def connected(self) -> BoolArray:
        """Which states have an edge, ``(N,)``.

        Returns
        -------
        BoolArray
            ``(N,)``: whether each state has an edge.
        """
        return self._edge_set.connected(self._nodes) & self._nodes

    @checked
    def differences(self, f: npt.ArrayLike | Measurements) -> FloatArray:
        """Enough of the differences over edges to span their hull, ``(k, d)``, in the unit of ``f``.

        Every difference over an edge lies in the symmetric convex hull of the rows, and every row is plus or minus the
        difference over an edge, or zero. (All differences are ``f[edges[:, 0]] - f[edges[:, 1]]``.)

        Parameters
        ----------
        f
            ``(N, d)`` measurements.

        Returns
        -------
        FloatArray
            ``(k, d)``: differences that span the hull; none for a graph without edges.
        """
        measurements = self.check_measurements(f)
        return self._edge_set.spanning(measurements, self._nodes) * measurements.spacing

    def hull(self, measurements: Measurements) -> SensitivityHull:
        """The hull of all differences, in the coordinates of some measurements: integers on a lattice.

        Parameters
        ----------
        measurements
            What is measured in each state.

        Returns
        -------
        SensitivityHull
            The sensitivity hull in their coordinates.
        """
        return self._edge_set.hull(measurements, self._nodes)

    def widest(self, points: FloatArray, gauge: Gauge, constraint: BoolArray | None = None) -> float:
        """The largest gauge of a difference of points ``(N, d)`` over an edge, or some number up to one.

        Edges count whose ends are both possible. It shares nothing with `spanning`, which it is there to check.

        Parameters
        ----------
        points
            ``(N, d)``.
        gauge
            The independent check of the body of noise.
        constraint
            ``(N,)`` booleans: the possible states; left out, those that the graph holds.

        Returns
        -------
        float
            The largest gauge, exact wherever it is above one; 0.0 without an edge.
        """
        nodes = self._nodes if constraint is None else self._nodes & constraint
        return self._edge_set.widest(points, nodes, gauge) if nodes.any() else 0.0

    def check_measurements(self, f: npt.ArrayLike | Measurements) -> Measurements:
        """The measurements, refused where there is not one for every state.

        Parameters
        ----------
        f
            ``(N, d)`` measurements.

        Returns
        -------
        Measurements
            The same, for as many states as the graph has.
        """
        measurements = Measurements.of(f)
        if measurements.size != self.size:
            raise PolicyError(f"there are {measurements.size} measurements for a policy over {self.size} states")
        return measurements

    # ---- changing graphs -----------------------------------------------------------------------------------------

    def restrict(self, constraint: npt.ArrayLike | None) -> PolicyGraph:
        """``G ∩ C``: the states of ``C`` and the edges between them; none where the graph does not hold both ends.

        Parameters
        ----------
        constraint
            ``(N,)`` booleans: the states to keep.

        Returns
        -------
        PolicyGraph
            The graph cut down to them, over the same states.
        """
        wanted = as_constraint(constraint, self.size)
        held = self._holds_all or not (wanted & ~self._nodes).any()
        edge_set = self._edge_set if held else UnionEdges(((self._edge_set, self._nodes),))
        return PolicyGraph(edge_set, wanted, None if self._open is None else self.open & wanted)

    def _keep(self, states: BoolArray) -> PolicyGraph:
        return PolicyGraph(self._edge_set, states & self._nodes, None if self._open is None else self.open & states)

    @checked
    def with_open(self, states: npt.ArrayLike) -> PolicyGraph:
        """The graph with more open states: places that are released as they are.

        Parameters
        ----------
        states
            Their numbers, or ``(N,)`` booleans. None of them may have an edge.

        Returns
        -------
        PolicyGraph
            The same graph with these states open.

        Raises
        ------
        PolicyError
            For a state that does not exist, or that an edge connects: what is hidden among others is not open.

        Examples
        --------
        >>> graph = PolicyGraph.categorical([0, 0, -1, -1]).with_open([2, 3])
        >>> graph.open.tolist()
        [False, False, True, True]
        """
        given = np.asarray(states)
        if given.dtype == np.bool_ and given.shape != (self.size,):
            raise PolicyError(f"open states are booleans of shape {given.shape}; give one for each of {self.size}")
        numbers = as_integers(np.flatnonzero(given) if given.dtype == np.bool_ else given, "open states", PolicyError)
        _check_states(numbers.ravel(), self.size)
        open_ = self.open.copy()
        open_[numbers.ravel()] = True
        return PolicyGraph(self._edge_set, self._nodes, open_)._check_open()

    def with_edges(self, added: Sequence[tuple[int, int]]) -> PolicyGraph:
        """The graph with more edges; their ends join its nodes, and are open no longer.

        Parameters
        ----------
        added
            Pairs of states.

        Returns
        -------
        PolicyGraph
            The graph with these edges too.
        """
        if isinstance(added, tuple) and not added:
            return self
        ends = (more := PolicyGraph.from_edges(self.size, added)).connected()
        return PolicyGraph(self._edge_set, self._nodes, self.open & ~ends) | more.restrict(ends)

    def __or__(self, other: PolicyLike) -> PolicyGraph:
        """The union of nodes, of edges and of open states, none of which may be connected."""
        other = self._operand(other)
        parts = ((self._edge_set, self._nodes), (other._edge_set, other._nodes))
        return PolicyGraph(UnionEdges(parts), self._nodes | other._nodes, self.open | other.open)._check_open()

    def __and__(self, other: PolicyLike) -> PolicyGraph:
        """The intersection of nodes and of edges; open is what is open in both."""
        other = self._operand(other)
        edge_set = IntersectionEdges(self._edge_set, other._edge_set)
        return PolicyGraph(edge_set, self._nodes & other._nodes, self.open & other.open)

    def __ror__(self, other: networkx.Graph[Any]) -> PolicyGraph:
        """``other | self`` for a networkx graph."""
        return self._operand(other) | self

    def __rand__(self, other: networkx.Graph[Any]) -> PolicyGraph:
        """``other & self`` for a networkx graph."""
        return self._operand(other) & self

    def _check_open(self) -> PolicyGraph:
        """The graph itself, refused where an open state has an edge."""
        if self.has_open and len(both := np.flatnonzero(self.open & self.connected())):
            raise PolicyError(
                f"state {int(both[0])} is open and connected by the policy ({len(both)} such in all); what is released "
                "as it is cannot be hidden among others: leave it out of one of the two"
            )
        return self

    def _operand(self, other: PolicyLike) -> PolicyGraph:
        """The other operand of ``|`` or ``&``, over the same states."""
        graph = as_policy(other, self.size, argument="the other graph")
        if self.size != graph.size:
            raise PolicyError(f"policies over {self.size} and {graph.size} states cannot be combined")
        return graph

    @checked
    def to_json(self, path: str | Path) -> None:
        """Write the graph as node-link JSON, which networkx reads; in place of a file that is there.

        Parameters
        ----------
        path
            The file to write.
        """
        import networkx

        data = networkx.node_link_data(self.to_networkx(), edges="edges")
        write_text(path, json.dumps(data), overwrite=True)

    def __repr__(self) -> str:
        return f"PolicyGraph({type(self._edge_set).__name__}, states={int(self._nodes.sum())} of {self.size})"


def as_policy(
    policy: PolicyLike, size: int, names: Sequence[str] | None = None, argument: str = "policy"
) -> PolicyGraph:
    """Convert a policy graph of this package or of networkx to a `PolicyGraph`.

    Parameters
    ----------
    policy
        A `PolicyGraph`, which is returned unchanged, or a `networkx.Graph` as `PolicyGraph.from_networkx` takes it.
    size
        The number of states ``N`` of a networkx graph. States that it lacks have no edges.
    names
        The names of the ``N`` states, where they have names.
    argument
        The name of the caller's parameter, for messages.

    Returns
    -------
    PolicyGraph
        The policy.

    Raises
    ------
    PolicyError
        If the policy is not a graph, or as `PolicyGraph.from_networkx` says.
    """
    if isinstance(policy, PolicyGraph):
        return policy
    if not is_networkx(policy):
        raise PolicyError(f"{argument} must be a PolicyGraph or a networkx.Graph, got {shown(policy)}")
    return PolicyGraph._from_networkx(policy, size, names, argument)


def over_measurements(graph: PolicyLike, f: npt.ArrayLike | Measurements) -> tuple[PolicyGraph, Measurements]:
    """Convert a policy and the measurements in its states, and check that they are over as many states.

    Parameters
    ----------
    graph
        A policy as a graph, see `as_policy`. One of networkx is over as many states as there are measurements.
    f
        ``(N, d)`` measurements.

    Returns
    -------
    tuple
        The policy graph, and the measurements.

    Raises
    ------
    PolicyError
        If the policy is not a graph, or over another number of states.
    CoordinateError
        If the measurements are not finite numbers.
    """
    measurements = Measurements.of(f)
    policy = as_policy(graph, measurements.size, argument="graph")
    return policy, policy.check_measurements(measurements)


def names_of(space: StateSpace | None) -> tuple[str, ...] | None:
    """The names of a space's states; None where they have numbers alone.

    Parameters
    ----------
    space
        The states, or None.

    Returns
    -------
    tuple of str or None
        ``N`` names.
    """
    return tuple(space.names) if isinstance(space, Places) else None


def read_node_link(data: Any) -> networkx.Graph[Any]:
    """Convert the content of node-link JSON, as networkx writes it, to an undirected graph.

    Parameters
    ----------
    data
        Plain JSON values: a mapping with ``nodes`` and ``edges`` (or ``links``).

    Returns
    -------
    networkx.Graph
        The graph.

    Raises
    ------
    PolicyError
        If the values are not such a mapping.
    """
    import networkx

    try:
        key = "edges" if "edges" in data else "links"
        graph: networkx.Graph[Any] = networkx.node_link_graph(data, edges=key, directed=False, multigraph=False)
    except (ValueError, KeyError, TypeError, AttributeError, networkx.NetworkXError) as problem:
        raise PolicyError(f"not a node-link graph ({one_line(problem)})") from None
    return graph


def check_undirected(graph: networkx.Graph[Any], argument: str) -> None:
    """Refuse a directed graph and one with parallel edges.

    Parameters
    ----------
    graph
        A graph of networkx.
    argument
        The name of the caller's parameter, for the message.

    Raises
    ------
    PolicyError
        If it is either.
    """
    if graph.is_directed() or graph.is_multigraph():
        raise PolicyError(
            f"{argument} must be an undirected networkx.Graph without parallel edges, got a {type(graph).__name__}: "
            f"convert it by networkx.Graph({argument})"
        )


def is_networkx(value: object) -> TypeGuard[networkx.Graph[Any]]:
    """Whether a value is a graph of networkx.

    Parameters
    ----------
    value
        Any value.

    Returns
    -------
    bool
        Without importing networkx: before networkx is imported, none of its graphs exists.
    """
    networkx = sys.modules.get("networkx")
    return networkx is not None and isinstance(value, networkx.Graph)


def _is_missing(label: Any) -> bool:
    return label is None or label != label or (isinstance(label, int) and label < 0)


def _check_states(states: IntArray, size: int) -> None:
    if len(outside := states[(states < 0) | (states >= size)]):
        raise PolicyError(f"the policy names state {int(outside[0])}, which does not exist; states are 0 to {size - 1}")
