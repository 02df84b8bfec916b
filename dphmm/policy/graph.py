"""Policy graphs, which connect states that must stay indistinguishable (Definition 4.2)."""

from __future__ import annotations

import json
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_constraint, as_integers, hash_content, make_read_only
from dphmm.errors import DataFileError, PolicyError, StochasticError
from dphmm.geometry.gauge import Gauge
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.sensitivity_hull import SensitivityHull
from dphmm.policy.cliques import CliqueEdges
from dphmm.policy.edges import EdgeSet, IntersectionEdges, ListedEdges, UnionEdges
from dphmm.policy.radius import RadiusEdges
from dphmm.policy.read_only_graph import ReadOnlyGraph
from dphmm.space.states import Places, StateSpace
from dphmm.stochastic_matrix import as_csr
from dphmm.tables import read_document, write_text
from dphmm.tables.json_toml import read_json
from dphmm.tables.values import shorten, shorten_message, shorten_repr
from dphmm.tolerances import MAX_SCALE, MIN_SCALE
from dphmm.validation import PositiveInt, check_arguments

if TYPE_CHECKING:
    import networkx
    from scipy.sparse import csr_array

# A policy graph of this package, or an undirected graph of networkx.
PolicyLike: TypeAlias = "PolicyGraph | networkx.Graph[Any]"

# An edge takes 16 bytes in the array, 0.8 GB in total, and several times as much while the array is sorted.
_MAX_LISTED_EDGES = 50_000_000


