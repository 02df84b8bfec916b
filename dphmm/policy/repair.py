"""Repair of exposed states, and the search for added edges with one hull.

The exact repair uses `RepairSearch`. A node is a hull that is contained in the hull of every repair below it. A repair
protects a state if and only if its hull contains one of the state's differences, so the children of a node are its hull
grown by each difference of one exposed state. A difference is dominated if the hull grown by it contains another
difference of the same state. Once every state is protected, further edges cannot reduce the volume. They can reduce the
error, and a repair may have up to one edge for each exposed state. In the plane the best convex polygon with vertices
among all differences is computed directly. Outside the plane, or if the polygon has more vertices than different
exposed states can provide, sets of further edges are enumerated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_constraint, copy_read_only, make_read_only
from dphmm.errors import PolicyError, SingletonConstraintError
from dphmm.geometry import planar
from dphmm.geometry.incremental_hull import GrowingBody, PlanarBody
from dphmm.geometry.least_error import find_min_error_polygon
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.neighbours import CoordinateBody, count_within
from dphmm.geometry.sensitivity_hull import Body, Membership, SensitivityHull
from dphmm.policy.branch_and_bound import UNITS_PER_MAX_WORK, Edge, Repair, RepairProblem, RepairSearch, Work, make_edge
from dphmm.policy.component_bodies import (
    NoiseBodies,
    NoiseBody,
    NoiseScope,
    build_noise_body,
    build_shapes,
    compute_protection_degrees,
    condition_prior,
    convert_to_units,
    find_exposed_states,
    label_components,
)
from dphmm.policy.component_repair import ComponentRepairProblem, merge_exactly, merge_nearest, merge_sequentially
from dphmm.policy.graph import PolicyGraph, PolicyLike, convert_policy_and_measurements
from dphmm.policy.protection_degrees import Protection
from dphmm.policy.repair_effect import RepairEffect
from dphmm.policy.repair_objective import (
    HullVolume,
    NoiseCost,
    Objective,
    build_noise_cost,
    find_minimum,
    list_orders_by_cost,
)
from dphmm.tolerances import RELATIVE_TOLERANCE
from dphmm.validation import NonNegativeInt, check_arguments

# The repair method: Algorithm 1, Algorithm 3, or joint optimisation.
Method = Literal["greedy", "sequential", "exact"]


# A release waits for its plan, at most five seconds. Nearly all instances of the benchmark end within half a second.
# The default work limit of the exact repair. 1000 is about one second on a processor of 2020.
REPAIR_MAX_WORK = 5_000

# Pairs of an exposed state and a partner: differences of 10^7 pairs in the plane take 160 MB.
_MAX_CANDIDATES = 10_000_000
# With more pairs the candidates of each exposed state are its nearest states, at least this number.
_MIN_PARTNERS = 16


@dataclass(frozen=True)
class Candidates:
    """The candidate partners of a state: ``vectors[k]`` is the difference to ``partners[k]``."""

    state: int
    vectors: npt.NDArray[Any]
    partners: IntArray

    def select(self, kept: IntArray) -> Candidates:
        """Return a subset of the candidates."""
        return Candidates(self.state, self.vectors[kept], self.partners[kept])


@dataclass(frozen=True)
class HullRepair(Repair):
    """A repair and its hull."""

    shape: GrowingBody


@dataclass(frozen=True)
class HullProblem:
    """A hull, the states exposed under it, and the objective.

    Parameters
    ----------
    base
        The hull before the repair.
    candidates
        For each exposed state, all other possible states, ascending.
    cost
        The objective.
    complete
        Whether the candidates include all possible partners, not only the nearest ones.
    """

    base: GrowingBody
    candidates: list[Candidates]
    cost: NoiseCost
    complete: bool = True

    # ---- the two methods of the paper ------------------------------------------------------------------------------

    def repair_greedily(self) -> HullRepair:
        """Connect every exposed state to the nearest other state (Algorithm 1)."""
        return self._build_unproven_repair(*self._connect_nearest())

    def repair_sequentially(self) -> HullRepair:
        """Connect exposed states in turn to the partner with the smallest volume (Algorithm 3).

        The volume is used for any objective, as in the paper.
        """
        by_volume = replace(self, cost=HullVolume(self.cost.spacing))
        return self._build_unproven_repair(*by_volume._connect_in_turn(range(len(self.candidates))))

    def _connect_nearest(self) -> tuple[GrowingBody, list[Edge]]:
        picks = [int(np.argmin(self.cost.lengths(choice.vectors))) for choice in self.candidates]
        pairs = list(zip(self.candidates, picks, strict=True))
        grown = self.base.grow(np.array([choice.vectors[k] for choice, k in pairs])) if pairs else self.base
        return grown, [_make_candidate_edge(choice, k) for choice, k in pairs]

    def _connect_in_turn(self, order: Iterable[int]) -> tuple[GrowingBody, list[Edge]]:
        """Connect exposed states in order to the partner with the smallest objective."""
        shape = self.base
        added = []
        for index in order:
            choice = self.candidates[index]
            if shape.contains(choice.vectors).any():
                continue
            best = find_minimum(self.cost.evaluate_growths(shape, choice.vectors), self.cost.lengths(choice.vectors))
            shape = shape.grow(choice.vectors[best : best + 1])
            added.append(_make_candidate_edge(choice, best))
        return shape, added

    def _build_unproven_repair(self, shape: GrowingBody, added: list[Edge]) -> HullRepair:
        """Return a heuristic repair. Its bound is the floor of the hull before the repair."""
        value = self.cost.evaluate(shape)
        bound = min(self.cost.compute_floor(self.base), value) if added else value
        return HullRepair(tuple(dict.fromkeys(added)), value, bound, shape)

    # ---- the exact method ----------------------------------------------------------------------------------------

    def repair_exactly(self, limit: int) -> HullRepair:
        """Connect exposed states to partners that jointly minimise the objective.

        Parameters
        ----------
        limit
            The work limit of the search. If it is reached, the incumbent is returned with the smallest bound of the
            unexplored nodes.
        """
        if not self.candidates:
            return self._build_unproven_repair(self.base, [])
        flat = self._find_flat_repair() if self.cost.is_monotone else None
        if flat is not None:
            return flat
        incumbent = min(self._build_initial_repairs(), key=lambda repair: repair.value)
        search = RepairSearch(_HullTree(self), incumbent, Work(limit))
        if not self.complete:
            search.leave_open(self._compute_floor_beyond_candidates())
        return search.run()

    def _build_initial_repairs(self) -> list[HullRepair]:
        """Return the initial repairs: Algorithm 1, and two greedy orders."""
        if len(self.candidates) == 1:
            return [self._build_unproven_repair(*self._connect_in_turn([0]))]
        bounds = [self.cost.compute_quick_bounds(self.base, choice.vectors).min() for choice in self.candidates]
        orders = list_orders_by_cost(np.array(bounds))
        return [
            self.repair_greedily(),
            *(self._build_unproven_repair(*self._connect_in_turn(order.tolist())) for order in orders),
        ]

    def _compute_floor_beyond_candidates(self) -> float:
        """Return a lower bound of repairs with partners outside the candidate lists."""
        lengths = np.array([self.cost.lengths(choice.vectors).max() for choice in self.candidates])
        return max(self.cost.compute_floor(self.base), float(self.cost.compute_bounds_by_length(lengths).min()))

    def _find_flat_repair(self) -> HullRepair | None:
        """Return the shortest repair within a line, or None. Its volume is zero: optimal."""
        if not isinstance(self.base, PlanarBody) or not self.base.is_flat:
            return None
        tip = self.base.vertices[-1]  # of a segment, one of two opposite ends; of the origin, zero
        directions = tip[None] if tip.any() else self.candidates[0].vectors
        lengths = self.cost.lengths(directions)
        best = None
        reach = inf
        for index in np.argsort(lengths, kind="stable"):
            if lengths[index] >= reach:
                break
            repair = self._repair_along(directions[index])
            if repair is not None and (length := float(self.cost.lengths(repair.shape.vertices[-1:])[0])) < reach:
                best = repair
                reach = length
        return best

    def _repair_along(self, direction: npt.NDArray[Any]) -> HullRepair | None:
        """Return the repair with nearest partners in a direction, or None."""
        shape = self.base
        added = []
        slack = 0 if shape.vertices.dtype.kind == "i" else RELATIVE_TOLERANCE
        for choice in self.candidates:
            cross = np.abs(planar.cross(direction, choice.vectors))
            sizes = np.linalg.norm(direction) * np.linalg.norm(choice.vectors, axis=1)
            on_line = choice.select(np.flatnonzero(cross <= slack * sizes))
            if not len(on_line.partners):
                return None
            nearest = int(np.argmin(self.cost.lengths(on_line.vectors)))
            if not shape.contains(on_line.vectors[nearest : nearest + 1])[0]:
                shape = shape.grow(on_line.vectors[nearest : nearest + 1])
                added.append(_make_candidate_edge(on_line, nearest))
        return HullRepair(tuple(dict.fromkeys(added)), 0.0, 0.0, shape)


def _make_candidate_edge(choice: Candidates, index: int) -> Edge:
    return make_edge(choice.state, int(choice.partners[index]))


def list_candidates(
    measurements: Measurements, exposed: IntArray, constraint: BoolArray
) -> tuple[list[Candidates], bool]:
    """Return the candidate partners of each exposed state, and whether they are complete."""
    if not len(exposed):
        return [], True
    possible = np.flatnonzero(constraint)
    coordinates = measurements.coordinates
    is_complete = len(exposed) * len(possible) <= _MAX_CANDIDATES
    if is_complete:
        choices = [possible[possible != state] for state in exposed]
    else:
        from scipy.spatial import cKDTree

        nearest = max(_MIN_PARTNERS, _MAX_CANDIDATES // len(exposed))
        points = measurements.points
        nearest_rows = cKDTree(points[possible]).query(points[exposed], k=min(nearest, len(possible)))[1]
        choices = [np.sort(row[row != state]) for row, state in zip(possible[nearest_rows], exposed, strict=True)]
    candidates = [
        Candidates(int(state), coordinates[partners] - coordinates[state], partners)
        for state, partners in zip(exposed, choices, strict=True)
    ]
    return candidates, is_complete


# Dominated differences are found by comparing all pairs. At each node this is repeated for at most this number.
_MAX_DOMINANCE_CHECKS = 256
# In units of work (see `Work`): a node, and a hull in the plane and in other dimensions.
_WORK_PER_NODE = 400_000
_WORK_PER_POLYGON = 50_000
_WORK_PER_POLYTOPE = 1_000_000


class _Options:
    """The distinct differences of all exposed states, and the pairs that have them.

    Parameters
    ----------
    problem
        The problem.
    level
        The objective value to improve on. Differences that no better hull contains are omitted.
    """

    def __init__(self, problem: HullProblem, level: float) -> None:
        vectors = np.concatenate([choice.vectors for choice in problem.candidates])
        partners = np.concatenate([choice.partners for choice in problem.candidates])
        states = np.repeat(np.arange(len(problem.candidates)), [len(c.partners) for c in problem.candidates])
        # The fast bounds first, on all pairs. The expensive ones are computed once for each distinct difference.
        is_near = problem.cost.compute_quick_bounds(problem.base, vectors) < level
        vectors = _canonicalize_signs(vectors[is_near])
        partners = partners[is_near]
        states = states[is_near]
        order = np.lexsort(vectors.T[::-1])
        first = np.ones(len(order), dtype=np.bool_)
        first[1:] = (np.diff(vectors[order], axis=0) != 0).any(axis=1)
        option_of_pair = np.empty(len(order), dtype=np.int64)
        option_of_pair[order] = np.cumsum(first) - 1
        distinct = vectors[order[first]]
        is_open = np.isfinite(problem.cost.compute_open_bounds(problem.base, distinct, level))
        renumber = np.cumsum(is_open) - 1
        kept = np.flatnonzero(is_open[option_of_pair])
        # (u, d): the differences ("options"); of two opposite ones the canonical one.
        self.vectors: npt.NDArray[Any] = distinct[is_open]
        # For every pair of an exposed state and a partner, sorted by state: the index of its difference.
        self.option_of_pair: IntArray = renumber[option_of_pair[kept]]
        self.partners: IntArray = partners[kept]
        # The pairs of the i-th exposed state are starts[i] to starts[i + 1].
        self.starts: IntArray = np.searchsorted(states[kept], np.arange(len(problem.candidates) + 1))
        self.index_of_vector = {tuple(vector): index for index, vector in enumerate(self.vectors.tolist())}
        self._owners: dict[int, list[int]] = {}

    def reduce_per_state(self, reduce: np.ufunc, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Reduce values ``(u,)`` of differences over the differences of every exposed state.

        Every state must have a difference, as `reduceat` has no value of an empty range; `_HullTree.iterate_roots`
        checks it.
        """
        return np.asarray(reduce.reduceat(values[self.option_of_pair], self.starts[:-1]))

    def list_state_options(self, state: int) -> IntArray:
        """Return the indices of the differences of an exposed state."""
        return np.unique(self.option_of_pair[self.starts[state] : self.starts[state + 1]])

    def _list_pairs(self, option: int) -> list[int]:
        if option not in self._owners:
            self._owners[option] = np.flatnonzero(self.option_of_pair == option).tolist()
        return self._owners[option]

    def get_edge(self, problem: HullProblem, pair: int) -> Edge:
        """Return the edge of a pair."""
        index = int(np.searchsorted(self.starts, pair, side="right")) - 1
        return make_edge(problem.candidates[index].state, int(self.partners[pair]))

    def assign(self, options: list[int]) -> dict[int, int] | None:
        """Match differences to pairs of different exposed states, by augmenting paths."""
        matched: dict[int, tuple[int, int]] = {}

        def augment(option: int, visited: set[int]) -> bool:
            for pair in self._list_pairs(option):
                state = int(np.searchsorted(self.starts, pair, side="right")) - 1
                if state not in visited:
                    visited.add(state)
                    if state not in matched or augment(matched[state][0], visited):
                        matched[state] = (option, pair)
                        return True
            return False

        return dict(matched.values()) if all(augment(option, set()) for option in dict.fromkeys(options)) else None


