"""Policy graphs of indistinguishable states, degrees of protection, and repairs."""

from dphmm.policy.expression import parse_policy
from dphmm.policy.graph import PolicyGraph
from dphmm.policy.protection_degrees import Protection, degree_of_protection, exposed_states
from dphmm.policy.repair import Method, protect
from dphmm.policy.repair_objective import Objective
from dphmm.policy.zones import PolygonLayer

__all__ = [
    "Method",
    "Objective",
    "PolicyGraph",
    "PolygonLayer",
    "Protection",
    "degree_of_protection",
    "exposed_states",
    "parse_policy",
    "protect",
]