@check_arguments
class PolicyGraph(ReadOnlyGraph):
    """An undirected graph over states, in which edges connect indistinguishable states.

    The states are ``0 .. size - 1``. A state without an edge may be declared `open`: it is released unchanged.

    Graphs are created by `complete`, `categorical`, `utility`, `transition`, `from_groups`, `from_edges`,
    `from_networkx` or `from_json`, combined by ``a | b`` and ``a & b``, and restricted to a constraint set by
    `restrict`. They are immutable. Dense graphs are not listed edge by edge, except by `edge_array` and `to_networkx`.

    networkx's algorithms accept it as a graph: it has the read-only part of the interface of `networkx.Graph`. Only
    `size` differs: it is the number of states here, and counts edges in networkx. Pass `to_networkx()` to the few
    algorithms that call it, and to those that return a graph of the same class, such as `minimum_spanning_tree`.

    Parameters
    ----------
    edge_set
        The edges, as created by the constructors above.
    nodes
        ``(N,)`` booleans: the states that the graph contains. Defaults to all.
    open_
        ``(N,)`` booleans: the states that are released unchanged. Defaults to none.

    Raises
    ------
    PolicyError
        If no edges are passed, as by algorithms of networkx that build a new graph.

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
        self._contains_all = nodes is None
        self._nodes: BoolArray = make_read_only(
            np.ones(edge_set.size, dtype=np.bool_) if nodes is None else nodes.copy()
        )
        self._open: BoolArray | None = None if open_ is None or not open_.any() else make_read_only(open_.copy())
        # Whether any state is open.
        self.has_open = self._open is not None and bool((self._open & self._nodes).any())
        # Whether every two states of the graph are known to be adjacent.
        self.is_complete = edge_set.is_complete

    # ---- constructors ----------------------------------------------------------------------------------------------

    @classmethod
    @check_arguments
    def complete(cls, size: PositiveInt) -> PolicyGraph:
        """Create the complete graph: every state must be indistinguishable from all others.

        Parameters
        ----------
        size
            The number of states, at least 1.

        Returns
        -------
        PolicyGraph
            The graph.
        """
        return cls(CliqueEdges(size, np.array([0, size]), np.arange(size)))

    @classmethod
    @check_arguments
    def categorical(cls, labels: Sequence[Hashable] | npt.ArrayLike) -> PolicyGraph:
        """Connect states with equal labels.

        Parameters
        ----------
        labels
            One for each state. ``None``, NaN and negative integers mean 'no category': such a state has no edges.

        Returns
        -------
        PolicyGraph
            The graph.

        Raises
        ------
        PolicyError
            If there is no label, labels are not one-dimensional, or one is not hashable.
        """
        # NumPy would convert numbers next to strings to strings, large integers to floats, and tuples to rows.
        values: npt.NDArray[Any]
        if isinstance(labels, list | tuple) and not all(
            isinstance(label, int | np.integer) and -(2**63) <= label < 2**63 for label in labels
        ):
            values = np.fromiter(labels, dtype=np.object_)
        else:
            values = np.asarray(labels)
        if values.ndim != 1 or not len(values):
            raise PolicyError(f"labels must be one-dimensional and not empty, got shape {values.shape}")
        if values.dtype.kind == "u":  # may exceed 64 signed bits, as identifiers of S2 cells
            values = np.unique(values, return_inverse=True)[1]
        if values.dtype.kind == "i":
            codes = values.astype(np.int64)
        else:
            entries = values.tolist()
            if not all(isinstance(label, Hashable) for label in entries):
                raise PolicyError("labels must be hashable, such as strings or numbers, got a list or a mapping")
            code_of = {label: i for i, label in enumerate(dict.fromkeys(x for x in entries if not _is_missing(x)))}
            codes = np.array([-1 if _is_missing(x) else code_of[x] for x in entries], dtype=np.int64)
        return cls(CliqueEdges.from_labels(codes))

    @classmethod
    @check_arguments
    def utility(cls, f: npt.ArrayLike | Measurements, radius: float, cell: float = 0.0) -> PolicyGraph:
        """Connect states that contain two locations at most ``radius`` apart (Euclidean, closed).

        Parameters
        ----------
        f
            ``(N, d)`` measurements, or the coordinates of the states.
        radius
            In the unit of ``f``; kilometres for locations. Zero, or from 1e-30 to 1e30.
        cell
            The side of the axis-parallel cells centred at the states, in the unit of ``f``. Zero, or from 1e-30 to
            1e30. With 0 states are points, and measurements at most ``radius`` apart are connected. The paper (§4.2)
            uses this rule for the centres of cells; for real locations its guarantee covers a smaller distance.

        Returns
        -------
        PolicyGraph
            The graph.

        Raises
        ------
        PolicyError
            If the radius or the cell is out of range.
        """
        for name, value in (("radius", radius), ("cell", cell)):
            if not (value == 0 or MIN_SCALE <= value <= MAX_SCALE):
                raise PolicyError(f"{name} must be zero or a number from {MIN_SCALE:g} to {MAX_SCALE:g}, got {value}")
        return cls(RadiusEdges(Measurements.from_values(f), float(radius), float(cell)))

    @classmethod
    @check_arguments
    def transition(cls, transition: npt.ArrayLike | csr_array) -> PolicyGraph:
        """Connect states that share a possible predecessor (one-step transition protection, §4.2).

        Parameters
        ----------
        transition
            ``(N, N)`` transition probabilities, dense or sparse. Only their support is used.

        Returns
        -------
        PolicyGraph
            The graph.

        Raises
        ------
        PolicyError
            If the matrix is not square, or an entry is negative or not a number.
        """
        try:
            matrix = as_csr(transition, "transition matrix")
        except StochasticError as problem:
            raise PolicyError(str(problem)) from None
        if matrix.shape[0] != matrix.shape[1]:
            raise PolicyError(f"transition must be a square matrix, got shape {matrix.shape}")
        if not (matrix.data >= 0).all():  # also NaN, as in the row of a state without a count
            raise PolicyError("transition must have non-negative entries, got NaN or a negative number")
        positive = matrix.data > 0
        # Row i of the matrix becomes group i: the possible successors of i. Stored zeros are not transitions.
        starts = np.concatenate([[0], np.cumsum(positive)])[matrix.indptr]
        return cls(CliqueEdges(int(matrix.shape[0]), starts, matrix.indices[positive].astype(np.int64)))

    @classmethod
    @check_arguments
    def from_groups(cls, size: PositiveInt, groups: Sequence[npt.ArrayLike]) -> PolicyGraph:
        """Connect all states within each group. Groups may overlap.

        Parameters
        ----------
        size
            The number of states.
        groups
            The states of each group, integers from 0 to ``size - 1``.

        Returns
        -------
        PolicyGraph
            The graph.

        Raises
        ------
        PolicyError
            If a state is not an integer in the range.
        """
        members = [np.unique(as_integers(group, "the states of a group", PolicyError)) for group in groups]
        all_members = np.concatenate([np.zeros(0, dtype=np.int64), *members])
        _check_states(all_members, size)
        starts = np.cumsum([0, *(len(group) for group in members)])
        return cls(CliqueEdges(size, starts, all_members))

    @classmethod
    @check_arguments
    def from_edges(cls, size: PositiveInt, edges: npt.ArrayLike) -> PolicyGraph:
        """Create a graph from a list of edges.

        Parameters
        ----------
        size
            The number of states.
        edges
            ``(m, 2)`` integers from 0 to ``size - 1``. Edges may be repeated, in either direction.

        Returns
        -------
        PolicyGraph
            The graph.

        Raises
        ------
        PolicyError
            If a state is outside ``0 .. size - 1``, or an edge is a self-loop.
        """
        pairs = as_integers(edges, "edges", PolicyError)
        if pairs.size and (pairs.ndim != 2 or pairs.shape[1] != 2):
            raise PolicyError(f"edges must have shape (m, 2), got {pairs.shape}")
        pairs = pairs.reshape(-1, 2)
        _check_states(pairs.ravel(), size)
        loops = pairs[pairs[:, 0] == pairs[:, 1]]
        if len(loops):
            raise PolicyError(f"self-loops are not allowed, got edge {loops[0].tolist()}")
        return cls(ListedEdges(size, pairs))

    @classmethod
    @check_arguments
    def from_networkx(
        cls, graph: networkx.Graph[Any], size: PositiveInt | None = None, names: Sequence[Hashable] | None = None
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

        Returns
        -------
        PolicyGraph
            The graph.

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
        """Convert a graph as `from_networkx` does, with a parameter name for messages."""
        check_undirected(graph, argument)
        if names is None and size is None and not len(graph):
            raise PolicyError(f"{argument} must have nodes if size is not provided, got an empty graph")
        count = len(names) if names is not None else graph.number_of_nodes() if size is None else size
        if size not in (None, count):
            raise PolicyError(f"names must have one entry for each of {size} states, got {count}")
        if names is not None and (len(set(names)) if all(isinstance(name, Hashable) for name in names) else 0) < count:
            raise PolicyError(f"names must be hashable and different, got {shorten(names)}")
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
                f"{shorten_repr(unknown[0])}: remove it, or rename it by networkx.relabel_nodes"
            )
        policy = cls(ListedEdges(count, [(index[a], index[b]) for a, b in graph.edges() if a != b]))
        open_ = [index[node] for node, attributes in graph.nodes(data=True) if is_open(attributes)]
        return policy.with_open(open_) if open_ else policy

    @classmethod
    @check_arguments
    def from_json(
        cls, path: str | Path, size: int | None = None, names: Sequence[Hashable] | None = None
    ) -> PolicyGraph:
        """Read a graph from a node-link JSON file, as networkx writes it.

        Parameters
        ----------
        path
            The file.
        size, names
            As in `from_networkx`.

        Returns
        -------
        PolicyGraph
            The graph.

        Raises
        ------
        DataFileError
            If the file is not such a file.
        PolicyError
            If the graph is invalid; see `from_networkx`.
        """
        try:
            form = "node-link JSON, which PolicyGraph.to_json writes"
            graph = read_node_link(read_json(read_document(path), form))
        except PolicyError as problem:
            raise DataFileError(path, f"{problem}; write one with PolicyGraph.to_json") from None
        return cls.from_networkx(graph, size, names)

    # ---- queries ---------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """The number of states ``N``, restricted or not."""
        return self._edge_set.size

    @property
    def node_mask(self) -> BoolArray:
        """The mask of the states that the graph contains, ``(N,)``, read-only.

        All states, unless the graph was restricted. Other states have no edges. Like any state without an edge, such a
        state is exposed if it is possible, and repaired.
        """
        return self._nodes

    @cached_property
    def open(self) -> BoolArray:
        """The mask of the open states, ``(N,)``, read-only. They are released unchanged.

        Open states are neither exposed nor protected. They have no edges, so releasing them unchanged violates the
        guarantee of no edge; see `with_open`.
        """
        return make_read_only(np.zeros(self.size, dtype=np.bool_) if self._open is None else self._open & self._nodes)

    @check_arguments
    def components(self, constraint: npt.ArrayLike | None = None) -> IntArray:
        """Compute the connected components of the graph restricted to the possible states.

        Components are counted from 0 in the order of their smallest states. A state without an edge is a separate
        component.

        Parameters
        ----------
        constraint
            ``(N,)`` booleans: the possible states. Defaults to the states that the graph contains.

        Returns
        -------
        IntArray
            ``(N,)``: component indices, -1 outside the constraint set.

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
        """Return whether an edge between possible states connects different labels.

        This is the independent check of `components`, with which it shares no code.

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
        """A hash of the graph's definition, in hexadecimal. Graphs with equal hashes are equal.

        Equal graphs may have different hashes if they were created differently, such as by `complete` and by
        `categorical` with one label.
        """
        parts = () if self._open is None else ("open", self.open)
        return hash_content("policy", self._edge_set.content_hash, self._nodes, *parts)

    def terms(self) -> list[dict[str, Any]]:
        """Return the edges as terms of a certificate, in plain JSON values.

        Returns
        -------
        list of dict
            Terms. The edges of the graph are the union over the terms.

        Raises
        ------
        PolicyError
            If edges have to be listed, and there are more than two million.
        """
        return self._edge_set.list_terms(self._nodes)

    def edge_array(self) -> IntArray:
        """Return all edges in lexicographic order.

        Returns
        -------
        IntArray
            ``(m, 2)``: pairs of states, the smaller state first.

        Raises
        ------
        PolicyError
            If there may be more than fifty million edges. Use `differences`, `connects` or a smaller constraint set.
        """
        possible = int(self._nodes.sum())
        bound = min(self._edge_set.bound_num_edges(), possible * (possible - 1) // 2)
        if bound > _MAX_LISTED_EDGES:
            raise PolicyError(
                f"a graph must have at most {_MAX_LISTED_EDGES} edges to list them, got up to {bound}: restrict it, or "
                "use differences()"
            )
        edges = np.concatenate([np.zeros((0, 2), dtype=np.int64), *self.edge_blocks()])
        # One number for each edge, in the order of the edges: `numpy.unique` is over ten times slower.
        keys = np.sort(edges[:, 0] * self.size + edges[:, 1])
        keys = keys[np.diff(keys, prepend=-1) > 0]
        return np.stack(np.divmod(keys, self.size), axis=1)

    def edge_blocks(self) -> Iterator[IntArray]:
        """Iterate over all edges in blocks, for graphs that are too dense to list.

        Edges may be repeated and are in no particular order.

        Returns
        -------
        iterator of IntArray
            Blocks ``(m, 2)`` of pairs of states, the smaller state first.
        """
        return self._edge_set.iterate_chunks(self._nodes)

    @check_arguments
    def connects(self, first: npt.ArrayLike, second: npt.ArrayLike) -> BoolArray:
        """Return whether each pair of states is an edge.

        Parameters
        ----------
        first, second
            Integers from 0 to ``size - 1``: ``(m,)`` each, or one that is paired with all others.

        Returns
        -------
        BoolArray
            ``(m,)``: whether each pair is an edge.

        Raises
        ------
        PolicyError
            If a state is not an integer in the range, or the numbers of states differ.
        """
        a, b = (np.atleast_1d(as_integers(ends, "states", PolicyError)) for ends in (first, second))
        if a.ndim != 1 or b.ndim != 1 or (a.shape != b.shape and 1 not in (len(a), len(b))):
            raise PolicyError(f"first and second must have one state for each pair, got shapes {a.shape} and {b.shape}")
        a, b = np.broadcast_arrays(a, b)
        _check_states(np.concatenate([a, b]), self.size)
        return np.asarray(self._edge_set.connects(a, b) & self._nodes[a] & self._nodes[b] & (a != b))

    @property
    def is_empty(self) -> bool:
        """Whether the graph has no edges."""
        return self._edge_set.is_empty(self._nodes)

    def find_connected_states(self) -> BoolArray:
        """Return the mask of the states with at least one edge.

        Returns
        -------
        BoolArray
            ``(N,)``: whether each state has an edge.
        """
        return self._edge_set.find_connected_states(self._nodes) & self._nodes

    @check_arguments
    def differences(self, f: npt.ArrayLike | Measurements) -> FloatArray:
        """Return differences over edges that span the sensitivity hull, in the unit of ``f``.

        The differences over all edges are ``f[edges[:, 0]] - f[edges[:, 1]]``. Each is contained in the symmetric
        convex hull of the returned rows. Each row is plus or minus the difference over an edge, or zero.

        Parameters
        ----------
        f
            ``(N, d)`` measurements.

        Returns
        -------
        FloatArray
            ``(k, d)``: differences that span the hull; no row for a graph without edges.
        """
        measurements = self.check_measurements(f)
        return self._edge_set.find_spanning_differences(measurements, self._nodes) * measurements.spacing

    def hull(self, measurements: Measurements) -> SensitivityHull:
        """Return the sensitivity hull in the coordinates of the measurements.

        Parameters
        ----------
        measurements
            The measurements of the states.

        Returns
        -------
        SensitivityHull
            The hull of the differences over all edges. On a lattice its coordinates are integers.
        """
        return self._edge_set.hull(measurements, self._nodes)

    def compute_max_gauge(self, points: FloatArray, gauge: Gauge, constraint: BoolArray | None = None) -> float:
        """Return the largest gauge of a difference of points over an edge between possible states.

        This is the independent check of `differences`, with which it shares no code.

        Parameters
        ----------
        points
            ``(N, d)``: the points of the states.
        gauge
            The gauge of the noise body.
        constraint
            ``(N,)`` booleans: the possible states. Defaults to the states that the graph contains.

        Returns
        -------
        float
            The largest gauge. It is exact if above one, otherwise some number up to one; 0.0 without an edge.
        """
        nodes = self._nodes if constraint is None else self._nodes & constraint
        return self._edge_set.compute_max_gauge(points, nodes, gauge) if nodes.any() else 0.0

    def check_measurements(self, f: npt.ArrayLike | Measurements) -> Measurements:
        """Convert measurements, and check that there is one for every state.

        Parameters
        ----------
        f
            ``(N, d)`` measurements.

        Returns
        -------
        Measurements
            The measurements of the ``N`` states.

        Raises
        ------
        PolicyError
            If there is not one measurement for each state.
        CoordinateError
            If the measurements are not finite numbers, one row for each state.
        """
        measurements = Measurements.from_values(f)
        if measurements.size != self.size:
            raise PolicyError(
                f"f must have one row for each of {self.size} states of the policy, got {measurements.size}"
            )
        return measurements

    # ---- derived graphs --------------------------------------------------------------------------------------------

    def restrict(self, constraint: npt.ArrayLike | None) -> PolicyGraph:
        """Restrict the graph to a constraint set: ``G ∩ C``.

        Parameters
        ----------
        constraint
            ``(N,)`` booleans: the states to keep. States that the graph does not contain are added without edges.

        Returns
        -------
        PolicyGraph
            The restricted graph, over the same ``N`` states.
        """
        nodes = as_constraint(constraint, self.size)
        # The edge set contains the edges of all states, including those that the graph does not contain. If the
        # constraint set contains such a state, a union of one part removes its edges.
        is_contained = self._contains_all or not (nodes & ~self._nodes).any()
        edge_set = self._edge_set if is_contained else UnionEdges(((self._edge_set, self._nodes),))
        return PolicyGraph(edge_set, nodes, None if self._open is None else self.open & nodes)

    def _keep(self, states: BoolArray) -> PolicyGraph:
        return PolicyGraph(self._edge_set, states & self._nodes, None if self._open is None else self.open & states)

    @check_arguments
    def with_open(self, states: npt.ArrayLike) -> PolicyGraph:
        """Return the graph with additional open states, which are released unchanged.

        Parameters
        ----------
        states
            The indices of the states, or ``(N,)`` booleans. None of them may have an edge.

        Returns
        -------
        PolicyGraph
            The graph with these states open.

        Raises
        ------
        PolicyError
            If a state does not exist or has an edge: protected states cannot be open.

        Examples
        --------
        >>> graph = PolicyGraph.categorical([0, 0, -1, -1]).with_open([2, 3])
        >>> graph.open.tolist()
        [False, False, True, True]
        """
        selection = np.asarray(states)
        if selection.dtype == np.bool_ and selection.shape != (self.size,):
            raise PolicyError(f"a mask of open states must have shape ({self.size},), got {selection.shape}")
        numbers = as_integers(
            np.flatnonzero(selection) if selection.dtype == np.bool_ else selection, "open states", PolicyError
        )
        _check_states(numbers.ravel(), self.size)
        open_ = self.open.copy()
        open_[numbers.ravel()] = True
        return PolicyGraph(self._edge_set, self._nodes, open_)._check_open()

    def with_edges(self, added: Sequence[tuple[int, int]]) -> PolicyGraph:
        """Return the graph with additional edges. Their endpoints become nodes that are not open.

        Parameters
        ----------
        added
            Pairs of states.

        Returns
        -------
        PolicyGraph
            The graph with these edges.
        """
        if isinstance(added, tuple) and not added:
            return self
        more = PolicyGraph.from_edges(self.size, added)
        # Releasing a state unchanged would violate the guarantee of its edges, so the endpoints are no longer open.
        ends = more.find_connected_states()
        return PolicyGraph(self._edge_set, self._nodes, self.open & ~ends) | more.restrict(ends)

    @check_arguments
    def without_edges(self, removed: npt.ArrayLike) -> PolicyGraph:
        """Return the graph without some edges. Its states remain.

        Parameters
        ----------
        removed
            ``(m, 2)``: pairs of states. Pairs that are not edges are ignored.

        Returns
        -------
        PolicyGraph
            The graph without these edges.

        Raises
        ------
        PolicyError
            If a state is outside ``0 .. size - 1``, a pair is a self-loop, or the first states of the pairs have more
            than fifty million edges.

        Examples
        --------
        >>> PolicyGraph.complete(3).without_edges([[0, 2]]).edge_array().tolist()
        [[0, 1], [1, 2]]
        """
        pairs = PolicyGraph.from_edges(self.size, removed).edge_array()
        # Without the first state of every removed pair, all edges remain. Only the edges of those states are listed, so
        # a dense graph is not listed edge by edge.
        listed = [np.zeros((0, 2), dtype=np.int64)]
        count = 0
        for state in np.unique(pairs[:, 0]):
            is_partner = self.connects(state, np.arange(self.size))
            is_partner[pairs[pairs[:, 0] == state, 1]] = False
            is_partner[pairs[pairs[:, 1] == state, 0]] = False
            partners = np.flatnonzero(is_partner)
            listed.append(np.column_stack([np.full(len(partners), state), partners]))
            count += len(partners)
            if count > _MAX_LISTED_EDGES:
                raise PolicyError(
                    f"states with removed edges must have at most {_MAX_LISTED_EDGES} edges, got more: remove fewer"
                )
        others = np.ones(self.size, dtype=np.bool_)
        others[pairs[:, 0]] = False
        everywhere = np.ones(self.size, dtype=np.bool_)
        parts = ((self._edge_set, others), (ListedEdges(self.size, np.concatenate(listed)), everywhere))
        return PolicyGraph(UnionEdges(parts), self._nodes, self._open)

    def __or__(self, other: PolicyLike) -> PolicyGraph:
        """Return the union of nodes, edges and open states. No open state may have an edge."""
        other = self._convert_operand(other)
        parts = ((self._edge_set, self._nodes), (other._edge_set, other._nodes))
        return PolicyGraph(UnionEdges(parts), self._nodes | other._nodes, self.open | other.open)._check_open()

    def __and__(self, other: PolicyLike) -> PolicyGraph:
        """Return the intersection of nodes, edges and open states."""
        other = self._convert_operand(other)
        edge_set = IntersectionEdges(self._edge_set, other._edge_set)
        return PolicyGraph(edge_set, self._nodes & other._nodes, self.open & other.open)

    def __ror__(self, other: networkx.Graph[Any]) -> PolicyGraph:
        """Return ``other | self`` for a networkx graph."""
        return self._convert_operand(other) | self

    def __rand__(self, other: networkx.Graph[Any]) -> PolicyGraph:
        """Return ``other & self`` for a networkx graph."""
        return self._convert_operand(other) & self

    def _check_open(self) -> PolicyGraph:
        """Return the graph. Raise `PolicyError` if an open state has an edge."""
        if self.has_open:
            both = np.flatnonzero(self.open & self.find_connected_states())
            if len(both):
                raise PolicyError(
                    f"an open state must not have an edge, got state {int(both[0])} ({len(both)} such states): remove "
                    "it from the open states or from the edges"
                )
        return self

    def _convert_operand(self, other: PolicyLike) -> PolicyGraph:
        """Convert the other operand of ``|`` or ``&``."""
        graph = as_policy(other, self.size, argument="the other graph")
        if self.size != graph.size:
            raise PolicyError(f"policies over {self.size} and {graph.size} states cannot be combined")
        return graph

    @check_arguments
    def to_json(self, path: str | Path) -> None:
        """Write the graph as node-link JSON, which networkx reads. An existing file is replaced.

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
        If the policy is not a graph, or cannot be converted; see `PolicyGraph.from_networkx`.
    """
    if isinstance(policy, PolicyGraph):
        return policy
    if not is_networkx(policy):
        raise PolicyError(f"{argument} must be a PolicyGraph or a networkx.Graph, got {shorten_repr(policy)}")
    return PolicyGraph._from_networkx(policy, size, names, argument)


def convert_policy_and_measurements(
    graph: PolicyLike, f: npt.ArrayLike | Measurements
) -> tuple[PolicyGraph, Measurements]:
    """Convert a policy and measurements, and check that they have equally many states.

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
    measurements = Measurements.from_values(f)
    policy = as_policy(graph, measurements.size, argument="graph")
    return policy, policy.check_measurements(measurements)