@dataclass(frozen=True)
class _Node:
    """A hull that is contained in the hull of every repair below the node.

    Parameters
    ----------
    shape
        The hull.
    options
        The indices of the differences that may lead to a better repair.
    chosen
        The indices of the differences on the path from the root.
    protected
        ``(m,)``: the exposed states that the hull is known to protect.
    """

    shape: GrowingBody
    options: IntArray
    chosen: list[int]
    protected: BoolArray


class _HullTree(RepairProblem[_Node, HullRepair]):
    """The nodes and bounds of a repair with one hull, searched best-first.

    Parameters
    ----------
    problem
        A problem with at least one exposed state.
    """

    def __init__(self, problem: HullProblem) -> None:
        self.problem = problem
        self.cost = problem.cost
        self.undominated: dict[int, IntArray] = {}

    def get_key(self, node: _Node) -> bytes:
        """Return the vertices: nodes with equal hulls represent the same repairs."""
        return node.shape.vertices.tobytes()

    def compute_floor(self, node: _Node) -> float:
        """Return a lower bound over all hulls that contain the node's hull."""
        return 0.0 if self.cost.is_monotone else self.cost.compute_floor(node.shape)

    def iterate_roots(self, search: HullSearch) -> Iterator[tuple[float, _Node]]:
        """Yield the hull before the repair. In the plane, improve the incumbent."""
        problem = self.problem
        # With one exposed state, the initial repair is the best of all its partners. Nothing is less than zero.
        if len(problem.candidates) == 1 or search.best.value == 0:
            return
        self.options = _Options(problem, search.best.value)
        if (np.diff(self.options.starts) == 0).any():
            # For one of the states no difference lies in a hull that improves on the incumbent: it is optimal.
            return
        all_options = np.arange(len(self.options.vectors))
        none_protected = np.zeros(len(problem.candidates), dtype=np.bool_)
        yield 0.0, _Node(problem.base, all_options, [], none_protected)
        if isinstance(problem.base, PlanarBody):
            # The root still contains these completions. If some are not examined, its bound covers them: hence `inf`.
            incumbent = search.best.shape
            self._offer_completion(
                search, _Node(incumbent, all_options, self._find_vertex_options(incumbent), ~none_protected), inf
            )

    def _find_vertex_options(self, shape: GrowingBody) -> list[int]:
        """Return the indices of the differences that are vertices of a hull."""
        vertices = map(tuple, _canonicalize_signs(shape.vertices).tolist())
        index_of = self.options.index_of_vector
        return list(dict.fromkeys(index_of[vertex] for vertex in vertices if vertex in index_of))

    def branch(self, search: HullSearch, bound: float, node: _Node) -> Iterator[tuple[float, _Node]]:
        """Yield the node's hull grown by each difference of one exposed state.

        A repair protects the state if and only if its hull contains one of the state's differences. It then contains
        the node's hull grown by that difference, so the children represent all repairs below the node.
        """
        options = self.options
        shape = node.shape
        search.spend(_WORK_PER_NODE + self.cost.work_per_vector * len(node.options))
        vectors = options.vectors[node.options]
        inside = np.zeros(len(options.vectors), dtype=np.bool_)
        inside[node.options] = shape.contains(vectors)
        protected = node.protected | options.reduce_per_state(np.logical_or, inside)
        if protected.all():
            self._offer_completion(search, node, bound)
            return
        bounds = np.full(len(options.vectors), inf)
        bounds[node.options] = self.cost.compute_open_bounds(shape, vectors, search.best.value)
        bounds[inside] = inf
        # Branch on the state with the largest bound: every repair costs at least the cheapest protection of this state.
        # It is infinite if no difference of the state leads to a better repair; the node then has no children.
        state = int(np.where(protected, -inf, options.reduce_per_state(np.minimum, bounds)).argmax())
        children = self._find_undominated_options(state)
        children = children[np.isfinite(bounds[children])]
        if len(children) <= _MAX_DOMINANCE_CHECKS:
            children = children[shape.find_minimal_vectors(options.vectors[children])]
        rest = node.options[np.isfinite(bounds[node.options])]
        for child in children.tolist():
            grown = self._grow_shape(search, shape, child)
            yield max(bound, float(bounds[child])), _Node(grown, rest, [*node.chosen, child], protected)

    def _grow_shape(self, search: HullSearch, shape: GrowingBody, option: int) -> GrowingBody:
        """Return the hull of a shape and a difference."""
        search.spend(_WORK_PER_POLYGON if isinstance(shape, PlanarBody) else _WORK_PER_POLYTOPE)
        return shape.grow(self.options.vectors[option][None])

    def _find_undominated_options(self, state: int) -> IntArray:
        """Return the differences of a state that none of its others dominates for any hull."""
        if state not in self.undominated:
            options = self.options.list_state_options(state)
            self.undominated[state] = options[self.problem.base.find_minimal_vectors(self.options.vectors[options])]
        return self.undominated[state]

    # ---- completion of hulls under which no state is exposed -------------------------------------------------------

    def _offer_completion(self, search: HullSearch, node: _Node, bound: float) -> None:
        """Offer the best completion of a node that protects every state.

        For the volume objective, and in one dimension, it is the node's own hull.
        """
        shape = node.shape
        spacing = self.cost.spacing
        self._offer(search, shape, node.chosen)
        if self.cost.is_monotone or (isinstance(shape, PlanarBody) and not shape.volume > 0):
            return
        if not isinstance(shape, PlanarBody):
            self._enumerate(search, shape, node.options, node.chosen, [])
            return
        points = self.options.vectors[node.options] * spacing
        _, selected, complete = find_min_error_polygon(
            shape.vertices * spacing, points, search.best.value, search.spend
        )
        more = node.options[selected]
        # The best polygon may have more vertices than different exposed states can provide. Then enumerate sets.
        if len(more) and not self._offer(
            search, shape.grow(self.options.vectors[more]), [*node.chosen, *more.tolist()]
        ):
            self._enumerate(search, shape, node.options, node.chosen, [])
        elif not complete:
            search.leave_open(bound)

    def _offer(self, search: HullSearch, shape: GrowingBody, chosen: list[int]) -> bool:
        """Offer a hull if its vertices match different exposed states. Report whether.

        A chosen difference inside the hull needs no edge: the others span the same hull.
        """
        vertices = set(map(tuple, _canonicalize_signs(shape.vertices).tolist()))
        needed = [option for option in chosen if tuple(self.options.vectors[option].tolist()) in vertices]
        pairs = self.options.assign(needed)
        if pairs is None:
            return False
        value = self.cost.evaluate(shape)
        if not search.is_beaten(value):
            added = tuple(self.options.get_edge(self.problem, pairs[option]) for option in needed)
            search.offer(HullRepair(added, value, 0.0, shape))
        return True

    def _enumerate(
        self, search: HullSearch, shape: GrowingBody, options: IntArray, chosen: list[int], taken: list[int]
    ) -> None:
        """Enumerate the sets of further differences that match different exposed states."""
        table = self.options
        search.spend(_WORK_PER_NODE + self.cost.work_per_vector * len(options))
        options = options[np.isfinite(self.cost.compute_open_bounds(shape, table.vectors[options], search.best.value))]
        options = np.array([option for option in options.tolist() if table.assign([*taken, option])], dtype=np.int64)
        values = self.cost.evaluate_growths(shape, table.vectors[options])
        for index in np.argsort(values, kind="stable").tolist():
            option = int(options[index])
            if search.is_beaten(float(values[index])):
                break
            if self._offer(search, self._grow_shape(search, shape, option), [*chosen, option]):
                break
        if len(taken) + 1 >= len(self.problem.candidates):
            return
        for index, option in enumerate(options.tolist()):
            grown = self._grow_shape(search, shape, option)
            # Only later differences may follow, so each set is enumerated in one order only.
            rest = options[index + 1 :]
            rest = rest[~grown.contains(table.vectors[rest])]
            self._enumerate(search, grown, rest, [*chosen, option], [*taken, option])


HullSearch = RepairSearch[_Node, HullRepair]


def _canonicalize_signs(vectors: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Negate each vector ``(n, d)`` with a negative last non-zero coordinate."""
    sign = np.zeros(len(vectors), dtype=np.int64)
    for axis in range(vectors.shape[1] - 1, -1, -1):
        sign = np.where(sign == 0, np.sign(vectors[:, axis]).astype(np.int64), sign)
    return np.asarray(vectors * sign[:, None])


# ---- repair of a policy ----------------------------------------------------------------------------------------------


@check_arguments
def protect(
    graph: PolicyLike,
    f: npt.ArrayLike | Measurements,
    constraint: npt.ArrayLike | None = None,
    method: Method = "exact",
    objective: Objective = "error",
    body: Body = "hull",
    membership: Membership = "halfspace",
    repair_max_work: NonNegativeInt = REPAIR_MAX_WORK,
    noise_scope: NoiseScope = "graph",
    prior: npt.ArrayLike | None = None,
) -> Protection:
    """Add edges to the constrained graph until no possible state is exposed.

    States outside the constraint set are not protected themselves. A release replaces such a state by its surrogate,
    the nearest possible state.

    Parameters
    ----------
    graph, f, constraint, body, membership
        See `degree_of_protection`.
    method
        ``"greedy"`` is Algorithm 1 (nearest other state). ``"sequential"`` is Algorithm 3 (exposed states in turn are
        connected to the partner with the smallest volume). ``"exact"`` chooses one partner for every exposed state
        jointly; erratum: Algorithm 3 does so for a single exposed state only. If one cross-polytope or disc serves
        the whole graph, the nearest partners in its norm are jointly optimal, and every method uses them.
    objective
        The objective of the exact method and of `Protection.objective_value`: ``"error"``, the expected squared error
        of a release, or ``"volume"``, the objective of the paper, which can have a much larger error. The error is not
        a monotone function of the hull: more edges than one for each exposed state might reduce it further. Such
        repairs are not searched.
    repair_max_work
        The work limit of the exact method's search. 1000 is about one second on a processor of 2020, in addition to the
        time for checking every pair of an exposed and a possible state once. Work is counted, not timed, so the same
        graph gets the same repair everywhere. If the limit is reached, `Protection.is_optimal` is false and
        `Protection.optimality_gap` bounds the distance from the optimum.
    noise_scope
        Whether one noise body serves the whole graph (``"graph"``), or each connected component has its own
        (``"component"``). In the latter case an added edge merges two components, and the objective is the mean over
        the possible states: ``sum of p(s) E|z - f(s)|²`` at epsilon one. ``"greedy"`` uses the nearest partners,
        ``"sequential"`` those with the smallest added cost, in turn.
    prior
        With ``"component"``: ``(N,)``, the probability of each state, which is conditioned on the possible ones.
        Defaults to a uniform prior.

    Returns
    -------
    Protection
        The repaired graph, its noise bodies, and the added edges.

    Raises
    ------
    SingletonConstraintError
        If only one state is possible, and it is not open.
    StochasticError
        If the prior is not a distribution over the states, or is zero on all possible ones.
    InvalidInputError
        If the method, the objective or the body is unknown, or the limit is not a non-negative integer.

    Examples
    --------
    >>> f = [[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]]
    >>> graph = PolicyGraph.categorical([0, 1, 1, 2, 2, 2])
    >>> repaired = protect(graph, f, [False, False, True, True, True, True])
    >>> repaired.added, round(repaired.hull.squared_error, 9), repaired.is_optimal
    (((2, 4),), 47.0, True)
    >>> protect(graph, f, [False, False, True, True, True, True], objective="volume").hull.volume
    14.0
    """
    policy, measurements = convert_policy_and_measurements(graph, f)
    protector = Protector(measurements, method, objective, body, membership, repair_max_work, noise_scope)
    return protector(policy, as_constraint(constraint, policy.size), prior)


@dataclass(frozen=True)
class Protector:
    """Validated arguments of `protect`, reusable across constraint sets."""

    measurements: Measurements
    method: Method
    objective: Objective
    body: Body
    membership: Membership
    repair_max_work: int
    noise_scope: NoiseScope

    def __call__(self, graph: PolicyGraph, possible: BoolArray, prior: npt.ArrayLike | None = None) -> Protection:
        """Repair a policy for the possible states ``(N,)`` and a prior. See `protect`."""
        restricted = graph.restrict(possible)
        has_open = restricted.has_open
        if not has_open and np.count_nonzero(possible) < 2:
            state = int(np.argmax(possible))
            raise SingletonConstraintError(
                f"state {state} is the only state of the constraint set, so no noise can protect it: set "
                "allow_singleton = true to release it"
            )
        if self.noise_scope == "component":
            return self.repair_by_component(restricted, condition_prior(prior, possible))
        return self.repair_with_open_states(restricted) if has_open else self.repair_with_shared_body(restricted)

    def repair_with_shared_body(self, restricted: PolicyGraph) -> Protection:
        """Repair a graph without open states, with one noise body for all possible states."""
        possible = restricted.node_mask
        hull = restricted.hull(self.measurements)
        noise = CoordinateBody(self.measurements, build_noise_body(self.measurements, hull, self.body), self.membership)
        if covers_all := restricted.is_complete and self.membership == "halfspace":
            # Complete graph: the hull contains all pairwise differences, and each body contains the hull.
            degrees = possible * np.count_nonzero(possible)
        else:
            degrees = count_within(noise, possible)
        # Definition 5.2 with the noise body: a state is exposed if and only if its degree is 1.
        exposed = (degrees == 1).nonzero()[0]
        candidates, complete = list_candidates(self.measurements, exposed, possible)
        cost = build_noise_cost(self.measurements.spacing, self.body, self.objective)
        problem = HullProblem(self.measurements.build_body(hull), candidates, cost, complete)
        if self.body != "hull" or self.method == "greedy":
            repair = problem.repair_greedily()
        elif self.method == "sequential":
            repair = problem.repair_sequentially()
        else:
            repair = problem.repair_exactly(self.repair_max_work * UNITS_PER_MAX_WORK)
        effect = None
        if len(exposed):
            repaired_hull = self.measurements.compute_hull(repair.shape)
            if len(exposed) < np.count_nonzero(possible):
                effect = RepairEffect.from_shared_body(
                    self.measurements, restricted, self.body, hull, repaired_hull, repair.added, exposed
                )
            restricted = restricted.with_edges(repair.added)
            hull = repaired_hull
            noise = CoordinateBody(
                self.measurements, build_noise_body(self.measurements, hull, self.body), self.membership
            )
            degrees = count_within(noise, possible)
            self._check_none_exposed(degrees, restricted)
        # The factor of Theorem 6.3. Vertices of the hull are differences of norm one, the largest norm of any
        # difference.
        if covers_all and self.body == "hull":
            diameter = 1.0 if hull.dimension else 0.0
        else:
            diameter = noise.diameter(possible)
        part = NoiseBody.from_hull(self.measurements, hull, self.body)
        chosen: Repair = repair
        if self.body != "hull":
            # Nearest partners in the ball's norm are optimal: each state needs this radius, and the largest suffices
            # for all.
            value: float = part.body.volume if self.objective == "volume" else part.body.squared_error
            chosen = Repair(repair.added, value, value)
        return _build_single_body_protection(restricted, part, degrees, diameter, chosen, effect)

    def build_noiseless_protection(self, restricted: PolicyGraph) -> Protection:
        """Return a protection without noise, for unchanged singletons and withheld timesteps.

        The degree of protection of every possible state is the number of possible states: the release, or its absence,
        is the same for all of them.
        """
        point = SensitivityHull(np.zeros((0, self.measurements.dimension)))
        degrees = restricted.node_mask * np.count_nonzero(restricted.node_mask)
        return _build_single_body_protection(
            restricted, NoiseBody(point, point, point), degrees, 0.0, Repair((), 0.0, 0.0)
        )

    def repair_with_open_states(self, restricted: PolicyGraph) -> Protection:
        """Repair a graph with open states, with one noise body for all other possible states.

        If only one state is not open, it is connected to an open state.
        """
        protected = restricted.node_mask & ~restricted.open
        # A single state has no partner among protected ones. It is connected to an open one, in a separate component.
        if int(protected.sum()) < 2:
            return self.repair_by_component(restricted, condition_prior(None, restricted.node_mask))
        protection = self.repair_with_shared_body(restricted.restrict(protected))
        graph = restricted.with_edges(protection.added)
        labels = label_components(graph, "graph")
        point = SensitivityHull(np.zeros((0, self.measurements.dimension)))
        return replace(
            protection,
            graph=graph,
            degrees=copy_read_only(np.where(graph.open, 1, protection.degrees)),
            diameter=inf,
            components=copy_read_only(labels),
            parts=(protection.parts[0], NoiseBody(point, point, point)),
            part_of=copy_read_only(np.where(labels < 0, -1, np.where(graph.open, 1, 0))),
            is_shared=False,
        )

    def repair_by_component(self, restricted: PolicyGraph, prior: FloatArray) -> Protection:
        """Repair a graph with a noise body for each connected component."""
        measurements = self.measurements
        labels = label_components(restricted, "component")
        shapes = build_shapes(restricted, measurements, labels)
        exposed = find_exposed_states(restricted, labels)
        weights = np.bincount(labels[restricted.node_mask], prior[restricted.node_mask], len(shapes)).astype(np.float64)
        cost = build_noise_cost(measurements.spacing, self.body, self.objective)
        limit = self.repair_max_work * UNITS_PER_MAX_WORK
        problem = ComponentRepairProblem(cost, measurements.coordinates, labels, shapes, weights, exposed, limit)
        repair = _MERGE_METHODS[self.method](problem)
        unrepaired = (restricted, labels, shapes)
        if repair.added:
            restricted = restricted.with_edges(repair.added)
            labels = label_components(restricted, "component")
            shapes = problem.build_repaired_shapes(repair.added, labels)
        bodies = NoiseBodies.from_shapes(measurements, shapes, self.body)
        effect = None
        if 0 < len(exposed) < np.count_nonzero(restricted.node_mask & ~restricted.open):
            graph, unrepaired_labels, unrepaired_shapes = unrepaired
            effect = RepairEffect.from_components(
                measurements,
                graph,
                self.body,
                (NoiseBodies.from_shapes(measurements, unrepaired_shapes, self.body), unrepaired_labels),
                (bodies, labels),
                prior,
                repair.added,
                exposed,
            )
        degrees = compute_protection_degrees(measurements, labels, bodies, self.body, self.membership)
        self._check_none_exposed(degrees, restricted)
        joint, units = bodies.compute_joint_hull(measurements)
        around = build_noise_body(measurements, joint, self.body)
        # Noise that differs by component can reveal the component of a state, so no factor bounds all pairs.
        diameter = inf
        if len(shapes) == 1:
            diameter = CoordinateBody(measurements, around, self.membership).diameter(restricted.node_mask)
        return Protection(
            graph=restricted,
            hull=units,
            added=repair.added,
            is_optimal=repair.is_optimal,
            objective_value=repair.value,
            lower_bound=repair.bound,
            degrees=copy_read_only(degrees),
            body=units if around is joint else convert_to_units(measurements, around),
            coordinate_hull=joint,
            diameter=diameter,
            components=copy_read_only(labels),
            parts=bodies.bodies,
            part_of=copy_read_only(np.where(labels < 0, -1, bodies.of_component[labels])),
            effect=effect,
        )

    def _check_none_exposed(self, degrees: IntArray, graph: PolicyGraph) -> None:
        # The differences of edges are on the boundary, and the quadratic program of Equation (6) has its own tolerance.
        has_degree_one = degrees == 1
        if not has_degree_one.any():
            return
        exposed = np.flatnonzero(has_degree_one & ~graph.open)
        if len(exposed):
            raise PolicyError(
                f"state {int(exposed[0])} is still exposed after the repair: its partner is on the boundary, within "
                f"the tolerance of membership {self.membership!r}. Use membership 'halfspace'"
            )


def _build_single_body_protection(
    graph: PolicyGraph,
    part: NoiseBody,
    degrees: IntArray,
    diameter: float,
    repair: Repair,
    effect: RepairEffect | None = None,
) -> Protection:
    """Return the protection with one noise body for all possible states."""
    components = make_read_only(np.where(graph.node_mask, 0, -1))
    return Protection(
        graph=graph,
        hull=part.hull,
        added=repair.added,
        is_optimal=repair.is_optimal,
        objective_value=repair.value,
        lower_bound=repair.bound,
        degrees=make_read_only(degrees),
        body=part.body,
        coordinate_hull=part.coordinate_hull,
        diameter=diameter,
        components=components,
        parts=(part,),
        part_of=components,
        is_shared=True,
        effect=effect,
    )


_MERGE_METHODS: Mapping[Method, Callable[[ComponentRepairProblem], Repair]] = {
    "greedy": merge_nearest,
    "sequential": merge_sequentially,
    "exact": merge_exactly,
}