def get_state_names(space: StateSpace | None) -> tuple[str, ...] | None:
    """Return the names of a space's states. None if they have no names.

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

    if not isinstance(data, dict):
        raise PolicyError(
            f"not a node-link graph (it must be an object with nodes and edges, got {shorten_repr(data)})"
        )
    try:
        key = "edges" if "edges" in data else "links"
        graph: networkx.Graph[Any] = networkx.node_link_graph(data, edges=key, directed=False, multigraph=False)
    except (ValueError, KeyError, TypeError, AttributeError, networkx.NetworkXError) as problem:
        raise PolicyError(f"not a node-link graph ({shorten_message(problem)})") from None
    return graph


def check_undirected(graph: networkx.Graph[Any], argument: str) -> None:
    """Raise `PolicyError` if a graph is directed or has parallel edges.

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
    """Return whether a value is a graph of networkx.

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


def is_open(attributes: Mapping[str, Any]) -> bool:
    """Return whether the attributes of a node of networkx declare it open."""
    value = attributes.get("open")  # possibly an element of a mask
    return isinstance(value, bool | np.bool_) and bool(value)


def _is_missing(label: Any) -> bool:
    try:
        differs = bool(label != label)
    except TypeError:  # pandas.NA, of which a comparison is neither true nor false
        return True
    return label is None or differs or (isinstance(label, int | np.integer) and bool(label < 0))


def _check_states(states: IntArray, size: int) -> None:
    outside = states[(states < 0) | (states >= size)]
    if len(outside):
        raise PolicyError(f"the states of a policy must be from 0 to {size - 1}, got state {int(outside[0])}")
